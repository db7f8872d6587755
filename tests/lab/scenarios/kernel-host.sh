#!/bin/bash
# about: the kernel host over this target and over the kernel target (nvmet), alternately, with null backing stores
# providers: verbs-rxe verbs-siw iwarp
# timeout: 900
# figures: yes
source /lab/guest/lib.sh

# iops DEVICE JOB : runs a job of fio-configs; prints its operations a second.
iops() {
    local report=$OUT/fio.json
    DEVICE=$1 SIZE=100% RUNTIME=2 ENGINE=io_uring fio --output-format=json \
        --output="$report" "/lab/fio-configs/$2.fio" 2>"$OUT/fio.err" ||
        fail "$2 on $1: $(fio_complaint "$report")"
    fio_report "$report" | field '.jobs[] | select(.error == 0) | .read.iops + .write.iops'
}

modprobe null_blk nr_devices=1 gb=1 bs=512 irqmode=0
# Two subsystems, with the controllers of both targets connected all the time: the one that
# is not measured is idle.
NQN=$NQN-kernel
nvmet_start /dev/nullb0
connect
kernels=$(device 1)
NQN=${NQN%-kernel} PORT=$((PORT + 1))
config null:1G
target_start
connect
ours=$(device 1)
expect_eq "sizes" "$(blockdev --getsize64 "$kernels")" "$(blockdev --getsize64 "$ours")"

for round in 1 2 3 4 5; do
    for job in randread-4k-qd16 randwrite-4k-qd16 read-128k-qd16 write-128k-qd16; do
        compare "$job" "$round" iops "$kernels" "$ours"
    done
done
disconnect
NQN=$NQN-kernel
disconnect
target_stop
