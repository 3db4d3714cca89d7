#!/usr/bin/env bash
# Usage: launch/lint.sh
# Format, style, types, the order of imports, what may be unsafe, and the format of C++; changes nothing.
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."
source launch/setup.sh mpich lint

ruff format --check
ruff check
mypy
mypy tests/signatures
lint-imports --no-logo
bandit -q -c pyproject.toml -r distscan launch
git ls-files -z '*.cu' '*.cuh' '*.cpp' '*.hpp' | xargs -0 clang-format --dry-run -Werror
