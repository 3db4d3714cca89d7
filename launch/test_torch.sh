#!/usr/bin/env bash
# Usage: launch/test_torch.sh [PYTEST ARGUMENT...]
# Runs the tests of distscan.torch, and its example, at 1, 2 and 3 ranks, on CPUs, in an environment
# of their own, .venv-torch: PyTorch from a package index takes 5 GB.
#   DISTSCAN_TIMEOUT  seconds for each number of ranks (default: 600)
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."

export DISTSCAN_TIMEOUT=${DISTSCAN_TIMEOUT:-600} OMP_NUM_THREADS=1
VENV=.venv-torch source launch/setup.sh mpich torch test-torch
for ranks in 1 2 3; do
  launch/stage.sh "PyTorch, $ranks ranks" \
    launch/mpirun.sh "$ranks" python -m pytest tests/frameworks/test_torch.py \
    "tests/repository/test_documentation.py::test_example[long_sequence.py]" "$@"
done
