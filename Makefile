# Start with `make demo` or `make test`. Both create the environment first.
PYTHON ?= python3
BIN := .venv/bin
# Cache bytecode even where the environment turns it off: the tests start many processes.
export PYTHONDONTWRITEBYTECODE :=

# torch differs by package index (CPU or a CUDA version), so it is pinned by version only. To install
# it from PyPI with hashes: make TORCH='--no-deps --require-hashes -r requirements/torch.txt' test
TORCH ?= --constraint constraints.txt torch

.PHONY: demo test check docs dist fmt slow clean lock audit
demo: .venv/ready    ; $(BIN)/wavefront demo
test: .venv/dev      ; $(BIN)/pytest -n 2 -m "not slow and not gpu"
slow: .venv/dev      ; $(BIN)/pytest -n 2 --dist worksteal -m "slow and not gpu"
check: .venv/dev     ; $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright && $(BIN)/pytest -n 2 -m "not slow and not gpu"
docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html in a browser."
	@echo "The search box needs a server: $(BIN)/python -m http.server -d site 8080"
# Build a release in dist/. This fails if the changelog has no notes for the version.
dist: .venv/dev
	rm -rf dist && mkdir dist && $(BIN)/python runs/release_notes.py > dist/NOTES.md
	$(BIN)/python -m hatchling build --directory dist
fmt: .venv/dev       ; $(BIN)/ruff check --fix . ; $(BIN)/ruff format .
# Write requirements/*.txt from the ranges in pyproject.toml, then look for known vulnerabilities.
lock: .venv/tools    ; $(PYTHON) runs/lock.py .venv/tools/bin/uv
audit: .venv/tools
	for name in dev image build torch; do .venv/tools/bin/pip-audit --strict --disable-pip --require-hashes --requirement requirements/$$name.txt || exit 1; done
clean:               ; rm -rf .venv build dist site .pytest_cache .ruff_cache

.venv/pyvenv.cfg:
	$(PYTHON) -c 'import sys; sys.exit("wavefront needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
.venv/tools: .venv/pyvenv.cfg
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet uv==0.13.7 pip-audit==2.10.1

# The demo needs the core dependencies only; the tests need every extra.
.venv/ready: .venv/pyvenv.cfg pyproject.toml constraints.txt
	@echo "Installing torch and other packages into .venv. This downloads several hundred MB."
	$(BIN)/python -m pip install --no-warn-script-location --constraint constraints.txt --editable .
	touch $@
# First everything but torch, each file checked against its hash. Then torch, whose other
# dependencies are there already. Then the project itself, built with the locked hatchling.
.venv/dev: .venv/pyvenv.cfg pyproject.toml constraints.txt requirements/dev.txt
	@echo "Installing the packages for development into .venv (1 of 3). This takes a few minutes."
	$(BIN)/python -m pip install --no-deps --require-hashes --requirement requirements/dev.txt
	@echo "Installing torch, several hundred MB (2 of 3)."
	$(BIN)/python -m pip install $(TORCH)
	@echo "Installing wavefront itself (3 of 3)."
	$(BIN)/python -m pip install --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	touch $@ .venv/ready
