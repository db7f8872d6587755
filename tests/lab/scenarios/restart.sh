#!/bin/bash
# about: the target is restarted and killed under I/O: all blocks are correct
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

losses_expected

# Writes with verification; ends after each block was read back.
write_and_verify() {
    fio --name=verify --filename="$1" --rw=randwrite --bs=4k --iodepth=16 \
        --size=16M --verify=crc32c --verify_fatal=1 --ioengine=io_uring \
        --direct=1 --output-format=json --output="$OUT/fio-$2.json"
}

# lost : whether the host detected that the target is down.
lost() {
    ! controller_is live
}

# away HOW : ends the target under I/O, starts it again, and waits for the I/O.
away() {
    local disk job
    disk=$(device 1)
    write_and_verify "$disk" "$1" &
    job=$!
    sleep 1.5
    [ -d "/proc/$job" ] || fail "the I/O ended before the target did"
    "$1"
    wait_for 10 lost
    sleep 1
    target_start
    wait "$job" || fail "fio failed after $1"
    wait_for 10 controller_is live
    expect_eq "errors of fio" 0 "$(field '.jobs[0].error' <"$OUT/fio-$1.json")"
}

config "$(disk d1 64M)"
target_start
connect --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=5
away target_stop
away target_kill

# A reset by the host, under I/O.
write_and_verify "$(device 1)" reset &
job=$!
for _ in 1 2 3; do
    sleep 0.5
    wait_for 10 controller_is live
    nvme reset "/dev/$CTRL"
done
wait "$job" || fail "fio failed over resets"
disconnect
target_stop
