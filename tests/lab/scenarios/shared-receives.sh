#!/bin/bash
# about: queues share receives as long as there are enough, others have receives of their own; no message waits for a receive
# providers: verbs-rxe
# timeout: 90
source /lab/guest/lib.sh

# Messages without a receive (RNR). rxe does not survive many.
waits() {
    cat "/sys/class/infiniband/$RDMA/ports/1/hw_counters/send_rnr_err"
}

# writes NAME DEPTH : 4 jobs, checked.
writes() {
    local bytes=$((2 << 20)) result=$OUT/$1.json
    fio --name="$1" --filename="$(device 1)" --rw=randwrite --numjobs=4 --iodepth="$2" \
        --size=2M --offset_increment=8M --bs=4k --ioengine=io_uring --direct=1 \
        --verify=crc32c --verify_fatal=1 --aux-path="$WORK" --output-format=json \
        --output="$result" 2>"${result%.json}.err" || fail "$1: $(fio_complaint "$result")"
    expect_eq "$1: error, bytes written, bytes read" "$(printf "0 $bytes $bytes\n%.0s" {1..4})" \
        "$(fio_report "$result" | field '.jobs[] | "\(.error) \(.write.io_bytes) \(.read.io_bytes)"')"
}

config "$(disk d1 32M)"
printf '\n[reactor]\nshared_receives = 64\n' >>"$CONFIG"
export RUST_LOG=debug
target_start
before=$(waits)
# Two queues of 32 entries fit, none of 128 does.
connect -Q 32
writes shared 32
target_logged 'sharing receives' || fail "no queue shares receives"
disconnect
connect
writes own 64
disconnect
expect_eq "messages that had to wait" "$before" "$(waits)"
if grep -E 'connection lost|closing:' "$LOG"; then
    fail "a queue was closed"
fi
target_stop
