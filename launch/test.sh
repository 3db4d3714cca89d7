#!/usr/bin/env bash
# Usage: launch/test.sh [PYTEST ARGUMENT...]
# Runs the tests at 1, 2, 4 and 8 ranks under MPICH and at 3 under Open MPI.
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."

source launch/setup.sh mpich test
for ranks in 1 2 4 8; do
  echo "== $ranks ranks, MPICH =="
  launch/mpirun.sh "$ranks" python -m pytest "$@"
done

source launch/setup.sh openmpi test
echo "== 3 ranks, Open MPI =="
launch/mpirun.sh 3 python -m pytest "$@"
