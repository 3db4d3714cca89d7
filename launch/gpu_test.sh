#!/usr/bin/env bash
# Usage: launch/gpu_test.sh [PYTEST ARGUMENT...]
# Runs the tests that need a GPU at 1, 2, 4 and 8 ranks, as far as there are GPUs; without arguments,
# then the commands of README and docs that need one. Installs nothing.
# Tests run side by side, as many as there are cores and GPU memory for. Those at 1 rank come first
# and compile for all: some thousand kernels, which later runs find in the cache. Test files that need
# packages that are not installed are skipped by name.
#   PYTHON            the interpreter that has CuPy, pytest, pytest-mpi and hypothesis (default: that
#                     of .venv, else python3)
#   DISTSCAN_TIMEOUT  seconds after which all is ended (default: 1800)
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."

if [[ -z ${PYTHON:-} && -x .venv/bin/python ]]; then
  PYTHON=$PWD/.venv/bin/python
  PATH=$PWD/.venv/bin:$PATH # its mpirun, if it has one
fi
PYTHON=${PYTHON:-python3}
# In full, since an mpirun may put another python3 first on PATH.
PYTHON=$(command -v "$PYTHON") || { echo "gpu_test.sh: there is no $PYTHON" >&2 && exit 1; }
export PYTHON PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
total=${DISTSCAN_TIMEOUT:-1800}

# So many processes may share the GPUs: 8 GiB of GPU memory for each.
if ! found=$("$PYTHON" -c '
from cupy.cuda import runtime
gpus = runtime.getDeviceCount()
print(gpus, gpus * -(-runtime.memGetInfo()[1] >> 33))' 2>/dev/null); then
  echo "gpu_test.sh: $PYTHON finds no GPU with CuPy" >&2
  exit 1
fi
read -r gpus room <<<"$found"
cores=$(nproc)

worst=0
# Runs a command in what is left of the time, and goes on if it fails. Where the arguments pick none
# of its tests, that is no fault.
run() {
  local status=0 begin=$SECONDS
  echo "== $1 =="
  shift
  if ((begin >= total)); then
    echo "gpu_test.sh: $total s are over" >&2
    exit 124
  fi
  DISTSCAN_TIMEOUT=$((total - begin)) "$@" || status=$?
  echo "== $((SECONDS - begin)) s =="
  ((status == 0 || status == 5)) || worst=1
}
smaller() { echo $(($1 < $2 ? $1 : $2)); }

for ranks in 1 2 4 8; do
  if ((ranks <= gpus)); then
    # Among several, a rank works on two cores: beside Python, MPI and CUDA have threads of their own.
    parts=$(smaller $((ranks == 1 ? cores : cores / (2 * ranks))) $((room / ranks)))
    run "ranks: $ranks, GPUs: $gpus" \
      launch/parts.sh "$ranks" $((parts > 0 ? parts : 1)) -m "gpu and not alone" "$@"
    run "ranks: $ranks, one test after the other" \
      launch/mpirun.sh "$ranks" "$PYTHON" -m pytest -m "gpu and alone" "$@"
  fi
done
if (($# == 0)); then
  PATH=$(dirname "$PYTHON"):$PATH
  run "commands of the pages" \
    timeout --foreground -k 10 $((total - SECONDS)) "$PYTHON" launch/doc_commands.py --reason gpu
fi
exit $worst
