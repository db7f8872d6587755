#!/bin/bash
# about: 50 connections leak no memory, descriptors or queue pairs
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

# cycle : what `nvme connect` and `nvme disconnect` ask of the kernel, without
# starting a program for each.
cycle() {
    local answer
    exec 3<>/dev/nvme-fabrics
    printf 'transport=rdma,traddr=%s,trsvcid=%s,nqn=%s,nr_io_queues=1' "$ADDRESS" "$PORT" "$NQN" >&3
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
leaks_none "$before" 2048
target_stop
