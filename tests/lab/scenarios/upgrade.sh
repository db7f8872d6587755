#!/bin/bash
# about: verified writes and a mounted file system while the package is upgraded and the target is killed: no I/O error; the longest stall beside nvmet
# providers: iwarp verbs-rxe verbs-siw
# timeout: 420
# long-timeout: 3000
# packages: yes
source /lab/guest/lib.sh
source /lab/guest/service.sh
source /lab/guest/work.sh

losses_expected
dmesg_expect 'nvmet_rdma: '
rounds=2
[ -z "$LONG" ] || rounds=20

# As docs/managing.md recommends.
host=(--reconnect-delay=1 --ctrl-loss-tmo=-1)

# live : whether the host has its connections again.
live() {
    controller_is live
}

# replaced PID : whether the service is there with another process than this one.
replaced() {
    active && [ "$(main_pid)" != "$1" ] && [ "$(main_pid)" != 0 ]
}

systemd_start
in_it dpkg -i /lab/packages/nvmeof_*-1_*.deb /lab/packages/nvmeof-target_*-1_*.deb
for number in 1 2; do
    in_it truncate -s 64M /var/lib/nvmeof/$number.img
    in_it chown nvmeof: /var/lib/nvmeof/$number.img
done
CONFIG=$CONF config /var/lib/nvmeof/1.img /var/lib/nvmeof/2.img
in_it systemctl restart nvmeof-target
version=$(in_it dpkg-query -W -f '${Version}' nvmeof-target)
packages=()
for number in 1 2; do
    packages+=("$(repacked /lab/packages/nvmeof-target_*-1_*.deb "$version.$number")")
done
connect "${host[@]}"
# In the service, a target can find locks that a killed one still has.
in_it nsenter --target "$(main_pid)" --mount -- grep -q FLOCK /proc/locks ||
    fail "the service does not see locks in /proc/locks"

work_start "package upgrade"
for ((round = 0; round < rounds; round++)); do
    old=$(main_pid)
    in_it dpkg --force-confdef --force-confold -i "${packages[round % 2]}" </dev/null
    replaced "$old" || fail "the upgrade did not restart the service"
    wait_for 60 live
    sleep 1
    work_runs
done
work_stop

work_start "kill -9"
for ((round = 0; round < rounds; round++)); do
    old=$(main_pid)
    in_it kill -9 "$old"
    wait_for 60 replaced "$old"
    wait_for 60 live
    # More often than five times in ten seconds, systemd does not start a service.
    sleep 2
    work_runs
done
work_stop

# Kills at each step of a restart: at a later one in each round.
work_start "kill -9 during a restart"
for ((round = 0; round < 2 * rounds; round++)); do
    old=$(main_pid)
    in_it systemctl --no-block restart nvmeof-target
    sleep "$(printf '0.%02d' $((round * 80 / (2 * rounds))))"
    while read -r process; do
        in_it kill -9 "$process" || true
    done < <(in_it pgrep -x nvmeof-target)
    wait_for 60 replaced "$old"
    expect_eq "processes" 1 "$(in_it pgrep -xc nvmeof-target)"
    wait_for 60 live
    sleep 2
    work_runs
done
work_stop

work_start "systemctl restart"
in_it systemctl restart nvmeof-target
wait_for 60 live
sleep 1
work_stop
disconnect
in_it dpkg -P nvmeof-target nvmeof
rm -r /var/lib/nvmeof
systemd_stop

# The kernel target with the same options of the host: its service removes and writes its
# configuration.
nvmet_restart() {
    local nvmet=/sys/kernel/config/nvmet
    rm $nvmet/ports/1/subsystems/*
    rmdir $nvmet/ports/1 $nvmet/subsystems/*/namespaces/* $nvmet/subsystems/*
    nvmet_start "${loops[@]}"
}

modprobe loop
loops=("$(losetup --find --show "$(disk d1 64M)")" "$(losetup --find --show "$(disk d2 64M)")")
nvmet_start "${loops[@]}"
connect "${host[@]}"
work_start "restart of nvmet"
nvmet_restart
wait_for 60 live
sleep 1
work_stop
disconnect
