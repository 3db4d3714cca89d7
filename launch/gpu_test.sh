#!/usr/bin/env bash
# Usage: launch/gpu_test.sh [PYTEST ARGUMENT...]
# Runs the tests that need a GPU at 1, 2, 4 and 8 ranks, as far as there are GPUs; installs nothing.
# Those at 1 rank run side by side on all cores, and compile for all: some thousand kernels, which
# later runs find in the cache.
#   PYTHON  the interpreter that has CuPy and the extra "test" (default: that of .venv, else python3)
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."

if [[ -z ${PYTHON:-} && -x .venv/bin/python ]]; then
  PYTHON=$PWD/.venv/bin/python
  PATH=$PWD/.venv/bin:$PATH # its mpirun, if it has one
fi
PYTHON=${PYTHON:-python3}
# In full, since an mpirun may put another python3 first on PATH.
python=$(command -v "$PYTHON") || python=$PYTHON
export DISTSCAN_TIMEOUT=${DISTSCAN_TIMEOUT:-3600}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

# So many tests may run side by side: 8 GiB of GPU memory for each.
if ! found=$("$python" -c '
from cupy.cuda import runtime
gpus = runtime.getDeviceCount()
print(gpus, gpus * -(-runtime.memGetInfo()[1] >> 33))' 2>/dev/null); then
  echo "gpu_test.sh: $python finds no GPU with CuPy" >&2
  exit 1
fi
read -r gpus workers <<<"$found"

# All that the arguments pick may be in one of the two runs at 1 rank: the other finds no test.
some() { "$@" || (($? == 5)); }

# Without mpirun, or each worker would take itself for the rank that it started; and without
# pytest-benchmark, since its warning that it is off would be an error.
echo "== 1 rank, $gpus GPUs, side by side =="
some timeout --foreground -k 10 "$DISTSCAN_TIMEOUT" "$python" -m pytest -p no:benchmark \
  -n auto --maxprocesses "$workers" -m "gpu and not alone" "$@"
echo "== 1 rank, one after the other =="
some launch/mpirun.sh 1 "$python" -m pytest -m "gpu and alone" "$@"
for ranks in 2 4 8; do
  if ((ranks <= gpus)); then
    echo "== $ranks ranks, $gpus GPUs =="
    launch/mpirun.sh "$ranks" "$python" -m pytest -m gpu "$@"
  fi
done
