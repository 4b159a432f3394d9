#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME each (default 10s), one
# after the other: go test -fuzz takes only one target at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${FUZZTIME:=10s}"

found=0
while IFS= read -r dir; do
    for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | sed 's/^func //' | sort -u); do
        echo "== $dir $target"
        go test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$dir"
        found=$((found + 1))
    done
done < <(grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -r -n1 dirname | sort -u)
echo "$found fuzz targets passed"
