#!/bin/bash
# about: a host's wrong key ends its queue alone, and the log says why
# providers: verbs-rxe verbs-siw
# transport: yes
# timeout: 150
source /lab/guest/lib.sh

# The devices tell what their peer told them.
dmesg_expect 'got TERMINATE|non-flush error status'

config "$(disk d1 16M)"
target_start
connect
before=$(footprint)
for _ in 1 2 3; do
    bad_host "$ADDRESS:$PORT"
done
# What the device said, in words. siw keeps what its peer told it to itself.
case $RDMA in
rxe0) said='the peer says that its memory does not allow the access, vendor error' ;;
siw0) said='not connected to a controller: closed by the peer' ;;
esac
target_logged "$said" || fail "the log does not say why: $(grep -m 1 WARN "$LOG")"
# Nobody else is hurt, nothing is left.
dd if="$(device 1)" of=/dev/null bs=64k count=8 iflag=direct status=none
leaks_none "$before" 1024
disconnect
target_stop
