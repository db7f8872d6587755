#!/bin/bash
# about: a disk that is deleted under a host is faulted, comes back, and hurts no other namespace
# providers: iwarp verbs-rxe
# timeout: 300
source /lab/guest/lib.sh

# The host tells of what its namespace 2 answers.
dmesg_expect 'nvme|null_blk|nullb|I/O error|Buffer I/O|critical'

nullb=/sys/kernel/config/nullb/nullb0
modprobe null_blk nr_devices=0
# What one of it is made of, and what makes it a device again.
make_disk() {
    mkdir "$nullb"
    echo 64 >"$nullb/size"
    echo 1 >"$nullb/memory_backed"
    echo 1 >"$nullb/power"
    wait_for 10 test -b /dev/nullb0
}
make_disk

config "$(disk d1 64M)" /dev/nullb0
target_start
connect
wait_for 10 device 2
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
[ "$status" != 0 ] || fail "the host did not notice that its disk is gone"
expect_fail dd if="$(device 2)" of=/dev/null bs=4k count=1 iflag=direct >/dev/null
[ -d "/proc/$other" ] || fail "the other namespace was hurt: $(tail -n 3 "$OUT/other.log")"

make_disk
kill -HUP "$TARGET"
wait_for 10 target_logged 'namespace 2 is there again'
dd if=/dev/urandom of="$WORK/data" bs=64k count=1 status=none
dd if="$WORK/data" of="$(device 2)" bs=64k oflag=direct status=none
cmp -n 65536 "$WORK/data" /dev/nullb0 || fail "what was written is not on the disk"
expect_eq "how often it was told" 1 "$(grep -c 'is faulted: ' "$LOG")"

# And a file that grows, without telling anybody.
truncate -s 96M "$WORK/d1"
wait_for 10 target_logged 'noticed: .*namespace 1 has'
status=0
wait "$other" || status=$?
expect_eq "exit status of the other host's fio" 0 "$status"
expect_eq "bytes of namespace 1" $((96 << 20)) "$(blockdev --getsize64 "$(device 1)")"
disconnect
target_stop
rmdir "$nullb"
