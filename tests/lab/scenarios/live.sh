#!/bin/bash
# about: namespaces, ANA states, hosts and ports change under I/O; hosts see each change within a second
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

# Messages about objects that the scenario removes.
dmesg_expect 'nvme nvme[0-9]+: .*(failed|rejected|error|[Rr]econnect|dying|resetting|creating|ANA group|rescanning)'
dmesg_expect 'no usable path|callbacks suppressed|nvme_rdma|Connect for subsystem|(siw|rxe)[0-9]*: |capacity change'

# ctl ARGUMENT... : changes the running target.
ctl() {
    nvmeof-target ctl --socket "$WORK/control.sock" "$@"
}

# The kernel tells when something happened; so that all times are of one clock, what we
# see is written there, too.
trace=/sys/kernel/tracing
mount -t tracefs tracefs $trace
echo mono >$trace/trace_clock
for event in nvme/nvme_async_event syscalls/sys_enter_connect; do
    echo 1 >$trace/events/$event/enable
done
# No data arrive here: a shell can wait on it without another process.
exec {never}<> <(:)
# Namespace Attribute Changed and Asymmetric Namespace Access Change, each with its log
# page, as the answer to an Asynchronous Event Request says it.
namespace_changed=0x040002
access_changed=0x0c0302

# seen WHAT EVENT CHECK COMMAND... : the command has ctl change the target, and the host
# of CTRL hears of it and sees it within a second. The second begins when ctl connects to
# the target to ask for the change: what starting a program takes in an emulated guest is
# not meant, opening and saving in the target is. It must be over neither when the kernel
# has the EVENT ("-": there is none, its connections end) nor when CHECK is true, which
# is all of the host's own work. Both times are recorded.
seen() {
    local what=$1 event=$2 check=$3 making heard took
    shift 3
    : >$trace/trace
    "$@" >"$WORK/made" 2>&1 &
    making=$!
    until_true "$check"
    wait "$making" || fail "$what: $(<"$WORK/made")"
    read -r heard took < <(times "$event") || fail "$what: ctl did not connect to the target"
    [ "$took" != none ] || fail "$what: not seen within 10 seconds"
    [ "$event" != - ] || heard=$took
    [ "$heard" != none ] || fail "$what: the host had no event $event"
    record "$what" "heard of after $heard ms, seen after $took ms"
    [ "$heard" -le 1000 ] || fail "$what: heard of after $heard ms"
    [ "$took" -le 1000 ] || fail "$what: seen after $took ms, heard of after $heard ms"
}

# until_true CHECK : tells the trace when it is true, unless that takes 10 seconds. CHECK
# starts no program, which would take longer than what is measured.
until_true() {
    local - tries
    set +x
    for ((tries = 0; tries < 2000; tries++)); do
        if eval "$1" 2>/dev/null; then
            echo seen >$trace/trace_marker
            return
        fi
        read -rt 0.005 -u "$never" || true
    done
}

# times EVENT : milliseconds from when the target was asked until the event, and until it
# was seen, or "none". An event from before was about something else, unless the target
# may have noticed by itself (BY_ITSELF=yes): that took no time.
times() {
    awk -v event="$CTRL: NVME_AEN=$1" -v early="${BY_ITSELF:-}" '
        function since(at) { return !at ? "none" : at > asked ? int(at - asked) : 0 }
        { match($0, /[0-9]+\.[0-9]+:/); at = substr($0, RSTART, RLENGTH) * 1000 }
        /sys_connect\(/ && !asked { asked = at }
        index($0, event) && (asked || early) && !heard { heard = at }
        /tracing_mark_write: seen/ { seen = at }
        END { if (asked) print since(heard), since(seen) }' $trace/trace
}

# head_of NSID : sets HEAD to the folder of a namespace of the controller CTRL.
head_of() {
    local subsystem nsid
    for subsystem in /sys/class/nvme-subsystem/*; do
        [ -e "$subsystem/$CTRL" ] || continue
        for HEAD in "$subsystem"/nvme*n[0-9]*; do
            ! read -r nsid <"$HEAD/nsid" || [ "$nsid" != "$1" ] || return 0
        done
    done
    return 1
}
there() {
    head_of "$1" && [ -b "/dev/${HEAD##*/}" ]
}
gone() {
    ! head_of "$1"
}
blocks_are() {
    local blocks
    head_of "$1" && read -r blocks <"$HEAD/size" && [ "$blocks" = "$2" ]
}
# ana_is NSID STATE : what the controller CTRL says of a namespace. Linux numbers
# them as it finds them.
ana_is() {
    local path nsid state
    for path in /sys/class/nvme/"$CTRL"/nvme*c*n*; do
        read -r nsid <"$path/nsid" && read -r state <"$path/ana_state"
        [ "$nsid $state" != "$1 $2" ] || return 0
    done
    return 1
}
denied() {
    local state
    ! read -r state <"/sys/class/nvme/$theirs/state" || [ "$state" != live ]
}

# write NAME DEVICE DEPTH : writes and verifies until all is changed, or it fails. It has
# a rest now and then: a host whose cpus have no time left for anything else is not
# what is asked about, and emulated ones are soon like that.
write() {
    until [ -e "$WORK/changed" ]; do
        fio --name="$1" --filename="$2" --rw=randwrite --bs=4k --iodepth="$3" --size=24M \
            --loops=1000 --time_based --runtime=10 --verify=crc32c --verify_fatal=1 \
            --verify_backlog=512 --thinktime=10ms --thinktime_blocks=16 \
            --ioengine=io_uring --direct=1 --output-format=json \
            --aux-path="$WORK" --output="$OUT/$1.json" 2>"$OUT/$1.err" || return
    done
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

# An emulator translates code when it runs for the first time, and takes longer for that
# than for what is measured. So what is changed is changed once before.
ctl namespace add --subsystem "$NQN" --nsid 5 "$(disk d7 16M)"
wait_for 10 there 5
ctl namespace resize 5 32M --subsystem "$NQN"
ctl namespace remove 5 --subsystem "$NQN"
wait_for 10 gone 5
ctl ana set 1 non-optimized
wait_for 10 ana_is 1 non-optimized
ctl ana set 1 optimized
wait_for 10 ana_is 1 optimized

seen "namespace added" "$namespace_changed" 'there 3' \
    ctl namespace add --subsystem "$NQN" --nsid 3 "$(disk d3 16M)"
third=$(device 3)
dd if=/dev/urandom of="$third" bs=1M count=4 oflag=direct status=none
cmp -n 4194304 "$third" "$WORK/d3" || fail "the added namespace has other data"

seen "namespace resized" "$namespace_changed" 'blocks_are 3 65536' \
    ctl namespace resize 3 32M --subsystem "$NQN"
truncate -s 48M "$WORK/d3"
BY_ITSELF=yes seen "file grown" "$namespace_changed" 'blocks_are 3 98304' \
    ctl namespace resize 3 --subsystem "$NQN"

# A block device that grows: ctl has the target detect the size.
modprobe loop
block=$(losetup --find --show "$(disk d6 16M)")
seen "block device added" "$namespace_changed" 'there 4' \
    ctl namespace add --subsystem "$NQN" --nsid 4 "$block"
truncate -s 24M "$WORK/d6"
grow() {
    losetup -c "$block"
    ctl namespace resize 4 --subsystem "$NQN"
}
BY_ITSELF=yes seen "block device grown" "$namespace_changed" 'blocks_are 4 49152' grow
dd if=/dev/urandom of="$(device 4)" bs=1M seek=20 count=2 oflag=direct status=none
cmp -i 20M -n 2097152 "$(device 4)" "$block" || fail "the device has other data where it grew"
seen "block device removed" "$namespace_changed" 'gone 4' \
    ctl namespace remove 4 --subsystem "$NQN"
losetup -d "$block"

seen "namespace disabled" "$namespace_changed" 'gone 3' ctl namespace disable 3 --subsystem "$NQN"
seen "namespace enabled" "$namespace_changed" 'there 3' \
    ctl namespace enable 3 --subsystem "$NQN"

seen "ANA state" "$access_changed" 'ana_is 1 non-optimized' ctl ana set 1 non-optimized
seen "ANA state back" "$access_changed" 'ana_is 1 optimized' ctl ana set 1 optimized

seen "namespace removed" "$namespace_changed" 'gone 2' ctl namespace remove 2 --subsystem "$NQN"

# A group that ours does not use: the other host loses its second namespace,
# and gets it back.
CTRL=$theirs
seen "ANA state of the other host" "$access_changed" 'ana_is 2 inaccessible' \
    ctl ana set 2 inaccessible
seen "ANA state of the other host back" "$access_changed" 'ana_is 2 optimized' \
    ctl ana set 2 optimized

# The other host is denied in the middle of its I/O, while ours goes on.
[ -d "/proc/$their_io" ] || fail "the other host's I/O ended before it was denied"
undisturbed "$theirs"
seen "host denied" - denied ctl host deny "$other" --subsystem "$NQN-other"
CTRL=$ours
expect_match "error of the denied host" 'not in allowed_hosts|not allowed|Connect Invalid Host' \
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
touch "$WORK/changed"
wait "$our_io" || fail "$(fio_complaint "$OUT/ours.json")"
expect_eq "errors of fio" 0 "$(fio_report "$OUT/ours.json" | field '.jobs[0].error')"

undisturbed "$ours"

echo 0 >$trace/events/enable

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
