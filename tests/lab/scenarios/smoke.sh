#!/bin/bash
# about: discover, connect, write and read blocks, disconnect
# providers: iwarp verbs-rxe verbs-siw
# transport: yes
# timeout: 150
source /lab/guest/lib.sh

config "$(disk d1 64M)"
target_start
entry=$(nvme discover -t rdma -a "$ADDRESS" -s "$PORT" -o json | field '.records[0]')
expect_eq "discovered subsystem" "$NQN" "$(field .subnqn <<<"$entry")"
expect_eq "discovered address" "$ADDRESS" "$(field .traddr <<<"$entry")"

connect
expect_eq "state" live "$(controller_state)"
disk=$(device 1)
dd if=/dev/urandom of="$WORK/data" bs=4k count=64 status=none
dd if="$WORK/data" of="$disk" bs=4k seek=8 oflag=direct status=none
dd if="$disk" of="$WORK/back" bs=4k skip=8 count=64 iflag=direct status=none
expect_eq "checksum" "$(checksum "$WORK/data")" "$(checksum "$WORK/back")"

disconnect
expect_eq "controllers left" 0 "$(find /sys/class/nvme -mindepth 1 | wc -l)"
target_stop
