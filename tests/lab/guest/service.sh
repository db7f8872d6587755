# For scenarios with the service: systemd in namespaces of its own.
# shellcheck shell=bash
CONF=/etc/nvmeof/target.toml

# It prevents services from starting while an image is built.
rm -f /usr/sbin/policy-rc.d

# systemd_start : systemd as the first process of namespaces of its own.
systemd_start() {
    unshare --fork --kill-child --pid --mount --uts --ipc --cgroup \
        bash /lab/guest/systemd.sh >"$OUT/systemd.log" 2>&1 &
    UNSHARE=$!
    wait_for 60 first_process
    wait_for 120 booted
}

# first_process : sets SYSTEMD to the process id of systemd outside of its namespaces.
first_process() {
    SYSTEMD=$(pgrep -P "$UNSHARE" -x systemd)
}

# in_it COMMAND... : in the namespaces of systemd.
in_it() {
    nsenter --target "$SYSTEMD" --pid --mount --uts --ipc --cgroup -- \
        env PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"
}

# Units of the guest itself may fail.
booted() {
    [[ $(in_it systemctl is-system-running) =~ running|degraded ]]
}

active() {
    in_it systemctl is-active --quiet nvmeof-target
}

main_pid() {
    in_it systemctl show -P MainPID nvmeof-target
}

# systemd_stop : shuts systemd down.
systemd_stop() {
    in_it systemctl --no-block poweroff || kill -9 "$SYSTEMD"
    wait_for 60 gone
}

gone() {
    ! kill -0 "$UNSHARE"
}

# repacked PACKAGE VERSION : prints the path of the package as that version, whose
# configuration file says something else.
repacked() {
    local package=$1 version=$2 tree="/var/tmp/repacked" made="/var/tmp/nvmeof-target_$2.deb"
    rm -rf $tree
    dpkg-deb -R "$package" $tree
    sed -i "s/^Version: .*/Version: $version/" $tree/DEBIAN/control
    printf '\n# As of %s.\n' "$version" >>$tree$CONF
    # Compression takes a minute on an emulated CPU.
    dpkg-deb -Znone --root-owner-group -b $tree "$made" >&2
    rm -r $tree
    echo "$made"
}
