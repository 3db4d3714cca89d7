#!/usr/bin/env bash
# Usage: launch/docs.sh
# Executes docs/notebook.ipynb, to see that it works: its outputs are those in the repository. Builds
# the documentation, docs/, into build/docs; a warning is an error. Open build/docs/index.html.
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."
source launch/setup.sh mpich docs service

timeout -k 10 180 python launch/tools/notebook.py # 25 s
# Afresh: a page that has gone would stay, and pages that did not change would not warn again.
rm -rf build/docs docs/generated
python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs -d build/docs/.doctrees
echo "docs: build/docs/index.html"
