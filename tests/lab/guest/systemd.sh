#!/bin/bash
# Becomes systemd, in namespaces of its own: systemd.sh ROOT. After `unshare` they are empty
# or copies; this mounts the file systems that systemd requires.
set -e
# Wrappers of the scenario are in /run.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
hash -r
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 run /run
# Read-only, so that systemd does not manage devices.
mount -t sysfs -o ro sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmp /tmp
[ -s /etc/machine-id ] || tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id
# No terminal, no first boot, no devices to set up.
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --show-status=no --log-target=journal --unit=multi-user.target
