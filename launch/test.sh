#!/usr/bin/env bash
# Usage: launch/test.sh [PYTEST ARGUMENT...]
# Runs the tests at 1, 2, 4 and 8 ranks under MPICH and at 3 under Open MPI. Those at 1 rank run side
# by side on all cores; -n 0 runs them one after the other.
# Without arguments, a run takes a third of the tests at 2 ranks, a twelfth at 4, a sixteenth at 8 and
# under Open MPI; and it compiles a sixteenth of the kernels. Each run draws another part.
# It also prints the coverage of distscan/, combined over 1, 2 and 4 ranks. tests/support/measured.py
# says which tests are traced for it.
#   DISTSCAN_WHOLE    1 runs all of them
#   DISTSCAN_TIMEOUT  seconds for each number of ranks (default: 1800)
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."

export DISTSCAN_TIMEOUT=${DISTSCAN_TIMEOUT:-1800}
python=(python -m coverage run)
if (($# > 0)); then
  export DISTSCAN_WHOLE=1
  python=(python)
fi
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
export COVERAGE_FILE=$data/coverage

# All that the arguments pick may be for one rank alone: the others find no test.
some() { "$@" || (($? == 5)); }
# One of N parts of the tests, or all: one_of N COMMAND...
one_of() {
  local part=$((RANDOM % $1 + 1))/$1
  shift
  [[ ${DISTSCAN_WHOLE:-} != 1 ]] || part=1/1
  DISTSCAN_PART=$part some "$@"
}

source launch/setup.sh mpich test coverage
launch/browser.sh
# Without mpirun, or each worker would take itself for the rank that it started; and without
# pytest-benchmark, since its warning that it is off would be an error.
echo "== 1 rank, MPICH =="
some timeout --foreground -k 10 "$DISTSCAN_TIMEOUT" \
  "${python[@]}" -m pytest -p no:benchmark -n auto --dist worksteal "$@"
echo "== 2 ranks, MPICH =="
one_of 3 launch/mpirun.sh 2 "${python[@]}" -m pytest "$@"
echo "== 4 ranks, MPICH =="
one_of 12 launch/mpirun.sh 4 "${python[@]}" -m pytest "$@"
if (($# == 0)); then
  echo "== coverage: files below 95 %, and the total =="
  python -m coverage combine -q
  python -m coverage report --sort=cover | awk '!/%$/ || /^TOTAL/ || $NF + 0 < 95'
fi
echo "== 8 ranks, MPICH =="
one_of 16 launch/mpirun.sh 8 python -m pytest "$@"

source launch/setup.sh openmpi test
echo "== 3 ranks, Open MPI =="
one_of 16 launch/mpirun.sh 3 python -m pytest "$@"
