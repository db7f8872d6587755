#!/bin/bash
# about: Wireshark decodes a captured session without malformed frames
# providers: iwarp
# timeout: 300
source /lab/guest/lib.sh

config "$(disk d1 16M)"
target_start
# Both ends are on this machine: frames use the loopback interface.
tcpdump -i lo -s 0 -B 32768 -w "$WORK/session.pcap" "tcp port $PORT" 2>"$OUT/tcpdump.log" &
capture=$!
wait_for 10 grep -q 'listening on' "$OUT/tcpdump.log"

# The kernel's host: all kinds of commands, in-capsule and keyed data.
connect
dd if=/dev/urandom of="$WORK/data" bs=64k count=8 status=none
dd if="$WORK/data" of="$(device 1)" bs=64k oflag=direct status=none
dd if="$WORK/data" of="$(device 1)" bs=512 count=8 oflag=direct status=none
dd if="$(device 1)" of=/dev/null bs=128k count=4 iflag=direct status=none
nvme flush "$(device 1)"
nvme smart-log "/dev/$CTRL" >/dev/null
disconnect
# And the initiator.
initiator write --namespace-id 1 --data "$WORK/data"
initiator read --namespace-id 1 --block-count 1024 --data "$WORK/back"
cmp "$WORK/data" "$WORK/back"
target_stop
sleep 0.5
kill "$capture"
wait "$capture"
expect_match "packets lost" '^0 packets dropped' "$(grep dropped "$OUT/tcpdump.log")"

# A line for each packet. Port 4420 is NVMe/TCP's as well, so the first bytes
# have to decide.
tshark -n -r "$WORK/session.pcap" -o tcp.try_heuristic_first:TRUE -T fields \
    -e iwarp_mpa.req -e iwarp_mpa.rep -e iwarp_rdma.opcode -e _ws.malformed \
    -e iwarp_mpa.bad_length -e _ws.expert.severity \
    >"$WORK/packets" 2>"$OUT/tshark.log"

# decoded COLUMN VALUE : how often a value is in a column; each packet may hold
# several messages.
decoded() {
    cut -f"$1" "$WORK/packets" | tr , '\n' | grep -cx "$2" || true
}
expect_eq "malformed frames" 0 "$(decoded 4 '.\+')"
expect_eq "bad lengths" 0 "$(decoded 5 '.\+')"
# Errors have severity 8388608; warnings, such as of MPA revision 2, less.
expect_eq "expert errors" 0 "$(decoded 6 8388608)"
expect_eq "terminates" 0 "$(decoded 3 0x07)"
# The kernel's host opens 3 connections, our two commands 2 each.
expect_ge "MPA requests" 7 "$(decoded 1 1)"
expect_eq "MPA replies" "$(decoded 1 1)" "$(decoded 2 1)"
for kind in 0:writes 1:read-requests 2:read-responses 3:sends 4:sends-with-invalidate; do
    count=$(decoded 3 "0x0${kind%%:*}")
    record "${kind#*:}" "$count"
    expect_ge "${kind#*:}" 1 "$count"
done
