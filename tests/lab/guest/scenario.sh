#!/bin/bash
# Runs one scenario file: every command is traced, a failing one is named.
set -Eeuo pipefail
SCENARIO=$1
exec {trace}>"$OUT/trace"
BASH_XTRACEFD=$trace
# shellcheck source=lib.sh
source /lab/guest/lib.sh
trap 'blame $? "$LINENO" "$BASH_COMMAND"' ERR
trap 'finish $?' EXIT

# blame STATUS LINE COMMAND : names the line of the scenario that failed, or
# that called what failed.
blame() {
    local line=$2 frame
    for ((frame = 1; frame < ${#BASH_SOURCE[@]}; frame++)); do
        [ "${BASH_SOURCE[frame]}" != "$SCENARIO" ] || break
        line=${BASH_LINENO[frame]}
    done
    reason "line $line: $3 (status $1)"
}

# When each command began, to see where the time goes.
PS4='+$EPOCHREALTIME '
set -x
# shellcheck disable=SC1090
source "$SCENARIO"
