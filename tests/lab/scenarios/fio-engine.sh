#!/bin/bash
# about: the jobs of fio-configs over the kernel's block device and over the initiator as fio engine: the same data
# providers: iwarp verbs-rxe verbs-siw
# timeout: 1200
# fio-engine: yes
source /lab/guest/lib.sh

# The guest's own fio is another version than the engine is for.
echo "fio --ioengine=external:libnvmeof_fio.so" >>/run/lab/commands
PATH=/lab/fio-engine:$PATH
export NVMEOF_FIO_ENGINE=/lab/fio-engine/libnvmeof_fio.so

config "$(disk d1 64M)"
# Shared memory has no kernel's side, so it is tried beside iWARP.
[ "$PROVIDER" != iwarp ] || sed -i 's/^provider = .*/provider = ["iwarp", "shm"]/' "$CONFIG"
target_start
connect

# device_jobs JOBS, engine_jobs PROVIDER JOBS : what runs where.
device_jobs() {
    run_jobs "device-$ROUND" "$1" "$(device 1)"
}
engine_jobs() {
    run_jobs "$1-$ROUND" "$2" --engine nvmeof --provider "$1" --queues 2 \
        --address "$ADDRESS:$PORT" --subsystem "$NQN"
}

# Over the kernel's device all once for each RDMA device: here over siw, in fio-jobs over rxe.
jobs=randread-4k-qd16,write-128k-qd16,mixed-trim-flush,verify-crc32c-qd32,verify-blocksizes,persist-write
[ "$PROVIDER" != iwarp ] || jobs=$(all_jobs)
# With the engine all, but for the one about the page cache, which is the kernel's.
engine=$(all_jobs | tr , '\n' | grep -vx verify-buffered | paste -sd ,)

# What one writes the other reads.
export ROUND=1
device_jobs "$jobs"
engine_jobs "$ENGINE" persist-read
ROUND=2
engine_jobs "$ENGINE" "$engine"
device_jobs persist-read
if [ "$PROVIDER" = iwarp ]; then
    engine_jobs shm persist-read
    ROUND=3
    engine_jobs shm "$engine"
fi
disconnect
target_stop
