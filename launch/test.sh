#!/usr/bin/env bash
# Usage: launch/test.sh [PYTEST ARGUMENT...]
# Runs the tests at 1, 2, 4 and 8 ranks under MPICH and at 3 under Open MPI. Those at 1 rank run side
# by side on all cores; -n 0 runs them one after the other.
# Without arguments, a run takes a quarter of the tests at 8 ranks and under Open MPI, and compiles
# a quarter of the kernels. Each run draws another quarter.
#   DISTSCAN_WHOLE    1 runs all of them
#   DISTSCAN_TIMEOUT  seconds for each number of ranks (default: 1800)
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."

export DISTSCAN_TIMEOUT=${DISTSCAN_TIMEOUT:-1800}
(($# == 0)) || export DISTSCAN_WHOLE=1

# All that the arguments pick may be for one rank alone: the others find no test.
some() { "$@" || (($? == 5)); }
# A quarter of the tests, or all.
quarter() {
  local part=$((RANDOM % 4 + 1))/4
  [[ ${DISTSCAN_WHOLE:-} != 1 ]] || part=1/1
  DISTSCAN_PART=$part some "$@"
}

source launch/setup.sh mpich test
# Without mpirun, or each worker would take itself for the rank that it started; and without
# pytest-benchmark, since its warning that it is off would be an error.
echo "== 1 rank, MPICH =="
some timeout --foreground -k 10 "$DISTSCAN_TIMEOUT" \
  python -m pytest -p no:benchmark -n auto --dist worksteal "$@"
for ranks in 2 4; do
  echo "== $ranks ranks, MPICH =="
  some launch/mpirun.sh "$ranks" python -m pytest "$@"
done
echo "== 8 ranks, MPICH =="
quarter launch/mpirun.sh 8 python -m pytest "$@"

source launch/setup.sh openmpi test
echo "== 3 ranks, Open MPI =="
quarter launch/mpirun.sh 3 python -m pytest "$@"
