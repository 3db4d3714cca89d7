#!/usr/bin/env bash
# Usage: launch/gpu_job.sh RANKS [DISTSCAN ARGUMENT...]
# The main job on the GPUs: scans a float32 and an int64 file of 4 GiB of random numbers, with
# --check.
#   PYTHON  the interpreter that has CuPy (default: python3)
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."

[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || { echo "usage: gpu_job.sh RANKS [DISTSCAN ARGUMENT...]" >&2 && exit 2; }
ranks=$1
shift
# In full, since an mpirun may put another python3 first on PATH.
python=$(command -v "${PYTHON:-python3}")
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} DISTSCAN_LABELS=0
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

for type in float32 int64; do
  "$python" - "$dir/$type.npy" "$type" <<'PYTHON'
import sys

import numpy as np

path, dtype = sys.argv[1], np.dtype(sys.argv[2])
n, step, rng = (4 << 30) // dtype.itemsize, 1 << 24, np.random.default_rng()
x = np.lib.format.open_memmap(path, "w+", dtype, (n,))
for low in range(0, n, step):
    part = rng.random(step, dtype) - 0.5 if dtype.kind == "f" else rng.integers(-(2**62), 2**62, step)
    x[low : low + step] = part
PYTHON
  launch/mpirun.sh "$ranks" "$python" -m distscan "$dir/$type.npy" --backend cuda --check "$@"
  rm "$dir"/*.npy
done
