#!/bin/bash
# about: the initiator against the target: each command, with comparison of data
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

config "$(disk d1 64M)"
namespace 2 "$(disk d2 64M)" 'block_size = 4096'
target_start

expect_match "discovery log" "$NQN" "$(initiator discover -o json)"
expect_eq "namespaces" "1 2" "$(initiator list-ns -o json | field '[.. | numbers] | join(" ")')"
dd if=/dev/urandom of="$WORK/data" bs=1M count=8 status=none
for nsid in 1 2; do
    blocks=$((8 * 1048576 / (nsid == 1 ? 512 : 4096)))
    initiator write --namespace-id $nsid --data "$WORK/data" --force-unit-access
    initiator read --namespace-id $nsid --block-count $blocks --data "$WORK/back"
    cmp "$WORK/data" "$WORK/back"
    cmp -n 8388608 "$WORK/data" "$WORK/d$nsid"
    initiator compare --namespace-id $nsid --data "$WORK/data"
    # One block goes with its command.
    head -c 4096 "$WORK/data" >"$WORK/block"
    initiator write --namespace-id $nsid --start-block 3 --data "$WORK/block"
    said=$(expect_fail initiator compare --namespace-id $nsid --data "$WORK/data")
    expect_match "compare" 'Compare Failure' "$said"
    initiator write-zeroes --namespace-id $nsid --start-block 0 --block-count 8
    initiator dsm --namespace-id $nsid --start-block 16 --block-count 8
    initiator flush --namespace-id $nsid
done
initiator smart-log >/dev/null

for job in 'randread 4k 32' 'randwrite 4k 32' 'randrw 16k 8' 'write 128k 8' 'read 256k 8'; do
    read -r rw bs depth <<<"$job"
    result=$(initiator bench --namespace-id 1 --rw "$rw" --bs "$bs" --iodepth "$depth" \
        --nr-io-queues 2 --runtime 1 -o json)
    record "$rw-$bs" "$(field '[.. | .iops? // empty] | add | floor' <<<"$result")"
done
expect_eq "queue pairs that failed" 0 "$(grep -cE ' (WARN|ERROR) ' "$LOG" || true)"
target_stop
