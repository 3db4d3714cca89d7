#!/usr/bin/env bash
# Usage: launch/eight.sh [STEP...]
# What a machine with eight GPUs shows, in four steps of less than 8 minutes each; by default all of
# them. Each step prints its time, and goes on where a part of it fails.
#   tests     the tests of several ranks
#   files     file jobs of 4 and 32 GiB in memory, beside plain copies
#   bench     all strategies and all peers that are installed, by size, on all ranks
#   scaling   2^28 elements for each rank, and 2^28 elements for all ranks, on 1, 2, 4, ... ranks
#
#   RANKS     the number of ranks (default: 8)
#   PYTHON    the interpreter that has CuPy, mpi4py and pytest (default: python3)
#   BACKEND   cuda or cpu (default: cuda)
#   RESULTS   the folder for reports as JSON (default: build/eight)
#   GIB       the sizes of files (default: "4 32")
#   LARGEST   the logarithm of the largest number of elements of a rank (default: 28)
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."

ranks=${RANKS:-8} backend=${BACKEND:-cuda} results=${RESULTS:-build/eight} largest=${LARGEST:-28}
read -ra gib <<<"${GIB:-4 32}"
PYTHON=$(command -v "${PYTHON:-python3}") # in full: an mpirun may put another one first on PATH
export PYTHON PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} DISTSCAN_LABELS=0
limit=470 # seconds of a step
mkdir -p "$results"

bench() { # RANKS NAME ARGUMENT...
  local number=$1 name=$2
  shift 2
  launch/mpirun.sh "$number" "$PYTHON" -m distscan.bench --backend "$backend" \
    --json "$results/$name.json" "$@"
}

step() {
  case $1 in
    tests)
      local marks="gpu and not alone and not one_rank"
      [[ $backend == cuda ]] || marks="fast and not gpu"
      launch/parts.sh "$ranks" 2 -m "$marks" tests/gpu tests/scan
      ;;
    files)
      "$PYTHON" launch/tools/file_job.py /dev/shm --gib "${gib[@]}" --ranks "$ranks" \
        --backend "$backend" --repeat 1
      ;;
    bench)
      bench "$ranks" "bench" --sizes "10:$largest:2" --types float32,int64
      ;;
    scaling)
      local number power=0
      for ((number = 1; number <= ranks; number *= 2, power += 1)); do
        bench "$number" "shard-$number" --sizes "$largest" --types float32
        bench "$number" "array-$number" --sizes "$((largest - power))" --types float32
      done
      ;;
    *)
      echo "eight.sh: there is no step '$1'; the steps are tests, files, bench, scaling" >&2
      exit 2
      ;;
  esac
}

if [[ ${1:-} == --step ]]; then # inside of `timeout`, below
  step "$2"
  exit
fi
worst=0
for name in "${@:-tests files bench scaling}"; do
  for each in $name; do
    DISTSCAN_TIMEOUT=$limit launch/stage.sh "$each" timeout -k 10 "$limit" "$0" --step "$each" ||
      worst=1
  done
done
exit $worst
