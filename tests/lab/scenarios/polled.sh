#!/bin/bash
# about: a namespace with iopoll beside one without: data, and operations that are not polled
# providers: iwarp
# timeout: 300
source /lab/guest/lib.sh

# A device with a poll queue, which raises no interrupt: requests on it complete only when
# the host polls.
modprobe null_blk nr_devices=2 gb=1 bs=512 memory_backed=1 poll_queues=1
expect_eq "poll queues" 1 "$(cat /sys/block/nullb0/queue/io_poll)"

# Lent memory is also registered with the polled ring.
config
sed -i 's/^provider = .*/provider = ["iwarp", "shm"]/' "$CONFIG"
namespace 1 /dev/nullb0 'iopoll = true'
namespace 2 /dev/nullb1
target_start

dd if=/dev/urandom of="$WORK/data" bs=1M count=4 status=none
for provider in iwarp shm; do
    for nsid in 1 2; do
        export ENGINE=$provider
        on=(--namespace-id "$nsid")
        initiator write "${on[@]}" --data "$WORK/data"
        initiator read "${on[@]}" --block-count 8192 --data "$WORK/back"
        cmp "$WORK/data" "$WORK/back" || fail "namespace $nsid over $provider: other data"
        cmp -n 4194304 "$WORK/data" "/dev/nullb$((nsid - 1))"
        # These are not polled, between polled ones.
        initiator write "${on[@]}" --data "$WORK/data" --force-unit-access
        initiator write-zeroes "${on[@]}" --start-block 0 --block-count 8
        initiator flush "${on[@]}"
        initiator read "${on[@]}" --block-count 8 --data "$WORK/back"
        cmp -n 4096 "$WORK/back" /dev/zero || fail "namespace $nsid over $provider: no zeroes"
        for rw in randread randwrite randrw; do
            result=$(initiator bench "${on[@]}" --rw $rw --bs 4k --iodepth 16 \
                --nr-io-queues 2 --runtime 1 -o json)
            record "$rw, $provider, nullb$((nsid - 1))" \
                "$(field '[.. | .iops? // empty] | add | floor' <<<"$result")/s"
        done
    done
done
expect_eq "warnings of the target" 0 "$(grep -cE ' (WARN|ERROR) ' "$LOG" || true)"
target_stop
