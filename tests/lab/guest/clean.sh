#!/bin/bash
# Restores the state of the guest before a scenario. Prints one line with what it could not
# remove, or nothing.

# Process groups: timeout(1) gives the scenario one and this program another.
group() { ps -o pgid= "$1" | tr -d ' '; }
first=$(group 1)
ours=$(group $$)

# All except the first program and this one; kernel threads are children of process 2.
processes() {
    ps -eo pid=,ppid=,pgid=,comm= | awk -v first="$first" -v ours="$ours" \
        '$1 != 2 && $2 != 2 && $3 != first && $3 != ours { print $1, $4 }'
}

# stop WHICH : kills the processes whose name matches.
stop() {
    local id name
    while read -r id name; do
        [[ $name =~ $1 ]] && kill -9 "$id" 2>/dev/null
    done < <(processes)
}

# In the order of dependencies.
stop '^(fio|dd|cp|tcpdump|sleep)$'
cut -d' ' -f2 /proc/mounts | grep -vxFf <(cut -d' ' -f2 /run/lab/mounts) | tac |
    while read -r where; do umount "$where" || umount -l "$where"; done
if compgen -G '/sys/class/nvme/nvme*' >/dev/null; then
    timeout 30 nvme disconnect-all
fi
stop '.*'
nvmet=/sys/kernel/config/nvmet
if [ -d $nvmet ]; then
    rm -f $nvmet/ports/*/subsystems/* $nvmet/subsystems/*/allowed_hosts/*
    # Group 1 of a port is removed with it.
    for folder in "$nvmet"/ports/*/{referrals/*,ana_groups/[!1]*} \
        "$nvmet"/subsystems/*/namespaces/* "$nvmet"/{subsystems,ports,hosts}/*; do
        [ ! -d "$folder" ] || rmdir "$folder"
    done
fi
[ -z "$(losetup -nl)" ] || losetup -D
# Devices of null_blk that a scenario created, and the module with its own.
for folder in /sys/kernel/config/nullb/*/; do
    [ ! -d "$folder" ] || rmdir "$folder"
done
[ ! -d /sys/module/null_blk ] || modprobe -r null_blk
# The network to the machine outside of the guest.
! rdma link show siw1/1 >/dev/null 2>&1 || rdma link delete siw1
[ ! -d /sys/module/virtio_net ] || modprobe -r virtio_net
# A scenario may have removed a device or an address, added one, or dropped packets.
tc qdisc del dev lo clsact 2>/dev/null
ip address flush dev dm0
ip address flush dev dm1
ip address add 10.10.0.1/24 dev dm0
ip address add 10.10.1.1/24 dev dm1
for device in rxe0:rxe:dm0 siw0:siw:dm1; do
    IFS=: read -r name kind interface <<<"$device"
    rdma link show "$name/1" >/dev/null 2>&1 ||
        rdma link add "$name" type "$kind" netdev "$interface"
done
rm -rf /work/now

left() {
    local device
    processes | sed 's/^/process /'
    compgen -G '/sys/class/nvme/nvme*' | sed 's|.*/|controller |'
    cut -d' ' -f2 /proc/mounts | grep -vxFf <(cut -d' ' -f2 /run/lab/mounts) | sed 's/^/mount /'
    for device in rxe0 siw0; do
        # One queue pair of rxe0 belongs to the kernel.
        rdma resource show qp link $device | grep -v 'type GSI' | sed 's/ state.*//; s/^/queue pair /'
    done
}

# The kernel frees queue pairs and controllers a moment later.
until=$((SECONDS + 10))
found=$(left)
while [ -n "$found" ] && [ $SECONDS -lt $until ]; do
    sleep 0.2
    found=$(left)
done
if [ -n "$found" ]; then
    echo "left behind: $(paste -sd, <<<"$found")"
else
    # Including warnings that cleaning up caused.
    dmesg | awk '/lab: begin/ { found = "" } !found && /WARNING:|BUG:|Oops/ { found = $0 }
        END { if (found) print found }'
fi
