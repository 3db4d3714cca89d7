#!/usr/bin/env bash
# Usage: launch/serve.sh COMMAND...
# Runs a service, and starts it again after a crash. COMMAND starts its ranks:
#   launch/serve.sh mpirun -n 8 python -m distscan serve --root /data
# It waits 1 s before it starts the service again, then 2 s, 4 s, and so on up to 60 s; and 1 s again
# after a run of 600 s. It ends as the service does, if that ends well, or with status 2: a bad argument.
# SIGTERM, SIGINT and SIGHUP end the service, after the job that runs.
#   DISTSCAN_BACKOFF  other numbers of whole seconds (default: "1 60 600")
set -euo pipefail

fail() {
  echo "serve.sh: $1" >&2
  exit 2
}

(($# > 0)) || fail "usage: serve.sh COMMAND..."
numbers=${DISTSCAN_BACKOFF:-1 60 600}
[[ $numbers =~ ^[0-9]+\ [0-9]+\ [0-9]+$ ]] || fail "DISTSCAN_BACKOFF is such as '1 60 600', not '$numbers'"
read -r first most long <<<"$numbers"

# Launchers hand SIGUSR1 on to the ranks; at SIGTERM, mpirun of Open MPI and srun kill them.
child='' ends=no signals=0
trap 'ends=yes signals=$((signals + 1)); kill -USR1 "$child" 2>/dev/null || true' TERM INT HUP

# Runs a command until its end, and sets its status: a signal ends the shell's wait, not the command.
run() {
  local seen
  "$@" &
  child=$!
  [[ $ends == no ]] || kill -USR1 "$child" || true # the signal came before there was a child
  until
    seen=$signals status=0
    wait "$child" || status=$?
    ((signals == seen))
  do :; done
}

delay=$first
while [[ $ends == no ]]; do
  begun=$SECONDS
  run "$@"
  [[ $ends == no && $status != 0 && $status != 2 ]] || exit "$status"
  ((SECONDS - begun < long)) || delay=$first
  echo "serve.sh: the service ended with status $status; it starts again in $delay s" >&2
  run sleep "$delay"
  delay=$((delay * 2 < most ? delay * 2 : most))
done
