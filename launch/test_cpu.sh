#!/usr/bin/env bash
# Usage: launch/test_cpu.sh [--whole]
# Tests the kernels for CPUs in each way in which they are compiled, or replaced:
#   levels      for each level of instructions that this CPU has
#   NEON        for aarch64, by an emulator
#   sanitizers  with AddressSanitizer and UndefinedBehaviorSanitizer
#   NumPy       not at all, as where there is no compiler
# The program tests/cpu compares kernels with plain loops, without Python. Its checksum of all results
# must be the same for all levels and for aarch64.
# With --whole, the whole suite runs at 1 rank for each level, with sanitizers, and with NumPy. Without
# it, a part of the tests of kernels does, another one for each level, and the core tests with NumPy;
# and of the kernels' sources, sanitizers get those of sums.
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."
whole=no
case "$*" in
  "") ;;
  --whole) whole=yes ;;
  *) echo "usage: test_cpu.sh [--whole]" >&2 && exit 2 ;;
esac
source launch/setup.sh mpich test
root=$PWD build=$PWD/build/test_cpu seed=1 jobs=20
[[ $whole == no ]] || seed=$RANDOM jobs=400
echo "the seed of the jobs of tests/cpu: $seed"
mkdir -p "$build"

limited() { timeout --foreground -k 10 "${DISTSCAN_TIMEOUT:-1800}" "$@"; }
# Part I/N of the tests, or, with --whole, all tests: tests I/N FILE...
tests() {
  local part=$1
  shift
  [[ $whole == no ]] || { part=1/1 && set -- -m "not compile"; }
  DISTSCAN_PART=$part limited python -m pytest -q -n auto --dist worksteal "$@"
}
# program COMPILER OUTPUT [FLAG...]
program() {
  "$1" -std=c++20 -O2 -g -Wno-psabi -Wno-ignored-attributes -pthread "${@:3}" \
    tests/cpu/check_kernels.cpp -o "$2" -ldl
}
# The program on a library: COMMAND... The checksum must be that of the first one.
compare() {
  local line
  line=$(limited "$@" "$jobs" "$seed") || { echo "$line" && exit 1; }
  echo "$line"
  if [[ ${checksum:=$line} != "$line" ]]; then
    echo "test_cpu.sh: the bits of results are not those of the first level" >&2
    exit 1
  fi
}

levels=$(python -c 'from distscan.cpu import library
flags = library.cpu_flags()
print(*(name for name, level in library.machine_levels().items() if level.flags <= flags))')
best=${levels%% *}
[[ -n $levels ]] || { echo "test_cpu.sh: there are no kernels for this machine" && exit; }

echo "== levels of instructions: $levels =="
python launch/build_cpu.py --levels "${levels// /,}"
program "${CXX:-g++}" "$build/check_kernels"
for level in $levels; do
  compare "$build/check_kernels" "distscan/cpu/lib/$level.so"
done
part=0
for level in $levels; do
  # launch/test.sh runs all tests for the best level.
  [[ $whole == no && $level == "$best" ]] ||
    DISTSCAN_CPU=$level tests $((part += 1))/12 tests/cpu/test_cpu_*.py
done

echo "== NEON =="
cross=aarch64-linux-gnu-g++ emulator=qemu-aarch64
if ! command -v $cross $emulator >/dev/null; then
  install=(apt-get -o DPkg::Lock::Timeout=60 install -yqq g++-aarch64-linux-gnu qemu-user)
  [[ $EUID == 0 ]] || install=(sudo -n "${install[@]}")
  limited "${install[@]}" &>"$build/apt.log" || tail -n 3 "$build/apt.log" >&2
fi
if command -v $cross $emulator >/dev/null; then
  CXX=$cross python launch/build_cpu.py --levels all --output "$build/aarch64"
  program $cross "$build/aarch64/check_kernels"
  compare $emulator -L /usr/aarch64-linux-gnu "$build/aarch64/check_kernels" \
    "$build/aarch64/armv8-a.so"
else
  echo "test_cpu.sh: NEON IS NOT TESTED: $cross and $emulator are not here, and apt-get cannot" \
    "install them (Debian and Ubuntu: apt install g++-aarch64-linux-gnu qemu-user)" >&2
fi

echo "== sanitizers =="
sanitizers=address,undefined fatal=-fno-sanitize-recover=all
only=sum
[[ $whole == no ]] || only="*"
CXX="${CXX:-g++} $fatal" python launch/build_cpu.py --levels "$best" --output "$build/sanitized" \
  --sanitize $sanitizers --only "$only"
program "${CXX:-g++}" "$build/sanitized/check_kernels" -fsanitize=$sanitizers $fatal
limited "$build/sanitized/check_kernels" "$build/sanitized/$best.so" "$jobs" "$seed"
if [[ $whole == yes ]]; then
  # A copy of the checkout has the sanitized library in the place of the others.
  rm -rf "$build/checkout" && mkdir "$build/checkout"
  cp -r distscan kernels launch tests examples docs pyproject.toml ./*.md "$build/checkout"
  cd "$build/checkout"
  rm distscan/cpu/lib/* && cp "$build/sanitized/$best".* distscan/cpu/lib
  LD_PRELOAD=$("${CXX:-g++}" -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
    PYTHONPATH=$PWD DISTSCAN_CPU=$best tests 1/1 tests/cpu/test_cpu_*.py
  cd "$root"
fi

echo "== NumPy =="
export DISTSCAN_CPU=numpy
tests 1/4 tests/scan/test_{scan,forms,segments,plan,types}.py
