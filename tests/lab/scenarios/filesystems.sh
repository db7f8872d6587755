#!/bin/bash
# about: ext4 and XFS: files survive a reconnect, the file systems are consistent, freed space is deallocated
# providers: iwarp verbs-rxe verbs-siw
# timeout: 360
source /lab/guest/lib.sh

tree=/usr/lib/modules/$(uname -r)/kernel/drivers/net/ethernet
mount=$WORK/mnt

# kilobytes FILE : allocated space of the file.
kilobytes() {
    sync "$1"
    du -k "$1" | cut -f1
}

# A file system of kind $1 on namespace $2 with the tree in it.
fill() {
    "mkfs.$1" -q "$(device "$2")"
    mount "$(device "$2")" "$mount"
    cp -a "$tree" "$mount/tree"
    umount "$mount"
}

# Verifies that namespace $2 contains the written data.
inspect() {
    case $1 in
    ext4) e2fsck -fn "$2" ;;
    xfs) xfs_repair -n "$2" ;;
    esac >"$WORK/fsck" 2>&1 || fail "$1 is damaged: $(grep -v -m 1 -E '^(e2fsck|Phase|Pass|$)' "$WORK/fsck")"
    mount -o ro "$2" "$mount"
    (cd "$mount/tree" && md5sum --quiet --strict -c "$WORK/sums") ||
        fail "$1: files differ"
    expect_eq "$1: names, modes, sizes, times" "$(describe "$tree")" "$(describe "$mount/tree")"
    umount "$mount"
}

describe() {
    (cd "$1" && find . '(' -type f -o -type l ')' -printf '%p %m %s %l %T@\n' | sort | sha256sum)
}

# Verifies that fstrim deallocates the space of deleted files in the backing file.
trim() {
    local before after
    before=$(kilobytes "$3")
    mount "$2" "$mount"
    rm -r "$mount/tree"
    sync -f "$mount"
    fstrim "$mount"
    umount "$mount"
    after=$(kilobytes "$3")
    [ $((before - after)) -ge $((size * 9 / 10)) ] ||
        fail "fstrim of $1: $before KiB before, $after KiB after, $size KiB were deleted"
}

mkdir "$mount"
(cd "$tree" && find . -type f -exec md5sum {} +) >"$WORK/sums"
size=$(du -k --apparent-size -s "$tree" | cut -f1)
record tree "$(wc -l <"$WORK/sums") files, $size KiB"
expect_ge "size of the tree in KiB" 10000 "$size"

config "$(disk d1 128M)" "$(disk d2 320M)"
target_start
connect
wait_for 10 device 2
fill ext4 1
fill xfs 2
disconnect
connect
wait_for 10 device 2
inspect ext4 "$(device 1)"
inspect xfs "$(device 2)"
trim ext4 "$(device 1)" "$WORK/d1"
trim xfs "$(device 2)" "$WORK/d2"

# A part of the device, then all of it.
disk=$(device 1)
head -c 4M /dev/zero | tr '\0' '\377' >"$WORK/ones"
dd if="$WORK/ones" of="$disk" bs=256k oflag=direct status=none
blkdiscard -o $((1 << 20)) -l $((1 << 20)) "$disk"
cp "$WORK/ones" "$WORK/wanted"
dd if=/dev/zero of="$WORK/wanted" bs=1M seek=1 count=1 conv=notrunc status=none
cmp -n 4194304 "$disk" "$WORK/wanted" || fail "a discarded range has other content than expected"
cmp -n 4194304 "$WORK/d1" "$WORK/wanted" || fail "the backing file of a discarded range differs"
blkdiscard -f "$disk"
expect_eq "KiB after blkdiscard" 0 "$(kilobytes "$WORK/d1")"
head -c 4M "$disk" | cmp -n 4194304 - /dev/zero || fail "discarded blocks are not zero"
dd if="$WORK/ones" of="$disk" bs=256k oflag=direct status=none
blkdiscard -z -o 1M -l 1M "$disk"
cmp -n 4194304 "$disk" "$WORK/wanted" || fail "blkdiscard -z leaves other content than expected"
disconnect
target_stop
