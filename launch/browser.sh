#!/usr/bin/env bash
# Usage: launch/browser.sh
# Installs chromium and its chromedriver by apt-get, for the tests of the service's page, unless a
# browser is here. Where that cannot be done it says so; these tests are skipped then, but not in CI.
set -euo pipefail

browser=$(command -v chromium chromium-browser google-chrome | head -n 1) || true
[[ -z $browser ]] || ! command -v chromedriver >/dev/null || exit 0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
as_root=()
[[ $EUID == 0 ]] || as_root=(sudo -n)
get() {
  DEBIAN_FRONTEND=noninteractive timeout --foreground -k 10 600 \
    "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=60 -yqq "$@" &>>"$log"
}
echo "browser.sh: installing chromium and its chromedriver" >&2
if ! { get update && get install --no-install-recommends chromium chromium-driver; }; then
  tail -n 3 "$log" >&2
  echo "browser.sh: there is no browser, and apt-get cannot install one (Debian: apt install" \
    "chromium chromium-driver)" >&2
fi
