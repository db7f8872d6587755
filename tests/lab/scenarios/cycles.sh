#!/bin/bash
# about: 50 connections leave nothing behind: memory, descriptors, queue pairs
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

# Over siw a few connects may fail: it overlooks a first message now and then
# (docs/development.md), and the host's Connect gets no answer. Ten seconds for
# each are enough.
losses=0
if [ "$PROVIDER" = verbs-siw ]; then
    may_lose=8
    dmesg_expect 'nvme nvme[0-9]+: (I/O tag .* timeout|Connect command failed|failed to connect queue)'
    patience=/sys/module/nvme_core/parameters/admin_timeout
    echo 10 >$patience
    trap 'status=$?; echo 60 >$patience; finish $status' EXIT
else
    may_lose=0
fi

# cycle : what `nvme connect` and `nvme disconnect` ask of the kernel, without
# starting a program for each.
cycle() {
    local answer
    exec 3<>/dev/nvme-fabrics
    until printf 'transport=rdma,traddr=%s,trsvcid=%s,nqn=%s' "$ADDRESS" "$PORT" "$NQN" >&3; do
        losses=$((losses + 1))
        [ "$losses" -le "$may_lose" ] || fail "$losses connects failed"
        exec 3<>/dev/nvme-fabrics
    done
    read -r answer <&3
    exec 3>&-
    # instance=0,cntlid=1
    CTRL=nvme${answer//[!0-9,]/}
    CTRL=${CTRL%,*}
    wait_for 10 device 1
    dd if="$(device 1)" of=/dev/null bs=4k count=4 iflag=direct status=none
    echo 1 >"/sys/class/nvme/$CTRL/delete_controller"
}

config "$(disk d1 16M)"
target_start
# The first ones fill what is kept for later.
for _ in 1 2 3; do
    cycle
done
before=$(footprint)
for _ in {1..50}; do
    cycle
done
# The target waits ten seconds for a Connect that was overlooked.
[ "$losses" = 0 ] || sleep 12
leaks_none "$before" 2048
record losses "$losses"
target_stop
