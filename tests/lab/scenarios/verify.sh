#!/bin/bash
# about: fio with checksums: 4 jobs, depth 32, random writes, direct and through the page cache
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

# random_writes NAME NSID WRITTEN READ ARGUMENT... : bytes of each of 4 jobs.
random_writes() {
    local name=$1 result=$OUT/fio-$1.json
    fio --name="$name" --filename="$(device "$2")" --rw=randwrite --numjobs=4 \
        --iodepth=32 --size=4M --offset_increment=8M --verify=crc32c --verify_fatal=1 \
        --aux-path="$WORK" --output-format=json --output="$result" "${@:5}" \
        2>"${result%.json}.err" ||
        fail "$name: $(fio_complaint "$result")"
    # fio does not report a job that verifies nothing.
    expect_eq "$name: error, bytes written, bytes read" "$(printf "0 $3 $4\n%.0s" {1..4})" \
        "$(fio_report "$result" | field '.jobs[] | "\(.error) \(.write.io_bytes) \(.read.io_bytes)"')"
    record "$name" "$(fio_report "$result" | field '[.jobs[] | .write.iops + .read.iops] | add | floor') IOPS"
}

writes() {
    nvme smart-log "/dev/$CTRL" -o json | field .host_write_commands
}

config "$(disk d1 32M)"
namespace 2 "$(disk d2 32M)" 'block_size = 4096'
target_start
connect
wait_for 10 device 2
bytes=$((4 << 20))
direct=(--ioengine=io_uring --direct=1)
random_writes direct 1 $bytes $bytes "${direct[@]}" --bs=4k
random_writes direct-4k-blocks 2 $bytes $bytes "${direct[@]}" --bs=4k
random_writes sizes 1 $bytes $bytes --ioengine=libaio --direct=1 --bsrange=512-64k
random_writes buffered 1 $bytes $bytes --ioengine=io_uring --direct=0 --bs=4k
# Synced data are verified over another connection, without the page cache.
random_writes synced 1 $bytes 0 --ioengine=io_uring --direct=0 --bs=4k --do_verify=0 --end_fsync=1
disconnect
connect
# fio says that it wrote what it only reads here.
before=$(writes)
random_writes read-again 1 $bytes $bytes "${direct[@]}" --bs=4k --verify_only
expect_eq "writes while reading again" "$before" "$(writes)"
disconnect
target_stop
