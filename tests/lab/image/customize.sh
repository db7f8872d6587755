#!/bin/bash
# Turns a fresh Debian root into the guest: customize.sh ROOT WORK
#
# Called by mmdebstrap, as root or as root of a user namespace.
set -euo pipefail

root=$1
work=$2
recipe=$work/recipe

say() { echo "lab image: $*"; }
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive "$@"; }

kernel=$(basename "$(echo "$root"/lib/modules/*)")
modules=/lib/modules/$kernel

# Debian's kernel has no siw (software iWARP); its source builds as a module of
# its own against Debian's headers.
say "building siw for $kernel"
# shellcheck disable=SC2016 # for dpkg-query, not for the shell
version=$(inside dpkg-query -W -f '${Version}' "linux-image-$kernel")
before=$(inside apt-mark showmanual)
inside apt-get install -qq -y --no-install-recommends "linux-headers-$kernel" make xz-utils
mkdir "$root/siw"
source=linux-source-${kernel%%.*}.$(cut -d. -f2 <<<"$kernel")
inside sh -c "cd /siw && { apt-get download -qq $source=$version || apt-get download -qq $source; }"
inside sh -c "cd /siw && dpkg-deb --fsys-tarfile $source*.deb |
    tar -xO ./usr/src/$source.tar.xz |
    tar -xJ --strip-components=5 $source/drivers/infiniband/sw/siw"
inside make -s -C "$modules/build" M=/siw CONFIG_RDMA_SIW=m modules
mkdir -p "$root$modules/updates"
mv "$root/siw/siw.ko" "$root$modules/updates/"
rm -rf "$root/siw"

say "removing the compiler"
mapfile -t manual <<<"$before"
inside apt-mark -qq auto "linux-headers-$kernel" make xz-utils
inside apt-mark -qq manual "${manual[@]}"
inside apt-get autoremove -qq -y --purge

# Decompressing modules costs seconds in an emulated processor.
say "unpacking the modules"
find "$root$modules" -name '*.ko.xz' -print0 | xargs -0 -r -n 64 -P "$(nproc)" unxz
inside depmod "$kernel"

# The smallest initramfs that reaches the disks.
say "making the initramfs"
initramfs=$root/initramfs
mkdir -p "$initramfs"/{bin,modules,proc,root,dev}
cp "$root/usr/bin/busybox" "$initramfs/bin/"
install -m 755 "$recipe/initramfs-init" "$initramfs/init"
inside modprobe -S "$kernel" --show-depends -a virtio_pci virtio_blk crc32c ext4 9pnet_virtio 9p |
    sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' |
    while read -r module; do
        cp "$root$module" "$initramfs/modules/"
        basename "$module" >>"$initramfs/modules/order"
    done
inside sh -c 'cd /initramfs && find . | cpio -o --quiet -H newc' | gzip -1 >"$work/initrd"
rm -rf "$initramfs"

say "settling in"
mkdir -p "$root/lab" "$root/out" "$root/work"
echo lab >"$root/etc/hostname"
echo '127.0.0.1 localhost lab' >"$root/etc/hosts"
rm -f "$root/etc/resolv.conf"
# Fixed, so that the host has the same name in each run.
mkdir -p "$root/etc/nvme"
echo 'nqn.2014-08.org.nvmexpress:uuid:1ab00000-0000-4000-8000-000000000001' >"$root/etc/nvme/hostnqn"
echo '1ab00000-0000-4000-8000-000000000001' >"$root/etc/nvme/hostid"
cp "$root/boot/vmlinuz-$kernel" "$work/vmlinuz"
# shellcheck disable=SC2016
inside dpkg-query -W -f '${Package} ${Version}\n' >"$work/versions.txt"
echo "uname $kernel" >>"$work/versions.txt"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb
rm -rf "${root:?}"/boot/*

# Without what is mounted below the root. Everything is written through a
# throw-away layer, so a journal would only cost time.
say "making the disk image"
mkdir "$work/tree"
mount --bind "$root" "$work/tree"
mke2fs -q -t ext4 -L lab -m 0 -E root_owner=0:0,lazy_itable_init=0 -O ^has_journal,^metadata_csum -d "$work/tree" "$work/root.img" 4G
umount "$work/tree"
rmdir "$work/tree"
chmod 644 "$work"/{root.img,vmlinuz,initrd,versions.txt}
