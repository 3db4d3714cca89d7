#!/usr/bin/env bash
# Usage: launch/parts.sh RANKS PARTS [PYTEST ARGUMENT...]
# Runs the tests at RANKS ranks in PARTS jobs side by side, each with its part of them: together they
# run every test once. What a job printed is shown if it fails; the counts of all are added up. Test
# files that need a package that is not installed are named.
#   PYTHON            the interpreter (default: python)
#   DISTSCAN_TIMEOUT  seconds after which the jobs are ended (default: 600)
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."

if [[ $# -lt 2 || ! $1 =~ ^[1-9][0-9]*$ || ! $2 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: parts.sh RANKS PARTS [PYTEST ARGUMENT...]" >&2
  exit 2
fi
ranks=$1 parts=$2
shift 2
logs=$(mktemp -d)
set -m # each job is a process group, which the end of this script ends
trap 'for job in $(jobs -p); do kill -- "-$job" || true; done 2>/dev/null; rm -r "$logs"' EXIT

jobs=()
for ((part = 1; part <= parts; part++)); do
  DISTSCAN_PART=$part/$parts launch/mpirun.sh "$ranks" "${PYTHON:-python}" -m pytest -rs "$@" \
    </dev/null &>"$logs/$part" &
  jobs+=($!)
done

passed=0 failed=0
for ((part = 1; part <= parts; part++)); do
  status=0
  wait "${jobs[part - 1]}" || status=$?
  case $status in
    0) passed=$((passed + 1)) ;;
    5) ;; # the arguments pick no test of this part
    *)
      failed=$((failed + 1))
      cat "$logs/$part"
      echo "parts.sh: part $part of $parts failed, with status $status" >&2
      ;;
  esac
done

# The counts stand in each job's last line, such as "[0] 6 passed, 1 skipped in 7.07s".
counts=$(grep -ahE '[0-9]+ [a-z]+.* in [0-9.]+s' "$logs"/* |
  grep -oE '[0-9]+ (passed|failed|skipped|xfailed|xpassed|error)' |
  awk '{sum[$2] += $1} END {for (what in sum) printf "%d %s, ", sum[what], what}' || true)
echo "$ranks ranks, $parts parts: ${counts:-no tests, }$failed parts failed, $SECONDS s"
grep -ahoE 'tests/\S+ \S+ is not installed' "$logs"/* | sort -u || true
((failed == 0)) || exit 1
((passed > 0)) || exit 5
