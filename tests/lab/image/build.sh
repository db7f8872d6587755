#!/bin/bash
# Builds the guest: build.sh OUTPUT-FOLDER
#
# Leaves root.img (ext4), vmlinuz, initrd and versions.txt in the folder.
# As root it works directly, as an ordinary user through user namespaces.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
output=$1
suite=trixie
mirror=${LAB_MIRROR:-http://deb.debian.org/debian}
security=${LAB_SECURITY_MIRROR:-http://security.debian.org/debian-security}

say() { echo "lab image: $*"; }

mode=root
if [ "$(id -u)" != 0 ]; then
    mode=unshare
    if ! command -v newuidmap >/dev/null || ! grep -q "^$(id -un):" /etc/subuid; then
        echo "building the guest image needs root, or user namespaces: install the" \
            "package uidmap and give $(id -un) a range in /etc/subuid and /etc/subgid," \
            "or run the command as root once" >&2
        exit 2
    fi
fi

# Inside a user namespace root is not the owner of the cache folder, so the
# parts are made in a folder that everybody may write to.
work=$(mktemp -d "${TMPDIR:-/var/tmp}/nvmeof-lab.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 1777 "$work"
mkdir "$work/recipe"
cp "$here"/* "$work/recipe/"
chmod -R a+rX "$work/recipe"

packages=$(grep -v '^#' "$here/packages" | paste -sd,)
say "Debian $suite from $mirror, then the module siw, then the image: some minutes"
mmdebstrap --mode="$mode" --variant=minbase --format=null --skip=cleanup/reproducible \
    --include="$packages" \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/etc/kernel/postinst.d/initramfs-tools' \
    --dpkgopt=force-unsafe-io \
    --aptopt='APT::Install-Recommends "false"' \
    --customize-hook="bash '$work/recipe/customize.sh' \"\$1\" '$work'" \
    "$suite" - <<SOURCES
deb $mirror $suite main
deb $mirror $suite-updates main
deb $security $suite-security main
SOURCES

say "moving the result to $output"
cp --sparse=always "$work/root.img" "$output/root.img"
cp "$work/vmlinuz" "$work/initrd" "$work/versions.txt" "$output/"
