#!/bin/bash
# about: two paths, all packets of one are dropped under load and pass again later: no I/O error, all data are correct
# providers: iwarp verbs-siw
# timeout: 240
# long-timeout: 900
source /lab/guest/lib.sh
source /lab/guest/work.sh

losses_expected

# Not the device rxe0: it loops packets to itself past every filter.
other=10.10.1.2
seconds=20
[ -z "$LONG" ] || seconds=60

# cut : drops all packets from and to the second address.
cut() {
    local end
    tc qdisc add dev lo clsact
    for end in src dst; do
        tc filter add dev lo egress protocol ip u32 match ip $end "$other/32" action drop
    done
}

heal() {
    tc qdisc del dev lo clsact
}

# lost : whether the host detected that the second path is lost.
lost() {
    ! CTRL=$second controller_is live
}

# over ADDRESS PROVIDER : the first path; the second one is over the provider of the scenario.
over() {
    config "$(disk d1 64M)" "$(disk d2 64M)"
    sed -i "s/^traddr = .*/traddr = \"$1\"/; s/^provider = .*/provider = \"$2\"/" "$CONFIG"
    printf '\n[[port]]\ntraddr = "%s"\ntrsvcid = %s\nprovider = "%s"\n' \
        "$other" "$PORT" "$ENGINE" >>"$CONFIG"
    target_start
    connect -a "$1" --reconnect-delay=1 --ctrl-loss-tmo=-1 --keep-alive-tmo=5
    first=$CTRL
    connect -a "$other" --reconnect-delay=1 --ctrl-loss-tmo=-1 --keep-alive-tmo=5
    second=$CTRL
    echo round-robin | tee /sys/class/nvme-subsystem/*/iopolicy
    work_start "$3"
    # Commands of the second path are in flight.
    cut
    wait_for 30 lost
    sleep "$seconds"
    lost || fail "the path is live although its packets are dropped"
    work_runs
    heal
    CTRL=$second wait_for 60 controller_is live
    sleep 2
    undisturbed "$first"
    work_stop
    disconnect
    target_stop
}

ip address add "$other/24" dev dm1
over "$ADDRESS" "$ENGINE" "path cut, two addresses"
[ -z "$LONG" ] || over 10.10.0.1 verbs "path cut, two transports"
