#!/bin/bash
# about: the fio engine over two paths to the kernel target (nvmet): a port removed, ANA states changed, all packets of a path dropped: no error, all data are correct
# providers: iwarp verbs-siw
# timeout: 300
# long-timeout: 1200
# fio-engine: yes
source /lab/guest/lib.sh

# The guest's own fio is another version than the engine is for.
echo "fio --ioengine=external:libnvmeof_fio.so" >>/run/lab/commands
PATH=/lab/fio-engine:$PATH
nvmet=/sys/kernel/config/nvmet
other=10.10.1.2
# nvmet reports no Command Quiesce Time: writes of a lost path wait three Keep Alive Timeouts.
keep_alive=2
rounds=1
[ -z "$LONG" ] || rounds=5

# Of the connections that are cut.
dmesg_expect 'nvmet_rdma: (post_recv|post_send|received|sending|cm_|SEND|RDMA)|nvmet: ctrl [0-9]+ (keep-alive timer|fatal error)|siw[0-9]*: '
ip address add "$other/24" dev dm1
modprobe loop
nvmet_start "$(losetup -f --show "$(disk d1 64M)")"
mkdir $nvmet/ports/2
echo rdma >$nvmet/ports/2/addr_trtype
echo ipv4 >$nvmet/ports/2/addr_adrfam
echo "$other" >$nvmet/ports/2/addr_traddr
echo "$PORT" >$nvmet/ports/2/addr_trsvcid
add_port() { ln -s "$nvmet/subsystems/$NQN" "$nvmet/ports/2/subsystems/$NQN"; }
add_port

fio --name=verify --thread --ioengine=external:/lab/fio-engine/libnvmeof_fio.so \
    --address="$ADDRESS:$PORT,$other:$PORT" --subsystem="$NQN" --namespace=1 \
    --provider="$ENGINE" --keep_alive_tmo=$keep_alive --ctrl_loss_tmo=-1 \
    --rw=randrw --bs=4k --iodepth=16 --size=32M --filename=namespace \
    --verify=crc32c --verify_fatal=1 --verify_backlog=256 --time_based --runtime=3600 \
    --randseed=$SRANDOM --output-format=json \
    --output="$OUT/verify.json" 2>"$OUT/verify.err" &
FIO=$!

# works SECONDS : the job runs for that time.
works() {
    sleep "$1"
    [ -d "/proc/$FIO" ] || fail "fio ended: $(fio_complaint "$OUT/verify.json")"
}

works 3
for _ in $(seq $rounds); do
    # The second path is the only one that is not optimized, then the only one that is.
    echo non-optimized >$nvmet/ports/2/ana_groups/1/ana_state
    works 2
    echo inaccessible >$nvmet/ports/1/ana_groups/1/ana_state
    works 2
    echo optimized >$nvmet/ports/2/ana_groups/1/ana_state
    echo change >$nvmet/ports/1/ana_groups/1/ana_state
    works 2
    echo optimized >$nvmet/ports/1/ana_groups/1/ana_state
    works 2
    # nvmet ends the controllers of a port that it removes.
    rm "$nvmet/ports/2/subsystems/$NQN"
    works 10
    add_port
    works 5
    # Nothing arrives: the host detects it by its Keep Alive Timeout.
    tc qdisc add dev lo clsact
    for end in src dst; do
        tc filter add dev lo egress protocol ip u32 match ip $end "$other/32" action drop
    done
    works 15
    tc qdisc del dev lo clsact
    works 10
done

status=0
kill -INT $FIO
wait $FIO || status=$?
# 128: ended by the signal.
[[ $status = 0 || $status = 128 ]] || fail "$(fio_complaint "$OUT/verify.json")"
report=$(fio_report "$OUT/verify.json")
expect_eq "errors of fio" 0 "$(field '.jobs[0].error' <<<"$report")"
expect_ge "operations" 1000 "$(field '.jobs[0] | [.read, .write] | map(.total_ios) | add' <<<"$report")"
record "longest stall, nvmet, paths of the fio engine" \
    "$(field '.jobs[0] | [.read, .write] | map(.lat_ns.max) | max / 1000000 | floor' <<<"$report") ms"
