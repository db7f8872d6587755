#!/bin/bash
# about: RoCE hosts and hosts without RDMA hardware at one address and port
# providers: verbs-rxe
# timeout: 150
source /lab/guest/lib.sh

config "$(disk d1 32M)"
sed -i 's/^provider = .*/provider = ["verbs", "iwarp"]/' "$CONFIG"
target_start

# The discovery log has both, each with its type.
types=$(initiator discover -o json | field '[.records[].rdma_prtype // .records[].tsas.rdma_prtype] | join(" ")')
record types "$types"
expect_match "provider types" 'roce' "$types"
expect_match "provider types" 'iwarp' "$types"

# The kernel host connects over RoCE and the initiator over TCP, at the same time.
connect
dd if=/dev/urandom of="$WORK/data" bs=1M count=4 status=none
dd if="$WORK/data" of="$(device 1)" bs=64k oflag=direct status=none
nvmeof read -a "$ADDRESS" -s "$PORT" -n "$NQN" --provider iwarp --namespace-id 1 \
    --block-count 8192 --data "$WORK/back"
cmp "$WORK/data" "$WORK/back"
initiator read --namespace-id 1 --block-count 8192 --data "$WORK/back2"
cmp "$WORK/data" "$WORK/back2"
disconnect

# connect-all tries both entries and results in one controller.
nvme connect-all -t rdma -a "$ADDRESS" -s "$PORT"
expect_eq "controllers" 1 "$(nvme list-subsys -o json | field "[.. | .Paths? // empty | .[]] | length")"
nvme disconnect-all
target_stop

# auto: the device on the route of the address, without shared memory.
sed -i 's/^provider = .*/provider = "auto"/' "$CONFIG"
target_start
target_logged "verbs" || fail "auto did not choose the device: $(tail -n 1 "$LOG")"
nvmeof id-ctrl -a "$ADDRESS" -s "$PORT" -n "$NQN" --shm-folder /nowhere >/dev/null
target_stop

# Without a device on the route auto is software iWARP.
sed -i 's/^traddr = .*/traddr = "127.0.0.1"/' "$CONFIG"
target_start
nvmeof id-ctrl -a 127.0.0.1 -s "$PORT" -n "$NQN" --shm-folder /nowhere >/dev/null
target_logged 'iwarp' || fail "auto did not choose software iWARP: $(tail -n 1 "$LOG")"
target_stop
