#!/usr/bin/env bash
# Checks that `.ci/run` ends with 0 where every stage has passed, and with something else where one has
# not, whichever of its two rows ends first: on a clone whose stages only sleep.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet "$root" "$work/clone"
cd "$work/clone"
for stage in .ci/stages/*.sh; do
    echo "sleep 0.1" >"$stage"
done

# Runs with one slow stage and, unless empty, one failing stage of the other row; the status that is wanted, which is
# also how many have failed.
expect() {
    local slow=$1 failing=$2 wanted=$3 status=0
    echo "sleep 2" >".ci/stages/$slow.sh"
    [ -z "$failing" ] || echo "exit 1" >".ci/stages/$failing.sh"
    HEADWAY_CI_OUT=$work/out bash .ci/run >"$work/log" 2>&1 || status=$?
    if [ "$status" -ne "$wanted" ] || ! grep -q "passed, $wanted failed" "$work/log"; then
        echo ".ci/run with slow '$slow' and failing '$failing': status $status, wanted $wanted"
        cat "$work/log"
        exit 1
    fi
    git checkout --quiet .ci/stages
    for stage in .ci/stages/*.sh; do
        echo "sleep 0.1" >"$stage"
    done
}

expect test "" 0
expect hygiene "" 0
expect test hygiene 1
expect hygiene test 1
