#!/bin/bash
# about: two hosts write to one namespace over 8 queues each, a third reads, a fourth is refused
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
# cpus: 3
source /lab/guest/lib.sh

# Otherwise Linux combines the controllers of both hosts as two paths.
without_multipath

dmesg_expect 'Connect for subsystem .* is not allowed, hostnqn: .*:host4$'
dmesg_expect 'failed to connect queue: 0 ret=16772'

host=nqn.2026-11.org.example:host
id=1ab00000-0000-4000-8000-00000000000

# connect_as NUMBER : a host of its own, with queues of every kind. Linux makes
# no more of a kind than there are cpus, three in the guest.
connect_as() {
    nvme connect -t rdma -a "$ADDRESS" -s "$PORT" -n "$NQN" -q "$host$1" \
        -I "$id$1" -i 3 -W 3 -P 2 --ctrl-loss-tmo=10 -o json | field .device
}

# half NAME DEVICE START [ARGUMENT...] : random writes with verification; the
# data is never the same.
half() {
    fio --name="$1" --filename="$2" --offset="$3" --rw=randwrite --size=2M --numjobs=2 \
        --offset_increment=8M --bsrange=512-32k --iodepth=16 --ioengine=io_uring \
        --direct=1 --verify=crc32c --verify_fatal=1 --randseed=$SRANDOM \
        --aux-path="$WORK" --output-format=json --output="$OUT/$1.json" "${@:4}" 2>"$OUT/$1.err" ||
        fail "$1: $(fio_complaint "$OUT/$1.json")"
    expect_eq "$1: jobs that wrote and verified" 2 \
        "$(fio_report "$OUT/$1.json" | field '[.jobs[] | select(.error == 0 and .read.io_bytes == 2097152)] | length')"
}

config "$(disk d1 32M)"
sed -i "s/^allow_any_host.*/allowed_hosts = [\"${host}1\", \"${host}2\", \"${host}3\"]/" "$CONFIG"
target_start
first=$(connect_as 1)
second=$(connect_as 2)
wait_for 10 test -b "/dev/${first}n1" -a -b "/dev/${second}n1"
for controller in "$first" "$second"; do
    expect_eq "I/O queues of $controller" 8 $(($(cat "/sys/class/nvme/$controller/queue_count") - 1))
done

# Each its half, at the same time; the second polls for completions. The third
# is our own initiator.
initiator bench -q "${host}3" -I "$id"3 --namespace-id 1 --rw randread --bs 4k \
    --nr-io-queues 8 --iodepth 2 --runtime 2 -o json >"$WORK/bench" &
three=$!
half one "/dev/${first}n1" 0 &
one=$!
half two "/dev/${second}n1" 16M --hipri &
two=$!
wait $one
wait $two
wait $three
target_logged 'queue 8 of controller' || fail "the third host had no 8 queues"
record bench "$(field '[.. | .iops? // empty] | add | floor' <"$WORK/bench") IOPS"
cmp "/dev/${first}n1" "/dev/${second}n1" || fail "the hosts see different data"
cmp "/dev/${first}n1" "$WORK/d1" || fail "the backing file has other data"

# Data that one host writes are immediately visible to the other.
for number in 1 2 3 4 5; do
    dd if=/dev/urandom of="$WORK/data" bs=4k count=1 status=none
    dd if="$WORK/data" of="/dev/${first}n1" bs=4k seek=$number oflag=direct status=none
    dd if="/dev/${second}n1" bs=4k skip=$number count=1 iflag=direct status=none |
        cmp - "$WORK/data" || fail "the second host does not see what the first wrote"
done

# One disconnects under I/O of the other.
half stays "/dev/${second}n1" 16M &
stays=$!
sleep 0.5
nvme disconnect -d "$first"
wait $stays

# A fourth host is refused; it does not even see the subsystem.
expect_fail connect_as 4
target_logged "host ${host}4 is not in allowed_hosts of $NQN" || fail "the target does not say whom it refused"
dmesg | since_begin | grep "is not allowed, hostnqn: ${host}4" >/dev/null ||
    fail "Linux does not say that the host is not allowed"
expect_eq "what the fourth discovers" '[]' "$(nvme discover -t rdma -a "$ADDRESS" -s "$PORT" \
    -q "${host}4" -I "$id"4 -o json | jq -c '[.records[]?]')"
expect_eq "state of the second" live "$(cat "/sys/class/nvme/$second/state")"
nvme disconnect-all
target_stop
