#!/bin/bash
# about: two gateways on images of a Ceph cluster, as two ANA paths: the owner is killed, suspended and moved under load: no I/O error, no acknowledged write is lost or undone
# providers: iwarp
# timeout: 300
# long-timeout: 1200
# outside: gateways
source /lab/guest/lib.sh
source /lab/guest/work.sh

# The cluster and the gateways run outside of the guest, see README.md.
losses_expected

rounds=1
[ -z "$LONG" ] || rounds=5
declare -A controllers=()

# gateway NAME : starts it, and connects it if it was not connected yet.
gateway() {
    local port
    port=$(outside gateway "$1")
    [ -z "${controllers[$1]:-}" ] || return 0
    connect -a 10.0.2.2 -s "$port" --reconnect-delay=1 --ctrl-loss-tmo=-1 --keep-alive-tmo=5
    controllers[$1]=$CTRL
}

is_live() {
    CTRL=${controllers[$1]} controller_is live
}

is_lost() {
    ! is_live "$1"
}

# ana_is GATEWAY STATE : of its path in the host.
ana_is() {
    local paths=("/sys/class/nvme/${controllers[$1]}"/nvme*c*n*)
    [ "$(<"${paths[0]}/ana_state")" = "$2" ]
}

# is_member GATEWAY BY : the other gateway knows that it is alive.
is_member() {
    outside ctl "$2" -o json ha |
        field ".gateways[] | select(.gateway == \"$1\") | .state == \"alive\""
}

# standby GATEWAY OTHER : waits until it is live and inaccessible, and the other one knows it.
standby() {
    local listed
    wait_for 60 is_live "$1"
    wait_for 60 ana_is "$1" inaccessible
    wait_for 60 is_member "$1" "$2"
    listed=$(nvme list-subsys "$(device 1)")
    expect_match "list-subsys" "${controllers[$1]} [^+]* live inaccessible" "$listed"
    expect_match "list-subsys" "${controllers[$2]} [^+]* live optimized" "$listed"
}

# stalled LINES : the longest call among those that took half a second, after that number of them.
stalled() {
    tail -n +$(($1 + 1)) "$calls" | awk '$1 == "stall" && $2 > longest { longest = $2 }
        END { print longest + 0 }'
}

# longest WHAT MILLISECONDS : the largest of all rounds is recorded.
declare -A times=()
longest() {
    [ "$2" -le "${times[$1]:--1}" ] || times[$1]=$2
}

# takes_over WHAT GATEWAY COMMAND... : after the command, the gateway has the optimized path. Measures
# when the host knows it.
takes_over() {
    local before from took
    before=$(wc -l <"$calls")
    from=${EPOCHREALTIME/./}
    outside "${@:3}" >/dev/null
    wait_for 60 ana_is "$2" optimized
    took=$(((${EPOCHREALTIME/./} - from) / 1000))
    longest "$1: path optimized after" $took
    began=$before
}

# completed WHAT : I/O continues. Measures the longest call since the last command.
completed() {
    sleep 2
    work_runs
    [ ! -s "$calls.err" ] || fail "$(head -n 1 "$calls.err")"
    longest "$1: longest call" "$(stalled "$began")"
}

# round OWNER OTHER : begins with one as owner and ends with the other.
round() {
    takes_over kill "$2" signal "$1" KILL
    completed kill
    gateway "$1"
    standby "$1" "$2"

    takes_over move "$1" ctl "$2" ha move 1 "$1"
    standby "$2" "$1"
    completed move

    # It continues after the host has sent the commands in flight over the other path, and more.
    takes_over suspend "$2" signal "$1" STOP
    wait_for 60 is_lost "$1"
    completed suspend
    outside signal "$1" CONT
    standby "$1" "$2"
}

calls=$WORK/acknowledged
outside_network
outside cluster
gateway gw1
gateway gw2
wait_for 60 ana_is gw1 optimized
standby gw2 gw1
work_start gateways
acknowledged "$(device 3)" "$WORK/stop" >"$calls" 2>"$calls.err" &
verifier=$!
sleep 1
owner=gw1 other=gw2
for ((number = 1; number <= rounds; number++)); do
    round "$owner" "$other"
    read -r owner other <<<"$other $owner"
done
work_stop
# Scans disturb I/O that waits for a path.
scans=$(dmesg --notime | since_begin | grep 'rescanning namespaces') || true
expect_eq "scans of namespaces whose owner changed" "" "$scans"
wait "$verifier" || fail "$(head -n 1 "$calls.err")"
for what in "${!times[@]}"; do
    [ "${times[$what]}" != 0 ] || times[$what]="below 500"
    record "$what" "${times[$what]} ms"
done
record "verified writes" "$(awk '$1 == "writes" { print $2 }' "$calls")"
disconnect
outside signal gw1 TERM
outside signal gw2 TERM
# Of a suspended owner, after it continued.
errors=$(outside errors | grep -v 'has blocklisted this client') || true
expect_eq "errors of gateways" "" "$errors"
