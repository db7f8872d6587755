#!/bin/bash
# about: a namespace whose device is asked for what is done (iopoll): data, and what is not polled, beside one that is not
# providers: iwarp
# timeout: 300
source /lab/guest/lib.sh

# A device with a queue that raises no interrupt: what goes there is done when
# somebody asks for it, and not before.
modprobe null_blk nr_devices=2 gb=1 bs=512 memory_backed=1 poll_queues=1
expect_eq "queues without interrupts" 1 "$(cat /sys/block/nullb0/queue/io_poll)"

# Memory that hosts lend is registered with the ring that polls, too.
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
        # These go the usual way, between those that are polled.
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
expect_eq "what the target complained of" 0 "$(grep -cE ' (WARN|ERROR) ' "$LOG" || true)"
target_stop
