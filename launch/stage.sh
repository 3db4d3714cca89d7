#!/usr/bin/env bash
# Usage: launch/stage.sh NAME COMMAND...
# Runs COMMAND under a headline, says how many seconds it took and whether a time limit ended it, and
# exits as it does.
set -euo pipefail
name=$1 status=0
shift
echo "== $name =="
"$@" || status=$?
((status != 124 && status != 137)) || echo "stage.sh: $name: a time limit ended it" >&2
echo "== $name: $SECONDS s, status $status =="
exit "$status"
