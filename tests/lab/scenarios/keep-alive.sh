#!/bin/bash
# about: host and target each detect that the other is silent for too long
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

dmesg_expect 'nvme nvme[0-9]+: .*(failed|rejected|error|I/O|Reconnect|reconnect|timeout|keep)'
dmesg_expect 'no usable path|nvme_rdma|(siw|rxe)[0-9]*: '

config "$(disk d1 16M)"
target_start
connect --keep-alive-tmo=2 --reconnect-delay=1 --ctrl-loss-tmo=60

# Idle for several times the timeout: no side disconnects.
sleep 5
controller_is live || fail "an idle connection ended: $(controller_state)"
expect_eq "connections that ended" 0 "$(grep -c 'disconnected:' "$LOG" || true)"

# The target is stopped: the host detects it, and reconnects later.
kill -s STOP "$TARGET"
wait_for 20 controller_is connecting
kill -s CONT "$TARGET"
wait_for 20 controller_is live
disconnect

# A host is stopped: the target drops it.
nvmeof bench -a "$ADDRESS" -s "$PORT" --provider "$ENGINE" -n "$NQN" --namespace-id 1 \
    --keep-alive-tmo 2 --runtime 60 --iodepth 1 >"$OUT/bench.log" 2>&1 &
host=$!
wait_for 10 target_logged 'queue 1 of controller 3 connected'
kill -s STOP "$host"
wait_for 15 target_logged 'sent no command for its Keep Alive Timeout of 2000 ms'
kill -s KILL "$host"
wait "$host" || true
target_stop
