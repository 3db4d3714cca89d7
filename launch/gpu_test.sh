#!/usr/bin/env bash
# Usage: launch/gpu_test.sh [PYTEST ARGUMENT...]
# Runs the tests that need a GPU at 1, 2, 4 and 8 ranks, as far as there are GPUs; installs nothing.
#   PYTHON  the interpreter that has CuPy (default: that of .venv, else python3)
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ -z ${PYTHON:-} && -x .venv/bin/python ]]; then
  PYTHON=$PWD/.venv/bin/python
  PATH=$PWD/.venv/bin:$PATH # its mpirun, if it has one
fi
PYTHON=${PYTHON:-python3}
# In full, since an mpirun may put another python3 first on PATH.
python=$(command -v "$PYTHON") || python=$PYTHON
# Nearly every test compiles kernels; a second run finds them compiled.
export DISTSCAN_TIMEOUT=${DISTSCAN_TIMEOUT:-3600}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

if ! gpus=$("$python" -c 'from cupy.cuda import runtime; print(runtime.getDeviceCount())' \
  2>/dev/null); then
  echo "gpu_test.sh: $python finds no GPU with CuPy" >&2
  exit 1
fi
for ranks in 1 2 4 8; do
  if ((ranks <= gpus)); then
    echo "== $ranks ranks, $gpus GPUs =="
    launch/mpirun.sh "$ranks" "$python" -m pytest -m gpu "$@"
  fi
done
