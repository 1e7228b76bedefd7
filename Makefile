# Start with `make demo` or `make test`. Both create the environment first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check docs dist fmt slow clean
demo: .venv/ready    ; $(BIN)/wavefront demo
test: .venv/dev      ; $(BIN)/pytest -n 2 -m "not slow and not gpu"
slow: .venv/dev      ; $(BIN)/pytest -n 2 -m "slow and not gpu"
check: .venv/dev     ; $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright && $(BIN)/pytest -n 2 -m "not slow and not gpu"
docs: .venv/dev      ; NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
# Build a release in dist/. This fails if the changelog has no notes for the version.
dist: .venv/dev
	rm -rf dist && mkdir dist && $(BIN)/python runs/release_notes.py > dist/NOTES.md
	$(BIN)/python -m hatchling build --directory dist
fmt: .venv/dev       ; $(BIN)/ruff check --fix . ; $(BIN)/ruff format .
clean:               ; rm -rf .venv build dist site .pytest_cache .ruff_cache

.venv/pyvenv.cfg:
	$(PYTHON) -c 'import sys; sys.exit("wavefront needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

# The demo needs the core dependencies only; the tests need every extra.
.venv/ready: .venv/pyvenv.cfg pyproject.toml constraints.txt
	@echo "Installing torch and other packages into .venv. This downloads several hundred MB."
	$(BIN)/python -m pip install --no-warn-script-location --constraint constraints.txt --editable .
	touch $@
.venv/dev: .venv/pyvenv.cfg pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ .venv/ready
