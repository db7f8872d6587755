#!/bin/bash
# about: an invalid remote key of a host closes its queue only, and the log names the cause
# providers: verbs-rxe verbs-siw
# transport: yes
# timeout: 150
source /lab/guest/lib.sh

# The devices log errors of their peer.
dmesg_expect 'got TERMINATE|non-flush error status'

config "$(disk d1 16M)"
target_start
connect
before=$(footprint)
for _ in 1 2 3; do
    bad_host "$ADDRESS:$PORT"
done
# The error of the device. siw does not report the error of its peer.
case $RDMA in
rxe0) cause='the peer reported that its memory does not allow the access, vendor error' ;;
siw0) cause='not connected to a controller: closed by the peer' ;;
esac
target_logged "$cause" || fail "the log does not name the cause: $(grep -m 1 WARN "$LOG")"
# No other queue is affected, nothing is leaked.
dd if="$(device 1)" of=/dev/null bs=64k count=8 iflag=direct status=none
leaks_none "$before" 1024
disconnect
target_stop
