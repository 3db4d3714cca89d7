#!/usr/bin/env bash
# Usage: launch/test.sh [PYTEST ARGUMENT...]
# Runs the tests at 1, 2, 4 and 8 ranks under MPICH and at 3 under Open MPI. Those at 1 rank run side
# by side on all cores; -n 0 runs them one after the other.
# Without arguments, a run takes a quarter of the tests at 2 ranks, a twelfth at 4, a sixteenth at 8
# and at 3, the same ones each time but others at each number of ranks; and it compiles a sixteenth of
# the kernels.
#   DISTSCAN_WHOLE    1 runs all of them, with data that differ from run to run
#   DISTSCAN_TIMEOUT  seconds for each number of ranks (default: 1800)
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."

export DISTSCAN_TIMEOUT=${DISTSCAN_TIMEOUT:-1800}
(($# == 0)) || export DISTSCAN_WHOLE=1

# ranks NUMBER MPI PART COMMAND...
ranks() {
  local name="$1 ranks, $2" part=$3 status=0
  shift 3
  [[ ${DISTSCAN_WHOLE:-} != 1 ]] || part=1/1
  DISTSCAN_PART=$part launch/stage.sh "$name" "$@" || status=$?
  # All that the arguments pick may be for one rank alone: the others find no test.
  ((status == 0 || status == 5)) || exit "$status"
}

source launch/setup.sh mpich test
launch/browser.sh
# Without mpirun, or each worker would take itself for the rank that it started.
ranks 1 MPICH 1/1 timeout --foreground -k 10 "$DISTSCAN_TIMEOUT" \
  python -m pytest -n auto --dist worksteal "$@"
ranks 2 MPICH 1/4 launch/mpirun.sh 2 python -m pytest "$@"
ranks 4 MPICH 2/12 launch/mpirun.sh 4 python -m pytest "$@"
ranks 8 MPICH 3/16 launch/mpirun.sh 8 python -m pytest "$@"
source launch/setup.sh openmpi test
ranks 3 "Open MPI" 4/16 launch/mpirun.sh 3 python -m pytest "$@"
