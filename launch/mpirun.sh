#!/usr/bin/env bash
# Usage: launch/mpirun.sh N COMMAND...
# Runs COMMAND on N ranks and exits as it does. Among several, every line of output says its rank.
#   MPIRUN            the mpirun to use (default: the first on PATH)
#   DISTSCAN_TIMEOUT  seconds after which the run is ended, with exit status 124 (default: 600)
#   DISTSCAN_LABELS   0 leaves the ranks' labels out, for output that a program reads
set -euo pipefail

fail() {
  echo "mpirun.sh: $1" >&2
  exit 2
}

mpirun=${MPIRUN:-mpirun} limit=${DISTSCAN_TIMEOUT:-600}
[[ $# -ge 2 && $1 =~ ^[1-9][0-9]*$ ]] || fail "usage: mpirun.sh N COMMAND..."
[[ $limit =~ ^[1-9][0-9]*$ ]] || fail "DISTSCAN_TIMEOUT is whole seconds, not '$limit'"
command -v "$mpirun" >/dev/null || fail "there is no '$mpirun' on PATH"
ranks=$1 options=(-n "$1")
shift

# Open MPI refuses root, which is who one is in a container.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Its bindings would put two runs on the same cores; only what -x names reaches other nodes.
open_mpi=(--bind-to none ${PYTHONPATH:+-x PYTHONPATH})
case $("$mpirun" --version 2>&1) in
  # It also refuses more ranks than cores.
  *"(Open MPI) "[1-4].*) options+=("${open_mpi[@]}" --oversubscribe) label=(--tag-output) ;;
  *"(Open MPI)"*) options+=("${open_mpi[@]}" --map-by :OVERSUBSCRIBE) label=(--output tag) ;;
  *HYDRA* | *Intel*) label=(-prepend-rank) ;;
  *) label=() ;;
esac
if [[ $ranks != 1 && ${DISTSCAN_LABELS:-1} != 0 ]]; then
  options+=("${label[@]}")
  unset PYTHONUNBUFFERED # Python would write lines in pieces, and a label lands in front of each
fi
[[ -t 1 ]] || export NO_COLOR=1 # Open MPI shows the ranks a terminal even where there is none

status=0
# In the foreground, or Ctrl-C would not reach mpirun.
timeout --foreground -k 10 "$limit" "$mpirun" "${options[@]}" "$@" || status=$?
if ((SECONDS >= limit)) && [[ $status == 124 || $status == 137 ]]; then
  echo "mpirun.sh: ended after $limit s: $*" >&2
  exit 124
fi
exit "$status"
