#!/bin/bash
# about: the buffers of each reactor are on the NUMA node of its CPU
# providers: iwarp
# cpus: 3
# nodes: 2
source /lab/guest/lib.sh

# pages_on NODE : pages of the target's large mappings that lie on it.
pages_on() {
    awk -v node="N$1" '
        { all = mine = 0 }
        { for (i = 3; i <= NF; i++) {
            split($i, part, "=")
            if (part[1] ~ /^N[0-9]+$/) all += part[2]
            if (part[1] == node) mine = part[2]
        } }
        all >= 1024 { sum += mine }
        END { print sum + 0 }' "/proc/$TARGET/numa_maps"
}

nodes=(/sys/devices/system/node/node[0-9]*)
expect_eq "memory nodes" 2 "${#nodes[@]}"
for processor in 0 2; do
    node=$(basename "/sys/devices/system/cpu/cpu$processor"/node*)
    node=${node#node}
    config ram:16M
    printf '\n[reactor]\ncores = [%s]\nbuffer_memory = "64M"\n' "$processor" >>"$CONFIG"
    target_start
    connect
    dd if=/dev/zero of="$(device 1)" bs=1M count=16 oflag=direct status=none
    there=$(pages_on "$node")
    elsewhere=$(pages_on $((1 - node)))
    record "MiB on node $node" "$((there / 256)) of $(((there + elsewhere) / 256))"
    expect_ge "pages on node $node" $((32 * 256)) "$there"
    # The main thread of the target allocated the RAM store.
    expect_ge "pages elsewhere, at most those of the disk" "$elsewhere" $((16 * 256))
    disconnect
    target_stop
done
