#!/usr/bin/env bash
# Run the tests of wavefront.integrations.hf at both ends of the supported range of transformers.
#
#   runs/hf_range.sh [FOLDER]
#
# Makes an environment for each end under FOLDER (a temporary one by default), on top of the
# packages of the interpreter that runs it ($PYTHON, .venv/bin/python): only transformers and what
# it pins is installed anew. Prints the version and the outcome of each end; fails if either does.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-.venv/bin/python}"
FOLDER="${1:-$(mktemp -d)}"
below="$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
export PYTHONPATH="$PWD" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

failed=0
for range in "transformers==4.57.*" "transformers>=5,<6"; do
    home="$FOLDER/$(echo "$range" | tr -cd 'a-z0-9')"
    [ -x "$home/bin/python" ] || "$PYTHON" -m venv "$home"
    "$home/bin/python" -m pip install --quiet --upgrade "$range"
    # After its own, so that what it has wins, and torch is not installed twice.
    echo "$below" > "$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/below.pth"
    "$home/bin/python" -c 'import torch, transformers as t; print("transformers", t.__version__, "torch", torch.__version__)'
    "$home/bin/python" -m pytest -p no:xdist -p no:cacheprovider \
        tests/integrations/test_hf.py tests/integrations/test_hf_masked.py tests/integrations/test_hf_streams.py \
        tests/project/test_hf_doc.py || failed=1
    "$home/bin/python" examples/transformers_generate.py > /dev/null || failed=1
done
exit "$failed"
