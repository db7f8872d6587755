#!/bin/bash
# about: reservations of three kernel hosts: commands and generation, the block layer's API, accesses of each type, fencing under I/O, a crash, notifications, ctl, two paths
# providers: iwarp verbs-rxe verbs-siw
# timeout: 400
# long-timeout: 1500
source /lab/guest/lib.sh

# Otherwise Linux combines the controllers of all hosts as paths.
without_multipath

losses_expected

rounds=1 seconds=1
[ -z "$LONG" ] || rounds=20 seconds=4
host=nqn.2026-11.org.example:host
id=1ab00000-0000-4000-8000-00000000000
other_port=4421
# Blocks that all hosts write.
shared=8

# --- hosts -------------------------------------------------------------------

# as_host NUMBER [ARGUMENT...] : connects as that host; prints the controller.
as_host() {
    nvme connect -t rdma -a "$ADDRESS" -s "$PORT" -n "$NQN" -q "$host$1" -I "$id$1" \
        --reconnect-delay=1 --ctrl-loss-tmo=120 --keep-alive-tmo=5 -o json "${@:2}" | field .device
}

# disk_of CONTROLLER NSID : its block device, without multipath.
disk_of() {
    local nsid name
    for nsid in "/sys/class/nvme/$1/$1"n*/nsid; do
        name=$(basename "${nsid%/nsid}")
        if [ "$(cat "$nsid")" = "$2" ] && [ -b "/dev/$name" ]; then
            echo "/dev/$name"
            return
        fi
    done
    return 1
}

all_live() {
    local controller
    for controller in "$first" "$path" "$second" "$third"; do
        CTRL=$controller controller_is live || return
    done
}

# --- commands ----------------------------------------------------------------

# report DEVICE : "GENERATION TYPE REGISTRANTS[ HOST=KEY[*]]...", with the last digits of host
# identifiers, and a star for holders. nvme-cli 3 has other labels than nvme-cli 2.
report() {
    nvme resv-report "$1" --eds -o json | field '(.regctlext // .regstrntext) as $all |
        "\(.gen) \(.rtype) \(.regctl // .regstrnt)" +
            ([$all[] | " \(.hostid[-1:])=\(.rkey)" + (if .rcsts % 2 == 1 then "*" else "" end)] |
                sort | add // "")'
}

# reported WHAT WANTED : a host that is not registered gets this report.
reported() {
    expect_eq "report, $1" "$2" "$(report "$three")"
}

# refused STATUS COMMAND... : of nvme-cli, with this status.
refused() {
    expect_match "status of ${*:2}" "$1" "$(expect_fail nvme "${@:2}")"
}

# conflict COMMAND... : of the block layer's API: a reservation conflict (0x18, as of SCSI).
conflict() {
    expect_match "error of $*" 'error code 0x18' "$(expect_fail "$@")"
}

# register DEVICE KEY, and so on: with the block layer's API.
register() { blkpr -c register -k "$2" "$1"; }
unregister() { blkpr -c register -K "$2" -k 0 "$1"; }
reserve() { blkpr -c reserve -k "$2" -t "$3" "$1"; }
release() { blkpr -c release -k "$2" -t "$3" "$1"; }
clear_all() { blkpr -c clear -k "$2" "$1"; }
# preempt DEVICE KEY KEY-OF-OTHERS TYPE [ACTION]
preempt() { blkpr -c "${5:-preempt}" -K "$2" -k "$3" -t "$4" "$1"; }

# --- accesses ----------------------------------------------------------------

try_read() { dd if="$1" of=/dev/null bs=4k count=1 skip=$shared iflag=direct 2>"$WORK/said"; }
try_write() { dd if=/dev/zero of="$1" bs=4k count=1 seek=$shared oflag=direct 2>"$WORK/said"; }

# accesses DEVICE : "rw", "r" or "-": what its host may do. Other errors than a reservation
# conflict (EBADE) fail.
accesses() {
    local access may=
    for access in read write; do
        if "try_$access" "$1"; then
            may+=${access:0:1}
        else
            grep 'Invalid exchange' "$WORK/said" >/dev/null ||
                fail "$access of $1: $(<"$WORK/said")"
        fi
    done
    echo "${may:--}"
}

# may WHAT WANTED : of the three hosts.
may() {
    expect_eq "accesses of the hosts, $1" "$2" \
        "$(accesses "$one") $(accesses "$two") $(accesses "$three")"
}

# --- notifications -----------------------------------------------------------

# notice CONTROLLER : "TYPE NSID" of the oldest notification, which is removed; "none".
notice() {
    nvme get-log "/dev/$1" --log-id=0x80 --log-len=64 -b | od -An -v -tu1 -w64 |
        awk '{ if ($1 + $2 + $3 + $4 == 0) print "none"; else print $9, $13 + 256 * $14 }'
}

drain() {
    local controller
    for controller in "$first" "$path" "$second" "$third"; do
        until [ "$(notice "$controller")" = none ]; do :; done
    done
}

# noticed WHAT WANTED : the only one of the second host; the first one has none.
noticed() {
    local controller
    expect_eq "notification of the second host, $1" "$2" "$(notice "$second")"
    for controller in "$first" "$second"; do
        expect_eq "other notifications of $controller, $1" none "$(notice "$controller")"
    done
}

# --- target ------------------------------------------------------------------

ctl() {
    nvmeof-target ctl --socket "$WORK/control.sock" "$@"
}

# shown FILTER : of what ctl shows of namespace 1.
shown() {
    ctl reservations -o json |
        field ".namespaces[] | select(.subsystem == \"$NQN\" and .nsid == 1) | $1"
}

crash() {
    target_kill
    wait_for 20 lost
    target_start
    wait_for 60 all_live
}
lost() {
    ! all_live
}

config "$(disk d1 64M)" "$(disk d2 16M)"
printf '\n[[port]]\ntraddr = "%s"\ntrsvcid = %s\nprovider = "%s"\n' \
    "$ADDRESS" "$other_port" "$ENGINE" >>"$CONFIG"
sed -i "1i [control]\nsocket = \"$WORK/control.sock\"\nstate = \"$WORK/state.json\"\n" "$CONFIG"
target_start
# The first host has two controllers.
first=$(as_host 1)
path=$(as_host 1 -s $other_port)
second=$(as_host 2)
third=$(as_host 3)
for controller in "$first" "$path" "$second" "$third"; do
    wait_for 10 disk_of "$controller" 1
    wait_for 10 disk_of "$controller" 2
done
one=$(disk_of "$first" 1)
one_path=$(disk_of "$path" 1)
two=$(disk_of "$second" 1)
two_other=$(disk_of "$second" 2)
three=$(disk_of "$third" 1)
# Only of hosts that are to be refused.
dmesg_expect "(reservation conflict error, dev|callbacks suppressed).*(${two#/dev/}|${three#/dev/})"
dmesg_expect 'I/O Error \(sct 0x0 / sc 0x83\)|Reservation Conflict \(sct 0x0 / sc 0x83\)'

# --- identify ----------------------------------------------------------------

for disk in "$one" "$two" "$two_other"; do
    expect_eq "RESCAP of $disk" 255 "$(nvme id-ns "$disk" -o json | field .rescap)"
done
expect_eq "reservations in ONCS" 1 \
    "$(nvme id-ctrl "/dev/$first" -o json | field '.oncs / 32 | floor % 2')"

# --- commands and generation -------------------------------------------------

reported "at first" "0 0 0"
refused 'Host Identifier Inconsistent Format|18\)' io-passthru "$one" -n 1 --opcode=0x0e \
    --cdw10=15 --data-len=64 -r
refused 'Reservation Conflict' resv-acquire "$one" --crkey=1 --rtype=1 --racqa=0
refused 'Reservation Conflict' resv-release "$one" --crkey=1 --rtype=1 --rrela=0
refused 'Reservation Conflict' resv-register "$one" --crkey=1 --rrega=1
refused 'Invalid Field' resv-register "$one" --nrkey=0 --rrega=0
refused 'Invalid Field' resv-register "$one" --nrkey=1 --rrega=3
reported "after refusals" "0 0 0"

# Base 2.1, 7.8: each successful Register counts, also of the same key.
nvme resv-register "$one" --nrkey=0xa1 --rrega=0
reported "registered" "1 0 1 1=161"
nvme resv-register "$one" --nrkey=0xa1 --rrega=0
reported "registered again" "2 0 1 1=161"
refused 'Reservation Conflict' resv-register "$one" --nrkey=0xa2 --rrega=0
refused 'Reservation Conflict' resv-register "$one" --crkey=0xa2 --nrkey=0xa2 --rrega=2
refused 'Reservation Conflict' resv-register "$one" --crkey=0xa2 --rrega=1
nvme resv-register "$one" --crkey=0xa1 --nrkey=0xa2 --rrega=2
reported "key replaced" "3 0 1 1=162"
nvme resv-register "$one" --nrkey=0xa1 --rrega=2 --iekey
reported "key replaced without the present one" "4 0 1 1=161"

# Acquire and Release do not count.
nvme resv-register "$two" --nrkey=0xb1 --rrega=0
refused 'Reservation Conflict' resv-acquire "$two" --crkey=0xa1 --rtype=2 --racqa=0
refused 'Invalid Field' resv-acquire "$two" --crkey=0xb1 --rtype=7 --racqa=0
refused 'Invalid Field' resv-acquire "$two" --crkey=0xb1 --rtype=0 --racqa=0
refused 'Invalid Field' resv-acquire "$two" --crkey=0xb1 --rtype=2 --racqa=0 --iekey
refused 'Invalid Field' resv-acquire "$two" --crkey=0xb1 --rtype=2 --racqa=3
nvme resv-acquire "$two" --crkey=0xb1 --rtype=2 --racqa=0
reported "acquired" "5 2 2 1=161 2=177*"
nvme resv-acquire "$two" --crkey=0xb1 --rtype=2 --racqa=0
refused 'Reservation Conflict' resv-acquire "$two" --crkey=0xb1 --rtype=1 --racqa=0
refused 'Reservation Conflict' resv-acquire "$one" --crkey=0xa1 --rtype=2 --racqa=0
refused 'Reservation Conflict' resv-acquire "$three" --crkey=0xb1 --rtype=2 --racqa=0
refused 'Invalid Field' resv-release "$two" --crkey=0xb1 --rtype=1 --rrela=0
refused 'Invalid Field' resv-release "$two" --crkey=0xb1 --rtype=2 --rrela=2
refused 'Reservation Conflict' resv-release "$two" --crkey=0xa1 --rtype=2 --rrela=0
# A host that does not hold the reservation releases nothing.
nvme resv-release "$one" --crkey=0xa1 --rtype=2 --rrela=0
reported "released by another host" "5 2 2 1=161 2=177*"
nvme resv-release "$two" --crkey=0xb1 --rtype=2 --rrela=0
reported "released" "5 0 2 1=161 2=177"

# Preempt and Clear count once each.
nvme resv-acquire "$two" --crkey=0xb1 --rtype=1 --racqa=0
refused 'Invalid Field' resv-acquire "$one" --crkey=0xa1 --prkey=0 --rtype=3 --racqa=1
refused 'Reservation Conflict' resv-acquire "$one" --crkey=0xa1 --prkey=0xcc --rtype=3 --racqa=1
nvme resv-acquire "$one" --crkey=0xa1 --prkey=0xb1 --rtype=3 --racqa=1
reported "preempted" "6 3 1 1=161*"
nvme resv-register "$two" --nrkey=0xb1 --rrega=0
# A registrant is preempted; the reservation stays.
nvme resv-acquire "$one" --crkey=0xa1 --prkey=0xb1 --rtype=1 --racqa=2
reported "registrant preempted" "8 3 1 1=161*"
nvme resv-register "$two" --nrkey=0xb1 --rrega=0
refused 'Reservation Conflict' resv-release "$three" --crkey=0xa1 --rrela=1
nvme resv-release "$two" --crkey=0xb1 --rrela=1
reported "cleared" "10 0 0"
# The reservation ends with the registration of its holder.
nvme resv-register "$one" --nrkey=0xa1 --rrega=0
nvme resv-acquire "$one" --crkey=0xa1 --rtype=4 --racqa=0
nvme resv-register "$one" --crkey=0xa1 --rrega=1
reported "unregistered" "12 0 0"

# --- block layer, and accesses of each type ----------------------------------

types=(write-exclusive exclusive-access write-exclusive-reg-only exclusive-access-reg-only
    write-exclusive-all-regs exclusive-access-all-regs)
# Of the holder, a registrant, and a host that is not registered.
wanted=("rw r r" "rw - -" "rw rw r" "rw rw -" "rw rw r" "rw rw -")
may "without a reservation" "rw rw rw"
generation=12
for number in 1 2 3 4 5 6; do
    type=${types[number - 1]}
    # With all registrants as holders.
    star=
    [ $number -lt 5 ] || star='*'
    register "$one" 0xa1
    register "$two" 0xb1
    conflict reserve "$three" 0xa1 "$type"
    reserve "$one" 0xa1 "$type"
    generation=$((generation + 2))
    reported "$type" "$generation $number 2 1=161* 2=177$star"
    may "$type" "${wanted[number - 1]}"
    [ $number -ge 5 ] || conflict reserve "$two" 0xb1 "$type"
    conflict reserve "$two" 0xb1 "${types[number % 6]}"
    # A short run has the following of one type, which changes with the commits.
    if [ -z "$LONG" ] && [ $((TURN / 3 % 6)) != $((number - 1)) ]; then
        clear_all "$two" 0xb1
        generation=$((generation + 1))
        continue
    fi
    # The holders are all registrants: a key of 0 preempts them all.
    key=0xa1
    [ $number -lt 5 ] || key=0
    preempt "$two" 0xb1 $key "$type"
    generation=$((generation + 1))
    reported "$type preempted" "$generation $number 1 2=177*"
    register "$one" 0xa1
    key=0xb1
    [ $number -lt 5 ] || key=0
    preempt "$one" 0xa1 $key "$type" preempt-abort
    generation=$((generation + 2))
    reported "$type preempted and aborted" "$generation $number 1 1=161*"
    release "$one" 0xa1 "$type"
    reported "$type released" "$generation 0 1 1=161"
    register "$two" 0xb1
    # Linux replaces the key by 0.
    unregister "$one" 0xa1
    reserve "$two" 0xb1 "$type"
    generation=$((generation + 2))
    reported "$type of the other host" "$generation $number 1 2=177*"
    clear_all "$two" 0xb1
    generation=$((generation + 1))
    reported "$type cleared" "$generation 0 0"
done
expect_eq "persistence, as Linux registers" 1 \
    "$(nvme resv-report "$one" --eds -o json | field .ptpls)"

# Other commands of a host that is not registered.
dd if="$three" of="$WORK/block" bs=512 count=1 iflag=direct status=none
register "$one" 0xa1
reserve "$one" 0xa1 write-exclusive-reg-only
refused 'Reservation Conflict' write-zeroes "$three" -s 0 -c 0
refused 'Reservation Conflict' dsm "$three" -d -s 0 -b 1
refused 'Reservation Conflict' flush "$three" -n 1
refused 'Reservation Conflict' copy "$three" --sdlba=8 --slbs=0 --blocks=0
nvme compare "$three" -s 0 -c 0 -z 512 -d "$WORK/block"
nvme verify "$three" -s 0 -c 0
# Of the type Exclusive Access - Registrants Only: the holder preempts itself.
preempt "$one" 0xa1 0xa1 exclusive-access-reg-only
refused 'Reservation Conflict' compare "$three" -s 0 -c 0 -z 512 -d "$WORK/block"
refused 'Reservation Conflict' verify "$three" -s 0 -c 0
refused 'Reservation Conflict' copy "$three" --sdlba=8 --slbs=0 --blocks=0
nvme id-ns "$three" >/dev/null
clear_all "$one" 0xa1

# --- two paths ---------------------------------------------------------------

register "$one_path" 0xa1
reserve "$one" 0xa1 exclusive-access
expect_match "report after commands of both paths" '^[0-9]+ 2 1 1=161\*$' "$(report "$two")"
expect_eq "accesses of both paths" "rw rw" "$(accesses "$one") $(accesses "$one_path")"
refused 'Reservation Conflict' resv-register "$one_path" --nrkey=0xa2 --rrega=0
release "$one_path" 0xa1 exclusive-access
clear_all "$one_path" 0xa1

# --- notifications -----------------------------------------------------------

udevadm monitor --kernel --property --subsystem-match=nvme >"$WORK/events" &
monitor=$!
wait_for 10 grep KERNEL "$WORK/events"
drain
# events CONTROLLER : how often it had an event about reservations.
events() {
    awk -v name="$1" '/^KERNEL/ { its = 0 } $0 ~ "^DEVPATH=.*/" name "$" { its = 1 }
        /^NVME_AEN=0x800006$/ && its { count++ } END { print count + 0 }' "$WORK/events"
}
had_event() {
    [ "$(events "$second")" = "$1" ]
}

register "$one" 0xa1
register "$two" 0xb1
reserve "$one" 0xa1 write-exclusive-reg-only
release "$one" 0xa1 write-exclusive-reg-only
wait_for 10 had_event 1
noticed "reservation released" "2 1"
preempt "$one" 0xa1 0xb1 write-exclusive
wait_for 10 had_event 2
noticed "registration preempted" "1 1"
register "$two" 0xb1
clear_all "$one" 0xa1
wait_for 10 had_event 3
noticed "reservation preempted" "3 1"
# Registration Preempted is masked.
nvme set-feature "/dev/$second" -f 0x82 -n 1 -V 2
register "$one" 0xa1
register "$two" 0xb1
preempt "$one" 0xa1 0xb1 write-exclusive
noticed "masked" none
nvme set-feature "/dev/$second" -f 0x82 -n 1 -V 0
kill $monitor
expect_eq "events of the hosts" "0 0 3 0" \
    "$(events "$first") $(events "$path") $(events "$second") $(events "$third")"
clear_all "$one" 0xa1
drain

# --- fencing -----------------------------------------------------------------

# content FILE : what the first host reads where both write.
content() {
    dd if="$one" of="$1" bs=1M count=$shared iflag=direct status=none
}

# changes : whether it has changed.
changes() {
    content "$WORK/later"
    ! cmp "$WORK/earlier" "$WORK/later"
}

# unchanged SECONDS FILE WHAT : fails if it has another content than the file in that time.
unchanged() {
    local until=$((SECONDS + $1))
    while [ $SECONDS -lt $until ]; do
        content "$WORK/now"
        cmp "$WORK/now" "$2" || fail "$3"
    done
}

# fence : the first host preempts the second one, which writes.
fence() {
    local fio status=0 report
    register "$one" 0xa1
    register "$two" 0xb1
    reserve "$one" 0xa1 write-exclusive-reg-only
    may "before fencing" "rw rw r"
    # A conflict (52, EBADE) does not end it.
    fio --name=fenced --filename="$two" --rw=randwrite --bssplit=4k/50:1M/50 --size=${shared}M \
        --iodepth=32 --ioengine=io_uring --direct=1 --continue_on_error=write --ignore_error=,52 \
        --time_based --runtime=3600 --randseed=$SRANDOM --output-format=json \
        --output="$OUT/fenced.json" 2>"$OUT/fenced.err" &
    fio=$!
    content "$WORK/earlier"
    wait_for 30 changes
    sleep 0.5
    # What a new holder reads first has to stay: it recovers a journal by it.
    preempt "$one" 0xa1 0xb1 write-exclusive-reg-only preempt-abort
    content "$WORK/recovered"
    unchanged 1 "$WORK/recovered" "a write of the preempted host arrived after the preemption"
    head -c ${shared}M /dev/urandom >"$WORK/pattern"
    dd if="$WORK/pattern" of="$one" bs=1M oflag=direct status=none
    unchanged $seconds "$WORK/pattern" "the preempted host overwrote data"
    may "after fencing" "rw r r"
    expect_eq "accesses of the other path" rw "$(accesses "$one_path")"
    dd if=/dev/zero of="$two_other" bs=4k count=1 oflag=direct status=none

    # Its writes come again when it connects again.
    crash
    dd if="$WORK/pattern" of="$one" bs=1M oflag=direct status=none
    unchanged $seconds "$WORK/pattern" "the preempted host overwrote data after the crash"
    [ -d "/proc/$fio" ] || fail "fio ended: $(fio_complaint "$OUT/fenced.json")"
    kill -INT $fio
    wait $fio || status=$?
    # 128: ended by the signal.
    [[ $status = 0 || $status = 128 ]] || fail "$(fio_complaint "$OUT/fenced.json")"
    report=$(fio_report "$OUT/fenced.json")
    expect_eq "first error of the preempted host, EBADE" 52 \
        "$(field '.jobs[0].first_error' <<<"$report")"
    expect_ge "errors of the preempted host" 100 "$(field '.jobs[0].total_err' <<<"$report")"
    unchanged 1 "$WORK/pattern" "the preempted host overwrote data at its end"
}

drain
for round in $(seq $rounds); do
    fence
    expect_match "report after the crash" '^[0-9]+ 3 1 1=161\*$' "$(report "$two")"
    may "after the crash" "rw r r"
    # With the type that excludes reads as well.
    preempt "$one" 0xa1 0xa1 exclusive-access-reg-only
    may "exclusive access" "rw - -"
    conflict preempt "$two" 0xb1 0xa1 exclusive-access-reg-only
    # It is not fenced any more once it registers.
    register "$two" 0xb1
    may "registered again" "rw rw -"
    preempt "$one" 0xa1 0xb1 exclusive-access-reg-only preempt-abort
    may "preempted again" "rw - -"
    [ "$round" = "$rounds" ] || clear_all "$one" 0xa1
done
target_logged "reservations: host ${host}1 preempted ${host}2" ||
    fail "the target does not log the preemption"

# --- ctl ---------------------------------------------------------------------

if [ -n "$LONG" ]; then
    crash
    may "after another crash" "rw - -"
fi
expect_eq "reservation that ctl shows" "4 Exclusive Access - Registrants Only" \
    "$(shown '.reservation | "\(.type) \(.type_name)"')"
expect_eq "persistence that ctl shows" true "$(shown .persistent)"
expect_eq "registrants that ctl shows" "${host}1 ${id}1 0x00000000000000a1 true" \
    "$(shown '[.registrants[] | "\(.host) \(.host_id) \(.key) \(.holder)"] | join(", ")')"
expect_eq "preemption that ctl shows" "${host}1 ${host}2" \
    "$(shown '.preemption | "\(.by.host) \([.preempted[].host] | join(","))"')"
expect_match "age of the preemption that ctl shows" '^[0-9]+$' \
    "$(($(date +%s) - $(date -d "$(shown .preemption.at)" +%s)))"
expect_match "text of ctl" "holder ${host}1, key 0x00000000000000a1" "$(ctl reservations)"

ctl reservations export --subsystem "$NQN" 1 >"$WORK/exported"
expect_match "import beside hosts" 'hosts are connected' \
    "$(expect_fail ctl reservations import --subsystem "$NQN" 1 "$WORK/exported")"
before=$(report "$one")
ctl reservations clear --subsystem "$NQN" 1
may "cleared by ctl" "rw rw rw"
expect_match "report after ctl cleared" '^[0-9]+ 0 0$' "$(report "$two")"
expect_eq "notification of the holder" "3 1" "$(notice "$first")"
expect_match "clear without registrants" 'no host is registered' \
    "$(expect_fail ctl reservations clear --subsystem "$NQN" 1)"
ctl drain >/dev/null
ctl reservations import --subsystem "$NQN" 1 "$WORK/exported"
ctl resume >/dev/null
wait_for 60 all_live
expect_eq "report after the import" "$before" "$(report "$two")"
may "imported" "rw - -"
clear_all "$one" 0xa1

# Without persistence, a restart ends them (Base 2.1, 8.1.22.6).
nvme resv-register "$one" --nrkey=0xa1 --rrega=0 --cptpl=2
nvme resv-acquire "$one" --crkey=0xa1 --rtype=1 --racqa=0
may "not persistent" "rw r r"
crash
may "not persistent, after a crash" "rw rw rw"
expect_match "report after a crash, not persistent" '^[0-9]+ 0 0$' "$(report "$one")"

# --- multipath ---------------------------------------------------------------

# The first host holds a reservation when the second one connects over two paths.
register "$one" 0xa1
reserve "$one" 0xa1 write-exclusive
multipath Y
connect -q "${host}2" -I "${id}2"
head=$(device 1)
connect -q "${host}2" -I "${id}2" -s $other_port
dmesg_expect "reservation conflict error, dev $(basename "${head%n*}")c[0-9]+n"
expect_eq "accesses over two paths" r "$(accesses "$head")"
register "$head" 0xb1
preempt "$head" 0xb1 0xa1 write-exclusive-reg-only
expect_match "report over two paths" '^[0-9]+ 3 1 2=177\*$' "$(report "$head")"
for _ in 1 2 3 4; do
    expect_eq "accesses of the holder over two paths" rw "$(accesses "$head")"
done
nvme disconnect -d "$CTRL"
expect_eq "accesses of the holder over the other path" rw "$(accesses "$head")"
release "$head" 0xb1 write-exclusive-reg-only
unregister "$head" 0xb1
expect_match "report at the end" '^[0-9]+ 0 0$' "$(report "$head")"
nvme disconnect-all
target_stop
