#!/bin/bash
# about: the address, then the RDMA device of a port appears 20 s after the start: hosts are served then, a connected one without I/O errors
# providers: iwarp verbs-rxe verbs-siw
# timeout: 240
source /lab/guest/lib.sh
source /lab/guest/work.sh

losses_expected

case $RDMA in
rxe0) interface=dm0 kind=rxe ;;
siw0) interface=dm1 kind=siw ;;
esac

config "$(disk d1 64M)" "$(disk d2 64M)"
target_start
connect --reconnect-delay=1 --ctrl-loss-tmo=-1
work_start "address missing for 20 s"
target_stop
ip address del "$ADDRESS/24" dev $interface
target_start
expect_match "log" "$ADDRESS" "$(grep 'WARN waiting for port' "$LOG")"
sleep 20
ip address add "$ADDRESS/24" dev $interface
wait_for 60 controller_is live
sleep 1
work_stop
disconnect
target_stop

# available : whether the port is served that was missing at the last start.
available() {
    tail -n +$((lines + 1)) "$LOG" | grep -q 'is available'
}

# The kernel removes the controllers of a device that is removed.
rdma link delete $RDMA
lines=$(wc -l <"$LOG")
target_start
sleep 20
rdma link add $RDMA type $kind netdev $interface
# Software iWARP in the process needs no device.
[ "$ENGINE" = iwarp ] || wait_for 60 available
connect
disconnect
target_stop
