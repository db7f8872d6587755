#!/bin/bash
# about: removal of a device closes its connections; the port serves again when the device is back
# providers: verbs-rxe verbs-siw
# transport: yes
# timeout: 300
source /lab/guest/lib.sh

dmesg_expect 'nvme|no usable path|nvme_rdma|(siw|rxe)[0-9]*: |infiniband'

config "$(disk d1 32M)"
target_start
initiator id-ctrl >/dev/null
nvmeof bench -a "$ADDRESS" -s "$PORT" --provider verbs -n "$NQN" --namespace-id 1 \
    --runtime 30 --iodepth 8 >"$OUT/bench.log" 2>&1 &
host=$!
wait_for 10 target_logged 'queue 1 of controller 2 connected'
sleep 1
netdev=$(rdma link show "$RDMA/1" | sed 's/.*netdev //; s/ .*//')
rdma link delete "$RDMA"
status=0
wait "$host" || status=$?
expect_eq "exit status of the host" 1 "$status"
# Operations in flight may fail before the removal is detected.
wait_for 15 target_logged "connection lost: .*$RDMA is gone"
wait_for 15 target_logged 'connection lost: .*queue=1'
[ -d "/proc/$TARGET" ] || fail "the target ended"

rdma link add "$RDMA" type "${RDMA%0}" netdev "$netdev"
wait_for 20 initiator id-ctrl
target_stop
