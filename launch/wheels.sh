#!/usr/bin/env bash
# Usage: launch/wheels.sh [DIRECTORY]
# Builds what is published, into DIRECTORY (default: dist): the source archive, and from it the wheel
# of this machine, with kernels for all levels of its CPUs. With aarch64-linux-gnu-g++, also the wheel
# of aarch64. auditwheel finds the oldest C library that a wheel runs with, and names the wheel by it.
# All wheels have the kernels of the commonest scans for GPUs, which an NVRTC of CUDA 12 compiles: their
# code runs with drivers of CUDA 12 and later.
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
out=$(mkdir -p -- "${1:-dist}" && cd -- "${1:-dist}" && pwd)
cd "$(dirname "$0")/.."
source launch/setup.sh mpich wheels
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Runs a command; shows its output if it fails.
quiet() { "$@" &>"$dir/log" || { cat "$dir/log" >&2 && exit 1; }; }

quiet python -m build --sdist --outdir "$dir" .
mkdir "$dir/source"
tar -xf "$dir"/distscan-*.tar.gz -C "$dir/source" --strip-components 1

(
  VENV=.venv-kernels
  source launch/setup.sh mpich kernels
  cd "$dir/source"
  quiet python -m distscan warm --ops sum,max --arch 80,90,100,120 --output distscan/cuda/compiled
)

compilers=("${CXX:-}")
cross=aarch64-linux-gnu-g++
if [[ $(uname -m) != aarch64 ]] && command -v "$cross" >/dev/null; then
  compilers+=("$cross")
fi
for compiler in "${compilers[@]}"; do
  CXX=$compiler DISTSCAN_CPU_LEVELS=all \
    quiet python -m build --wheel --outdir "$dir/wheels" "$dir/source"
done
quiet python -m auditwheel repair --wheel-dir "$dir" "$dir"/wheels/*.whl

for file in "$dir"/*.tar.gz "$dir"/*.whl; do
  cp "$file" "$out"
  echo "$(($(wc -c <"$file") / 1024)) KiB  ${file##*/}"
done
