#!/bin/bash
# about: the first namespace, of 4 KiB blocks, is added while a host is connected, and can be deallocated and zeroed
# providers: iwarp verbs-rxe
source /lab/guest/lib.sh

# Linux queries the capabilities of a controller once: they must not depend on its current
# namespaces.
config
printf '\n[control]\nsocket = "%s"\n' "$WORK/control.sock" >>"$CONFIG"
target_start
CTRL=$(nvme connect -t rdma -a "$ADDRESS" -s "$PORT" -n "$NQN" -o json | field .device)
expect_fail device 1
nvmeof-target ctl --socket "$WORK/control.sock" namespace add "$(disk d1 16M)" --nsid 1 \
    --block-size 4096
wait_for 10 device 1
added=$(device 1)
queue=/sys/block/${added#/dev/}/queue
expect_eq "Linux: logical_block_size" 4096 "$(<"$queue/logical_block_size")"
expect_ge "Linux: discard_max_bytes" 16777216 "$(<"$queue/discard_max_bytes")"
expect_ge "Linux: write_zeroes_max_bytes" 65536 "$(<"$queue/write_zeroes_max_bytes")"
dd if=<(tr '\0' '\252' </dev/zero) of="$added" bs=1M count=1 iflag=fullblock oflag=direct \
    status=none
blkdiscard -o 4096 -l 8192 "$added"
blkdiscard -z -o 65536 -l 4096 "$added"
expect_eq "bytes that are zero afterwards" 12288 \
    "$(dd if="$added" bs=1M count=1 iflag=direct status=none | tr -d '\252' | wc -c)"
disconnect
target_stop
