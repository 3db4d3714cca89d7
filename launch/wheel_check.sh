#!/usr/bin/env bash
# Usage: launch/wheel_check.sh [DIRECTORY]
# Builds the source archive and from it the wheel, installs the wheel into an empty environment, and
# runs it outside the repository. Both stay if a DIRECTORY for them is given.
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
keep=
[[ $# == 0 ]] || keep=$(mkdir -p -- "$1" && cd -- "$1" && pwd)
cd "$(dirname "$0")/.."
source launch/setup.sh mpich lint
mpirun=$PWD/launch/mpirun.sh
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

python -m build --outdir "$dir/dist" >"$dir/log" || { cat "$dir/log" && exit 1; }
wheel=$(echo "$dir"/dist/*.whl)
python -m venv "$dir/venv"
PATH=$dir/venv/bin:$PATH
unset PYTHONPATH
cd "$dir"
python -m pip install -q "${wheel}[mpich]"

python - <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path

import distscan
import numpy as np

package = Path(distscan.__file__).parent
assert package.is_relative_to(sys.prefix), f"{package} is not the installed package"
assert distscan.__version__ == version("distscan"), f"the wheel is {version('distscan')}"
kernels = "scan.cu", "base/tile.cuh", "textbook/chains/look_ahead.cuh"
for name in ("py.typed", *(f"kernels/{name}" for name in kernels)):
    assert (package / name).is_file(), f"{name} is not in the wheel"
assert (package / "bench" / "cub.cu").is_file(), "bench/cub.cu is not in the wheel"
assert not list(package.rglob("*.svg")), "pictures of figures are in the wheel"
np.save("x.npy", np.random.default_rng(0).integers(-9, 9, 100_003))
PYTHON
"$mpirun" 2 python -m distscan x.npy
python -c 'import numpy as np
np.testing.assert_array_equal(np.load("x.scan.npy"), np.load("x.npy").cumsum())'
echo "wheel_check: ${wheel##*/} installs and scans"
[[ -z $keep ]] || cp "$dir"/dist/* "$keep"
