#!/bin/bash
# about: 3 TiB in one namespace, 4 namespaces of 4 block sizes, one read-only, 3 subsystems on a port
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

tib=$((1 << 40))

# put DEVICE FILE AT : 64 KiB to a byte of the device; they must be there in
# the backing file and come back.
put() {
    dd if=/dev/urandom of="$WORK/data" bs=64k count=1 status=none
    dd if="$WORK/data" of="$1" bs=64k oflag=direct,seek_bytes seek="$3" status=none
    cmp -n 65536 -i 0:"$3" "$WORK/data" "$2" || fail "not at byte $3 of the backing file"
    # The host asks again: its cache holds nothing of it.
    dd if="$1" of="$WORK/back" bs=64k count=1 iflag=direct,skip_bytes skip="$3" status=none
    cmp "$WORK/data" "$WORK/back" || fail "byte $3 comes back otherwise"
}

config "$(disk d1 3T)"
namespace 2 "$(disk d2 3T)" 'block_size = 4096'
dd if=/dev/urandom of="$(disk d3 8M)" bs=1M count=8 conv=notrunc status=none
namespace 3 "$WORK/d3" 'readonly = true' 'block_size = 1024'
namespace 4000 "$(disk d4 20M)" 'block_size = 2048'
for name in second third; do
    printf '\n[[subsystem]]\nnqn = "%s"\nallow_any_host = true\n' "$NQN-$name" >>"$CONFIG"
    namespace 1 "$(disk "$name" 16M)"
done
target_start
connect
wait_for 10 device 4000

# The properties in the host.
while read -r nsid bytes block readonly; do
    disk=$(device "$nsid")
    expect_eq "bytes of namespace $nsid" "$bytes" "$(blockdev --getsize64 "$disk")"
    expect_eq "block of namespace $nsid" "$block" "$(blockdev --getss "$disk")"
    expect_eq "namespace $nsid read-only" "$readonly" "$(blockdev --getro "$disk")"
    expect_eq "blocks of namespace $nsid" $((bytes / block)) \
        "$(nvme id-ns "$disk" -o json | field .nsze)"
done <<EOF
1 $((3 * tib)) 512 0
2 $((3 * tib)) 4096 0
3 8388608 1024 1
4000 20971520 2048 0
EOF
expect_eq "list-ns" '1 2 3 4000' \
    "$(nvme list-ns "/dev/$CTRL" -o json | field '[.nsid_list[].nsid] | join(" ")')"

# Over the limit of 32 bits, bytes and blocks, and at the very end.
for nsid in 1 2; do
    for at in 0 $((4 * (1 << 30) - 32768)) $((2 * tib - 32768)) $((2 * tib + 123 * 4096)) $((3 * tib - 65536)); do
        put "$(device $nsid)" "$WORK/d$nsid" "$at"
    done
    # Sparse all the same: ten pieces of 64 KiB at most.
    [ "$(du -k "$WORK/d$nsid" | cut -f1)" -le 1024 ] || fail "the backing file is not sparse"
done
# None of it was written where the lower 32 bits of its place say.
dd if="$(device 1)" bs=64k count=1 iflag=direct,skip_bytes skip=$((123 * 4096)) status=none |
    cmp -n 65536 - /dev/zero || fail "a block beyond 2 TiB is also at its start"
blkdiscard -o $((2 * tib - 32768)) -l 65536 "$(device 1)"
dd if="$(device 1)" bs=64k count=1 iflag=direct,skip_bytes skip=$((2 * tib - 32768)) status=none |
    cmp -n 65536 - /dev/zero || fail "discarded blocks at 2 TiB are not zero"
cmp -n 65536 -i $((2 * tib - 32768)):0 "$WORK/d1" /dev/zero || fail "the backing file at 2 TiB is not zero"
put "$(device 4000)" "$WORK/d4" $((20971520 - 65536))

# Read-only: Linux refuses, and so does the target when it is asked all the same.
disk=$(device 3)
before=$(checksum "$WORK/d3")
expect_eq "content of the read-only namespace" "$before" "$(checksum "$disk")"
said=$(expect_fail dd if="$WORK/data" of="$disk" bs=4k count=1 oflag=direct)
expect_match "writing to a read-only device" 'not permitted|Read-only' "$said"
for command in "write -s 0 -c 0 -z 1024 -d $WORK/data" 'write-zeroes -s 0 -c 0' 'dsm -d -s 0 -b 8'; do
    # shellcheck disable=SC2086
    said=$(expect_fail nvme ${command%% *} "$disk" ${command#* })
    expect_match "nvme ${command%% *}" 'Write Protected' "$said"
done
expect_eq "the read-only backing file" "$before" "$(checksum "$WORK/d3")"

# Subsystems beside each other keep their data apart.
main=$CTRL
for name in second third; do
    connect -n "$NQN-$name"
    put "$(device 1)" "$WORK/$name" 4096
    nvme disconnect -n "$NQN-$name"
done
cmp -n 65536 "$WORK/second" "$WORK/third" >/dev/null && fail "two subsystems have the same content"
CTRL=$main
expect_eq "state of the first controller" live "$(controller_state)"
disconnect
target_stop
