#!/usr/bin/env bash
# Usage: launch/wheel_check.sh [WHEEL]
# Installs a wheel into an empty environment, and runs it outside the repository. Without WHEEL, builds
# it, by way of the source archive, with kernels for the lowest level of this machine; and checks that
# it can also be built without a C++ compiler.
#   PYTHONS  more Pythons, such as "python3.10 python3.14t": the fast tests run in each, with the wheel
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
wheel=${1:+$(realpath -- "$1")}
cd "$(dirname "$0")/.."
source launch/setup.sh mpich wheels
root=$PWD mpirun=$PWD/launch/mpirun.sh
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

[[ -z $wheel || ${wheel##*/} == *-py3-none-manylinux*.whl ]] ||
  { echo "wheel_check.sh: ${wheel##*/} is not for every Python and Linux" >&2 && exit 1; }
# A wheel that is published has kernels for GPUs, too; one of a checkout has none.
archives=$([[ -z $wheel ]] || echo sm_80 sm_90 sm_100 sm_120)
if [[ -z $wheel ]]; then
  build() { python -m build "$@" &>"$dir/log" || { cat "$dir/log" && exit 1; }; }
  CXX=false build --wheel --outdir "$dir/pure"
  grep -q "no compiled kernels" "$dir/log"
  ls "$dir"/pure/*-py3-none-any.whl >"$dir/log"
  level=$(python -c 'from distscan.cpu import library; print(*list(library.machine_levels())[-1:])')
  DISTSCAN_CPU_LEVELS=${level:-native} build --outdir "$dir/dist"
  wheel=$(echo "$dir"/dist/*.whl)
fi
python -m venv "$dir/venv"
PATH=$dir/venv/bin:$PATH
unset PYTHONPATH
cd "$dir"
python -m pip install -q "${wheel}[mpich]"

python - $archives <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path

import distscan
import numpy as np
from distscan.cpu import library

package = Path(distscan.__file__).parent
assert package.is_relative_to(sys.prefix), f"{package} is not the installed package"
assert distscan.__version__ == version("distscan"), f"the wheel is {version('distscan')}"
kernels = "scan.cu", "base/tile.cuh", "textbook/chains/look_ahead.cuh"
page = "service/page/index.html", "service/page/main.js"
for name in ("py.typed", "service/openapi.json", *page, *(f"kernels/{name}" for name in kernels)):
    assert (package / name).is_file(), f"{name} is not in the wheel"
compiled = {f"{name}.zip" for name in sys.argv[1:]}
assert {path.name for path in package.glob("cuda/compiled/*")} == compiled
for source in ("cub.cu", "tbb.cpp"):
    assert (package / "bench" / source).is_file(), f"bench/{source} is not in the wheel"
pictures = [path for path in package.rglob("*.svg") if path.parent != package / "service/page"]
assert not pictures, f"pictures of figures are in the wheel: {pictures}"
import distscan.service.client_async  # clients of a service need none of its extra
found = library.load()
assert found is not None, "the wheel has no kernels for this CPU"
assert Path(found.handle._name).is_relative_to(package), f"{found} is not the installed library"
levels = ", ".join(library.built_levels())
print(f"wheel_check: kernels for CPUs with {levels}; this one takes {found.name}")
np.save("x.npy", np.random.default_rng(0).integers(-9, 9, 100_003))
PYTHON
"$mpirun" 2 python -m distscan x.npy
python -c 'import numpy as np
np.testing.assert_array_equal(np.load("x.scan.npy"), np.load("x.npy").cumsum())'
echo "wheel_check: ${wheel##*/} installs and scans"

# The repository's tests without its package: they import the wheel's.
mkdir "$dir/tests"
cp -r "$root"/{tests,launch,pyproject.toml} "$dir/tests"
cd "$dir/tests"
for python in ${PYTHONS:-}; do
  "$python" -m venv --clear "$dir/venv"
  name=$(python -c 'import sys; print(f"Python {sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}")')
  python -m pip install -q --only-binary :all: "${wheel}[mpich]" \
    ml_dtypes pytest pytest-mpi pytest-timeout typing_extensions
  python -W error -c "import distscan" # a free-threaded Python warns if a package needs the lock
  "$root/launch/stage.sh" "$name" timeout -k 10 600 python -m pytest -q -m fast
  "$mpirun" 2 python -m distscan "$dir/x.npy" --force --check --quiet
done
