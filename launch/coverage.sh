#!/usr/bin/env bash
# Usage: launch/coverage.sh [PYTEST ARGUMENT...]
# Runs the tests at 1 and at 3 ranks, and prints which lines of distscan/ no rank of either has run.
# Child processes that tests start are measured too. Without arguments, what compiles kernels is left
# out. What needs a GPU is measured where there is one.
#   DISTSCAN_TIMEOUT  seconds for each number of ranks (default: 1800)
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."
source launch/setup.sh mpich test coverage

export DISTSCAN_WHOLE=1 # or a part of the tests would not be measured
(($# > 0)) || set -- -m "not compile"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export COVERAGE_FILE=$dir/data DISTSCAN_TIMEOUT=${DISTSCAN_TIMEOUT:-1800}

# A test that fails ends neither the measurement nor the report, but the exit status says so; that
# the arguments pick no test of one number of ranks is no fault.
worst=0
run() {
  local status=0
  "$@" || status=$?
  ((status == 0 || status == 5)) || worst=1
}
echo "== 1 rank =="
run timeout --foreground -k 10 "$DISTSCAN_TIMEOUT" \
  python -m coverage run -m pytest -n auto --dist worksteal "$@"
echo "== 3 ranks =="
run launch/mpirun.sh 3 python -m coverage run -m pytest "$@"

python -m coverage combine -q
python -m coverage report --show-missing
exit $worst
