#!/bin/bash
# about: more commands than a device's queues share receives for: hosts wait and lose nothing
# providers: verbs-rxe
# timeout: 90
source /lab/guest/lib.sh

counter() {
    cat "/sys/class/infiniband/$RDMA/ports/1/hw_counters/$1"
}

config "$(disk d1 32M)"
printf '\n[reactor]\nshared_receives = 64\n' >>"$CONFIG"
target_start
connect
before=$(counter send_rnr_err)
result=$OUT/fio.json
fio --name=wait --filename="$(device 1)" --rw=randwrite --numjobs=4 --iodepth=64 --size=2M \
    --offset_increment=8M --bs=4k --ioengine=io_uring --direct=1 --verify=crc32c \
    --verify_fatal=1 --aux-path="$WORK" --output-format=json --output="$result" \
    2>"${result%.json}.err" || fail "fio: $(fio_complaint "$result")"
bytes=$((2 << 20))
expect_eq "error, bytes written, bytes read" "$(printf "0 $bytes $bytes\n%.0s" {1..4})" \
    "$(fio_report "$result" | field '.jobs[] | "\(.error) \(.write.io_bytes) \(.read.io_bytes)"')"
waits=$(($(counter send_rnr_err) - before))
record waits "$waits"
[ "$waits" -gt 0 ] || fail "no message had to wait for a receive"
# Nobody lost a connection by that.
if grep -E 'connection lost|closing:' "$LOG"; then
    fail "a queue was closed"
fi
disconnect
target_stop
