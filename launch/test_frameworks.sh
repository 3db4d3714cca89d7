#!/usr/bin/env bash
# Usage: launch/test_frameworks.sh [PYTEST ARGUMENT...]
# Checks the types of the results of distscan.torch, distscan.jax and distscan.xarray.
# Runs the tests of distscan.torch, of its example and of distscan.jax at 1, 2 and 3 ranks, on CPUs,
# in an environment of their own, .venv-frameworks: PyTorch from a package index takes 5 GB. Then a
# twelfth of the first ones at 8 ranks, the tests of process groups, and a fifth of the first ones on
# 2 ranks of torchrun's: gloo's messages are slow.
#   DISTSCAN_TIMEOUT  seconds for each number of ranks (default: 600)
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."

export DISTSCAN_TIMEOUT=${DISTSCAN_TIMEOUT:-600} OMP_NUM_THREADS=1
VENV=.venv-frameworks source launch/setup.sh mpich torch jax test-frameworks
# Without the options in pyproject.toml, which are for an environment without these libraries.
launch/stage.sh "types of their results" timeout "$DISTSCAN_TIMEOUT" \
  mypy --config-file= --strict --follow-imports silent tests/frameworks/signatures.py
for ranks in 1 2 3; do
  launch/stage.sh "PyTorch, $ranks ranks" \
    launch/mpirun.sh "$ranks" python -m pytest tests/frameworks/test_torch.py \
    "tests/repository/test_examples.py::test_example[numpy-long_sequence]" "$@"
  launch/stage.sh "JAX, $ranks ranks" \
    launch/mpirun.sh "$ranks" python -m pytest tests/frameworks/test_jax.py "$@"
done
DISTSCAN_PART=3/12 launch/stage.sh "PyTorch, 8 ranks" \
  launch/mpirun.sh 8 python -m pytest tests/frameworks/test_torch.py "$@"
launch/stage.sh "process groups" python -m pytest tests/frameworks/test_process_group.py "$@"
export DISTSCAN_SEED=${DISTSCAN_SEED:-$RANDOM} # the same on all ranks
DISTSCAN_PART=1/5 launch/stage.sh "torchrun, 2 ranks" timeout -k 10 "$DISTSCAN_TIMEOUT" \
  python -m torch.distributed.run --nproc-per-node 2 -m pytest -q tests/frameworks/test_torch.py "$@"
