#!/bin/bash
# about: namespaces, ANA states, hosts and ports change under I/O; hosts see each within a second
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

# What is taken away on purpose.
dmesg_expect 'nvme nvme[0-9]+: .*(failed|rejected|error|[Rr]econnect|dying|resetting|creating|ANA group|rescanning)'
dmesg_expect 'no usable path|callbacks suppressed|nvme_rdma|Connect for subsystem|(siw|rxe)[0-9]*: |capacity change'

# ctl ARGUMENT... : changes the running target.
ctl() {
    nvmeof-target ctl --socket "$WORK/control.sock" "$@"
}

# seen WHAT COMMAND... : the host sees it within a second of the change;
# guests are slow, so the time is the host's own, from change to event.
seen() {
    local what=$1 begin=${EPOCHREALTIME/./} took
    shift
    until "$@" >/dev/null 2>&1; do
        took=$(((${EPOCHREALTIME/./} - begin) / 1000))
        [ "$took" -le 1000 ] || fail "$what: not seen within a second"
    done
    record "$what" "$(((${EPOCHREALTIME/./} - begin) / 1000)) ms"
}

blocks_are() {
    [ "$(cat "/sys/class/block/$(basename "$(device "$1")")/size")" = "$2" ]
}
gone() {
    ! device "$1"
}
# ana_is NSID STATE : what the controller CTRL says of a namespace. Linux numbers
# them as it finds them.
ana_is() {
    local path
    for path in /sys/class/nvme/"$CTRL"/nvme*c*n*; do
        [ "$(cat "$path/nsid")" != "$1" ] || break
    done
    [ "$(cat "$path/nsid") $(cat "$path/ana_state")" = "$1 $2" ]
}

# write NAME DEVICE DEPTH : writes and verifies all the while.
write() {
    fio --name="$1" --filename="$2" --rw=randwrite --bs=4k --iodepth="$3" --size=24M \
        --loops=1000 --time_based --runtime=60 --verify=crc32c --verify_fatal=1 \
        --verify_backlog=512 --ioengine=io_uring --direct=1 --output-format=json \
        --aux-path="$WORK" --output="$OUT/$1.json" 2>"$OUT/$1.err"
}

host=$(cat /etc/nvme/hostnqn)
other=nqn.2026-11.org.example:other

config "$(disk d1 64M)"
namespace 2 "$(disk d2 16M)"
printf '\n[[subsystem]]\nnqn = "%s"\nallowed_hosts = ["%s"]\n' "$NQN-other" "$other" >>"$CONFIG"
namespace 1 "$(disk d4 32M)"
namespace 2 "$(disk d5 16M)" "ana_group = 2"
sed -i "1i [control]\nsocket = \"$WORK/control.sock\"\nstate = \"$WORK/state.json\"\n" "$CONFIG"
target_start
connect --ctrl-loss-tmo=20
ours=$CTRL
# Another host, with a subsystem of its own.
NQN=$NQN-other connect --ctrl-loss-tmo=20 -q "$other" \
    -I 1ab00000-0000-4000-8000-000000000002
theirs=$CTRL
their_disk=$(device 1)
CTRL=$ours
dmesg_expect "(block|dev) ${their_disk#/dev/}.*(no available path|error|sector)"

write ours "$(device 1)" 8 &
our_io=$!
{ write theirs "$their_disk" 2 || touch "$WORK/theirs.failed"; } &
their_io=$!
sleep 1

ctl namespace add --subsystem "$NQN" --nsid 3 "$(disk d3 16M)"
seen "namespace added" device 3
third=$(device 3)
dd if=/dev/urandom of="$third" bs=1M count=4 oflag=direct status=none
cmp -n 4194304 "$third" "$WORK/d3" || fail "the added namespace has other data"

ctl namespace resize 3 32M --subsystem "$NQN"
seen "namespace resized" blocks_are 3 65536
truncate -s 48M "$WORK/d3"
ctl namespace resize 3 --subsystem "$NQN"
seen "file grown" blocks_are 3 98304

ctl namespace disable 3 --subsystem "$NQN"
seen "namespace disabled" gone 3
ctl namespace enable 3 --subsystem "$NQN"
seen "namespace enabled" device 3

ctl ana set 1 non-optimized
seen "ANA state" ana_is 1 non-optimized
ctl ana set 1 optimized
seen "ANA state back" ana_is 1 optimized

ctl namespace remove 2 --subsystem "$NQN"
seen "namespace removed" gone 2

# A group that ours does not use: the other host loses its second namespace,
# and gets it back.
CTRL=$theirs
ctl ana set 2 inaccessible
seen "ANA state of the other host" ana_is 2 inaccessible
ctl ana set 2 optimized
seen "ANA state of the other host back" ana_is 2 optimized

# The other host is denied in the middle of its I/O, while ours goes on.
[ -d "/proc/$their_io" ] || fail "the other host's I/O ended before it was denied"
ctl host deny "$other" --subsystem "$NQN-other"
denied() {
    [ ! -e "/sys/class/nvme/$theirs" ] || ! controller_is live
}
seen "host denied" denied
CTRL=$ours
expect_match "what the denied host is told" 'not in allowed_hosts|not allowed|Connect Invalid Host' \
    "$(NQN=$NQN-other expect_fail initiator id-ctrl -q "$other")"
wait "$their_io"
[ -e "$WORK/theirs.failed" ] || fail "the I/O of the denied host came to a good end"
ctl host allow "$other" --subsystem "$NQN-other"
NQN=$NQN-other initiator id-ctrl -q "$other" >/dev/null

# A port more, and less.
ctl port add "$ADDRESS:4421" --provider "$ENGINE"
PORT=4421 initiator id-ctrl -q "$host" >/dev/null
ctl port remove "$ADDRESS:4421"
PORT=4421 expect_fail initiator id-ctrl -q "$host" >/dev/null

[ -d "/proc/$our_io" ] || fail "the I/O ended before the changes did"
wait "$our_io" || fail "$(fio_complaint "$OUT/ours.json")"
expect_eq "errors of fio" 0 "$(fio_report "$OUT/ours.json" | field '.jobs[0].error')"

# What was changed is there again after a crash.
target_kill
target_start
wait_for 20 controller_is live
blocks_are 3 98304 || fail "the third namespace is not as it was before the crash"
gone 2 || fail "the second namespace came back"

# The host itself is denied: its connections end, and it stays out.
ctl host allow --only "$host" --subsystem "$NQN"
ctl host deny "$host" --subsystem "$NQN"
wait_for 20 target_logged "host.*$host.*(not in allowed_hosts|disconnected)|disconnected.*$host"
expect_fail initiator id-ctrl -q "$host" >/dev/null
disconnect
target_stop
