#!/usr/bin/env bash
# Usage: launch/release_check.sh TAG
# Checks that TAG is v and the version in distscan/version.py, and that CHANGELOG.md begins with
# that version, dated, and with nothing unreleased above it. Prints the version's changes.
set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where
cd "$(dirname "$0")/.."

fail() {
  echo "release_check.sh: $1" >&2
  exit 1
}

[[ $# == 1 ]] || { echo "usage: release_check.sh TAG" >&2 && exit 2; }
version=$(sed -n 's/^__version__ = "\([^"]*\)".*/\1/p' distscan/version.py)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+ ]] || fail "distscan/version.py has no version, but '$version'"
[[ $1 == "v$version" ]] || fail "the tag is $1, the version $version"

# All sections but an empty "Unreleased", then the first of them.
sections=$(sed -n '/^## /,$p' CHANGELOG.md | sed -e '1{/^## Unreleased$/d}' | sed '/./,$!d')
heading=${sections%%$'\n'*}
[[ $heading =~ ^"## $version - "[0-9]{4}-[0-9]{2}-[0-9]{2}$ ]] ||
  fail "in CHANGELOG.md, '## $version - YEAR-MONTH-DAY' should stand where '$heading' does"
changes=$(sed -e 1d -e '/^## /,$d' <<<"$sections")
[[ $changes =~ [^[:space:]] ]] || fail "CHANGELOG.md has no changes of $version"
echo "$changes"
