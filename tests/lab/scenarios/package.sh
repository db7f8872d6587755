#!/bin/bash
# about: the Debian packages: install, serve files and a block device under systemd, watchdog, upgrade that keeps the configuration, reboot, remove, purge
# providers: iwarp verbs-rxe
# timeout: 600
# packages: yes
source /lab/guest/lib.sh
source /lab/guest/service.sh
losses_expected

BEFORE=$(find /etc /usr /var/lib/nvmeof -xdev 2>/dev/null | grep -i nvmeof || true)

systemd_start

# Installed, it runs, as its own user, and serves nothing but to this machine.
in_it dpkg -i /lab/packages/nvmeof_*-1_*.deb /lab/packages/nvmeof-target_*-1_*.deb
active || fail "not started: $(in_it journalctl -u nvmeof-target -n 5 -o cat)"
expect_eq "enabled" enabled "$(in_it systemctl is-enabled nvmeof-target)"
expect_eq "its user" nvmeof "$(in_it systemctl show -P User nvmeof-target)"
expect_eq "the user of its process" nvmeof "$(in_it ps -o user= -p "$(main_pid)")"
expect_eq "its capabilities" "CapEff: 0000000000000000" \
    "$(in_it grep CapEff "/proc/$(main_pid)/status" | tr -s '\t ' ' ')"
expect_eq "its folder" "750 nvmeof nvmeof" "$(in_it stat -c '%a %U %G' /var/lib/nvmeof)"
expect_match "status" "serving 0 namespaces" "$(in_it systemctl show -P StatusText nvmeof-target)"
completions=/usr/share/bash-completion/completions
for file in /usr/share/man/man{8/nvmeof-target.8,5/nvmeof-target.toml.5,1/nvmeof.1}.gz \
    $completions/nvmeof{,-target} /usr/share/zsh/vendor-completions/_nvmeof{,-target} \
    /usr/share/fish/vendor_completions.d/nvmeof{,-target}.fish; do
    [ -s $file ] || grep -qs 'path-exclude' /etc/dpkg/dpkg.cfg.d/* || fail "$file is missing"
done
for program in nvmeof nvmeof-target; do
    expect_match "bash completes $program" "^complete .* $program\$" \
        "$(bash -c "source $completions/$program && complete -p $program")"
done

# An upgrade replaces the configuration file if it was not changed.
version=$(in_it dpkg-query -W -f '${Version}' nvmeof-target)
in_it dpkg -i "$(repacked /lab/packages/nvmeof-target_*-1_*.deb "$version.1")"
expect_eq "an unchanged configuration" "# As of $version.1." "$(tail -n 1 "$CONF")"
active || fail "not started: $(in_it journalctl -u nvmeof-target -n 5 -o cat)"

# Exposure of the service, as systemd rates it.
exposure=$(in_it systemd-analyze security --no-pager nvmeof-target | tail -n 1)
record exposure "$(grep -oE '[0-9]+\.[0-9]+' <<<"$exposure")"
in_it systemd-analyze security --no-pager --threshold=25 nvmeof-target >"$OUT/security" ||
    fail "$exposure"

# An administrator makes it serve a file: to the kernel's host, over the network.
in_it truncate -s 64M /var/lib/nvmeof/disk.img
in_it chown nvmeof: /var/lib/nvmeof/disk.img
cat >"$CONF" <<TOML
# mine
[[port]]
traddr = "$ADDRESS"
trsvcid = $PORT
provider = "$ENGINE"
[[subsystem]]
nqn = "$NQN"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
path = "/var/lib/nvmeof/disk.img"
TOML
in_it nvmeof-target check-config "$CONF"
in_it systemctl restart nvmeof-target
in_it systemctl status --no-pager nvmeof-target
connect --reconnect-delay=1
dd if=/dev/urandom of="$WORK/data" bs=1M count=4 status=none
dd if="$WORK/data" of="$(device 1)" bs=1M oflag=direct status=none

in_it nvmeof-target ctl status

# The journal knows who it is about.
entry=$(in_it journalctl -u nvmeof-target -o json -n 1 NVMEOF_HOST="$(cat /etc/nvme/hostnqn)")
expect_fields "what the journal knows of a host" "{NVMEOF_SUBSYSTEM: \"$NQN\"}" "$entry"
for key in NVMEOF_PEER NVMEOF_QUEUE; do
    expect_match "$key" '.' "$(field ".$key // empty" <<<"$entry")"
done

# A reload returns when it is done, and fails where the file is wrong.
printf '\n[[subsystem.namespace]]\nnsid = 2\npath = "ram:16M"\n' >>"$CONF"
in_it systemctl reload nvmeof-target
wait_for 20 device 2
cp "$CONF" "$WORK/right"
echo 'colour = "red"' >>"$CONF"
expect_fail in_it systemctl reload nvmeof-target >/dev/null
expect_match "why the reload failed" "target.toml.*colour" \
    "$(in_it journalctl -u nvmeof-target -n 20 -o cat)"
active || fail "a reload that was refused stopped the target"
cp "$WORK/right" "$CONF"
in_it systemctl reload nvmeof-target

# A block device needs the drop-in that comes along, where it is named; another one stays
# closed, though the group of the service may open it.
drop_ins=/etc/systemd/system/nvmeof-target.service.d
mkdir -p $drop_ins
block=$(losetup --find --show "$(disk d4 16M)")
closed=$(losetup --find --show "$(disk d5 16M)")
# As udev does it elsewhere.
chgrp disk "$block" "$closed"
chmod 660 "$block" "$closed"
expect_match "a block device without the drop-in" 'no permission to open it' \
    "$(expect_fail in_it nvmeof-target ctl namespace add "$block" --nsid 4)"
dpkg-deb --fsys-tarfile /lab/packages/nvmeof-target_*-1_*.deb |
    tar -xO ./usr/share/doc/nvmeof-target/examples/block-device.conf |
    sed "s|^DeviceAllow=/dev/nvme1n1 |DeviceAllow=$block |" >$drop_ins/block-device.conf
expect_match "the drop-in" "DeviceAllow=$block rw" "$(<$drop_ins/block-device.conf)"
in_it systemctl daemon-reload
in_it systemctl restart nvmeof-target
in_it nvmeof-target ctl namespace add "$block" --nsid 4
expect_match "a block device that is not named" 'no permission to open it' \
    "$(expect_fail in_it nvmeof-target ctl namespace add "$closed" --nsid 5)"
wait_for 60 device 4
dd if="$WORK/data" of="$(device 4)" bs=1M oflag=direct status=none
cmp -n 4194304 "$WORK/data" "$block" || fail "what was written is not on the block device"
in_it nvmeof-target ctl namespace remove 4
losetup -d "$block" "$closed"

# A target that hangs is killed and started again by systemd; the host comes again, and
# its I/O goes on.
printf '[Service]\nWatchdogSec=6\n' >$drop_ins/watchdog.conf
in_it systemctl daemon-reload
in_it systemctl restart nvmeof-target
wait_for 60 controller_is live
fio --name=watchdog --filename="$(device 1)" --offset=8M --size=16M --rw=randwrite --bs=4k \
    --iodepth=4 --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
    --verify_backlog=64 --time_based --runtime=12 >"$OUT/watchdog.log" 2>&1 &
fio=$!
sleep 2
old=$(main_pid)
in_it kill -STOP "$old"
restarted() {
    [ "$(in_it systemctl show -P NRestarts nvmeof-target)" -ge 1 ] && active
}
wait_for 30 restarted
[ "$(main_pid)" != "$old" ] || fail "the process that hung is still there"
expect_match "why it was restarted" 'Watchdog timeout' \
    "$(in_it journalctl -u nvmeof-target -n 40 -o cat)"
status=0
wait "$fio" || status=$?
[ "$status" = 0 ] || fail "I/O over the restart: $(tail -n 3 "$OUT/watchdog.log")"
wait_for 60 controller_is live
rm -r $drop_ins
in_it systemctl daemon-reload
in_it systemctl restart nvmeof-target
wait_for 60 controller_is live

# What is changed while it runs is there after the upgrade and the reboot.
in_it nvmeof-target ctl namespace add ram:16M --nsid 3
wait_for 20 device 3
nvme set-feature "/dev/$CTRL" -f 0x84 -n 1 -V 1
changed() {
    in_it nvmeof-target ctl namespace list | grep -Eq '^ *3 +16M '
}

# The next version, with another default configuration: a new process, the same configuration
# and data. dpkg must not ask questions: there is no terminal.
cp "$CONF" "$WORK/mine"
old=$(main_pid)
next=$(repacked /lab/packages/nvmeof-target_*-2_*.deb "${version%-1}-2")
in_it dpkg --force-confdef --force-confold -i "$next" </dev/null
expect_eq "what the package has, to compare with" "# As of ${version%-1}-2." \
    "$(tail -n 1 "$CONF.dpkg-dist")"
active || fail "not there after the upgrade: $(in_it journalctl -u nvmeof-target -n 5 -o cat)"
[ "$(main_pid)" != "$old" ] || fail "the upgrade did not restart the service"
cmp "$CONF" "$WORK/mine" || fail "the upgrade changed the configuration"
expect_match "version" "-2$" "$(in_it dpkg-query -W -f '${Version}' nvmeof-target)"
wait_for 60 controller_is live
expect_eq "data after the upgrade" "$(checksum "$WORK/data")" \
    "$(dd if="$(device 1)" bs=1M count=4 iflag=direct status=none | sha256sum | cut -d' ' -f1)"
changed || fail "what was changed is gone after the upgrade"
expect_match "protected after the upgrade" 'value:(0x)?0*1$' \
    "$(nvme get-feature "/dev/$CTRL" -f 0x84 -n 1 | grep -o 'value:.*')"
disconnect

# After a reboot it is there by itself; disabled, it stays so through an upgrade. That is
# the same over every provider, and takes its time.
if [ "$PROVIDER" = iwarp ]; then
    systemd_stop
    systemd_start
    wait_for 60 active
    changed || fail "what was changed is gone after the reboot"
    in_it systemctl disable --now nvmeof-target
    in_it dpkg --force-confdef --force-confold -i "$next"
    expect_eq "enabled" disabled "$(in_it systemctl is-enabled nvmeof-target || true)"
    in_it systemctl enable nvmeof-target
fi

# Removed, it does not run, and what is the administrator's stays. Purged, all is
# gone but the images.
in_it systemctl start nvmeof-target
in_it dpkg -r nvmeof-target
! active || fail "it runs without its package"
[ -f "$CONF" ] || fail "removing took the configuration"
touch /var/lib/nvmeof/.state.json.new-left-over
for kept in state.json state.json.lock state.json.namespaces state.json.sizes \
    state.json.incarnations; do
    [ -e /var/lib/nvmeof/$kept ] || fail "there is no $kept"
done
in_it dpkg -P nvmeof-target nvmeof
[ ! -e "$CONF" ] || fail "purging left the configuration"
expect_eq "what purging left" disk.img "$(ls -A /var/lib/nvmeof)"
[ -s /var/lib/nvmeof/disk.img ] || fail "purging took an image"
rm -r /var/lib/nvmeof
left=$(find /etc /usr /var/lib/nvmeof -xdev 2>/dev/null | grep -i nvmeof || true)
expect_eq "files that are left" "$BEFORE" "$left"
systemd_stop
