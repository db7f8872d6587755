#!/bin/bash
# about: the initiator against the kernel target (nvmet)
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

modprobe loop
nvmet_start "$(losetup -f --show "$(disk d1 64M)")"

records=$(initiator discover -o json)
expect_match "discovery log" "$NQN" "$records"
expect_eq "model" Linux "$(initiator id-ctrl -o json | field '.mn | sub(" +$"; "")')"
expect_eq "blocks" 131072 "$(initiator id-ns --namespace-id 1 -o json | field .nsze)"
expect_match "namespaces" 0x1 "$(initiator list-ns)"

dd if=/dev/urandom of="$WORK/data" bs=1M count=8 status=none
initiator write --namespace-id 1 --data "$WORK/data"
initiator read --namespace-id 1 --block-count 16384 --data "$WORK/back"
cmp "$WORK/data" "$WORK/back"
# One block at an odd place goes with its command.
head -c 512 "$WORK/data" >"$WORK/block"
initiator write --namespace-id 1 --start-block 77777 --data "$WORK/block"
initiator flush --namespace-id 1
cmp -n 512 -i 0:$((77777 * 512)) "$WORK/block" "$WORK/d1"
initiator write-zeroes --namespace-id 1 --start-block 8 --block-count 8
initiator read --namespace-id 1 --start-block 8 --block-count 8 --data "$WORK/zeroes"
cmp -n 4096 "$WORK/zeroes" /dev/zero

for job in 'randread 4k 16' 'randwrite 4k 16' 'randrw 16k 4' 'write 128k 8' 'read 1m 2'; do
    read -r rw bs depth <<<"$job"
    result=$(initiator bench --namespace-id 1 --rw "$rw" --bs "$bs" --iodepth "$depth" \
        --runtime 1 -o json)
    record "$rw-$bs" "$(field '[.. | .iops? // empty] | add | floor' <<<"$result")"
done
