#!/bin/bash
# about: a backing store that is removed under I/O faults its namespace: the host gets a warning, a metric counts it, ctl recovers it, other namespaces are not affected
# providers: iwarp verbs-rxe
# timeout: 300
source /lab/guest/lib.sh

# Messages of the host about errors of namespace 2.
dmesg_expect 'nvme|null_blk|nullb|I/O error|Buffer I/O|critical'

nullb=/sys/kernel/config/nullb/nullb0
modprobe null_blk nr_devices=0
# The parameters of the device, to create it again.
make_disk() {
    mkdir "$nullb"
    echo 64 >"$nullb/size"
    echo 1 >"$nullb/memory_backed"
    echo 1 >"$nullb/power"
    wait_for 10 test -b /dev/nullb0
}
make_disk

# ctl ARGUMENT... : queries or changes the running target.
ctl() {
    nvmeof-target ctl --socket "$WORK/control.sock" "$@"
}
# faults [CAUSE] : how often the target counted that namespace 2 was gone, for whatever cause.
faults() {
    local web cause=${1:-}
    exec {web}<>/dev/tcp/127.0.0.1/9400
    printf 'GET /metrics HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n' >&"$web"
    awk -v cause="cause=\"$cause" '
        /^nvmeof_target_namespace_faults_total\{.*nsid="2"/ && index($0, cause) { all += $NF }
        END { print all + 0 }' <&"$web"
    exec {web}>&-
}
# state_is STATE : of namespace 2, as the target reports it.
state_is() {
    [ "$(ctl status -o json | field '.subsystems[0].namespaces[1].state')" = "$1" ]
}
warnings() {
    nvme smart-log "/dev/$CTRL" -o json | field .critical_warning
}

config "$(disk d1 64M)" /dev/nullb0
printf '\n[control]\nsocket = "%s"\n\n[metrics]\nlisten = "127.0.0.1:9400"\n' \
    "$WORK/control.sock" >>"$CONFIG"
target_start
connect
wait_for 10 device 2
# Linux enables no SMART warnings: enable its notices (900h) and that of reliability (4h).
nvme set-feature "/dev/$CTRL" -f 0xb -V 0x904
udevadm monitor --kernel --property --subsystem-match=nvme >"$WORK/events" &
monitor=$!
expect_eq "warnings before" 0 "$(warnings)"
expect_eq "faults before" 0 "$(faults)"
state_is ready || fail "namespace 2 is not ready"
fio --name=other --filename="$(device 1)" --rw=randwrite --bs=4k --iodepth=8 --ioengine=libaio \
    --direct=1 --verify=crc32c --verify_backlog=64 --time_based --runtime=25 --size=32M \
    >"$OUT/other.log" 2>&1 &
other=$!
fio --name=gone --filename="$(device 2)" --rw=randread --bs=4k --iodepth=8 --ioengine=libaio \
    --direct=1 --time_based --runtime=25 >"$OUT/gone.log" 2>&1 &
gone=$!
sleep 2

rmdir "$nullb"
wait_for 15 target_logged 'namespace 2 of .* is faulted: '
status=0
wait "$gone" || status=$?
[ "$status" != 0 ] || fail "the host did not detect the removal of the disk"
expect_fail dd if="$(device 2)" of=/dev/null bs=4k count=1 iflag=direct >/dev/null
[ -d "/proc/$other" ] || fail "the other namespace was affected: $(tail -n 3 "$OUT/other.log")"

# Status, metrics and the host show it: an asynchronous event of type SMART (1) with the
# information that the reliability is degraded (0) and the log page to read (02h).
state_is faulted || fail "the target does not say that namespace 2 is faulted"
expect_match "status" 'namespace 2: [^'$'\n'']*FAULTED' "$(ctl status)"
expect_eq "faults" 1 "$(faults)"
expect_eq "faults because it was removed" 1 "$(faults removed)"
wait_for 10 grep -q 'NVME_AEN=0x020001' "$WORK/events"
kill "$monitor"
expect_eq "critical warnings: reliability" 4 "$(warnings)"

# It recovers when the device exists and an administrator enables the namespace.
expect_match "enabled while the disk is gone" '/dev/nullb0' \
    "$(expect_fail ctl namespace enable 2)"
make_disk
sleep 1
state_is faulted || fail "another device with the same name was served"
ctl namespace enable 2
target_logged 'namespace 2 is recovered' || fail "the log does not report the recovery"
state_is ready || fail "namespace 2 has not recovered"
expect_eq "faults at the end" 1 "$(faults)"
expect_eq "critical warnings at the end" 0 "$(warnings)"
dd if=/dev/urandom of="$WORK/data" bs=64k count=1 status=none
dd if="$WORK/data" of="$(device 2)" bs=64k oflag=direct status=none
cmp -n 65536 "$WORK/data" /dev/nullb0 || fail "the written data are not on the disk"
expect_eq "number of messages" 1 "$(grep -c 'is faulted: ' "$LOG")"

# A file that grows without a notification.
truncate -s 96M "$WORK/d1"
wait_for 10 target_logged 'detected: .*namespace 1 is resized'
status=0
wait "$other" || status=$?
expect_eq "exit status of the other host's fio" 0 "$status"
expect_eq "bytes of namespace 1" $((96 << 20)) "$(blockdev --getsize64 "$(device 1)")"

# A device that requires sequential writes is refused by each command: hosts write at any offset.
zoned=/sys/kernel/config/nullb/nullb1
mkdir "$zoned"
echo 64 >"$zoned/size"
echo 4 >"$zoned/zone_size"
echo 1 >"$zoned/zoned"
echo 1 >"$zoned/memory_backed"
echo 1 >"$zoned/power"
wait_for 10 test -b /dev/nullb1
expect_eq "zones of the device" host-managed "$(cat /sys/block/nullb1/queue/zoned)"
refusal='/dev/nullb1: .*zones that require sequential writes.*host-managed.*; serve a file on a file system'
expect_match "a zoned device that is added" "$refusal" \
    "$(expect_fail ctl namespace add --subsystem "$NQN" --nsid 3 /dev/nullb1)"
expect_eq "namespaces" 2 "$(ctl status -o json | field '.subsystems[0].namespaces | length')"
undisturbed "$CTRL"
disconnect
target_stop
rmdir "$nullb"

sed -i 's|/dev/nullb0|/dev/nullb1|' "$CONFIG"
for command in "serve --config" check-config; do
    # shellcheck disable=SC2086 # two words
    expect_match "a zoned device for $command" "$refusal" \
        "$(expect_fail timeout 20 nvmeof-target $command "$CONFIG")"
done
rmdir "$zoned"
