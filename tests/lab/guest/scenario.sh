#!/bin/bash
# Runs one scenario file: traces each command, and reports the one that fails.
set -Eeuo pipefail
SCENARIO=$1
exec {trace}>"$OUT/trace"
BASH_XTRACEFD=$trace
# shellcheck source=lib.sh
source /lab/guest/lib.sh
trap 'blame $? "$LINENO" "$BASH_COMMAND"' ERR
trap 'finish $?' EXIT

# blame STATUS LINE COMMAND : reports the line of the scenario that failed, or that called
# the function that failed.
blame() {
    local line=$2 frame
    for ((frame = 1; frame < ${#BASH_SOURCE[@]}; frame++)); do
        [ "${BASH_SOURCE[frame]}" != "$SCENARIO" ] || break
        line=${BASH_LINENO[frame]}
    done
    reason "line $line: $3 (status $1)"
}

# Traces have the time of each command.
PS4='+$EPOCHREALTIME '
set -x
# shellcheck disable=SC1090
source "$SCENARIO"
