#!/usr/bin/env bash
# Usage: launch/demo.sh [DIRECTORY]
# Finds where each line of Python's own sources ends, by scanning the lines' lengths on 8 ranks,
# and proves every offset. The files stay if a DIRECTORY for them is given.
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where

if [[ $# -gt 0 ]]; then
  mkdir -p -- "$1"
  dir=$(cd -- "$1" && pwd)
else
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
fi
cd "$(dirname "$0")/.."
source launch/setup.sh mpich

python launch/demo.py build "$dir"
launch/mpirun.sh 8 python -m distscan "$dir/lines.npy" --check --force
python launch/demo.py prove "$dir"
