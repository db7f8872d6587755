#!/bin/bash
# about: commands that the documents run as root, verbatim and in order, with the configuration that they show
# providers: iwarp
# timeout: 400
# packages: yes
source /lab/guest/lib.sh
source /lab/guest/service.sh
dmesg_expect 'nvme_rdma|(siw|rxe)[0-9]*: '

# The working directory: the folder of the project, with the packages.
TREE=$WORK/tree
mkdir -p "$TREE/build/deb"
cp /lab/packages/*.deb "$TREE/build/deb"
cp /lab/project/systemd/debian/target.toml "$TREE"
ln -s /lab/project/systemd "$TREE/systemd"
ln -s /lab/bin "$TREE/build/release"

# types COMMAND : root types that. Addresses are those of the machine; the kernel
# is out here, the service with systemd.
ran=0
types() {
    local command=${1%%  #*}
    command=${command//192.0.2.1/$ADDRESS}
    case $command in
    nvme\ * | modprobe\ *) bash -ec "$command" >"$OUT/typed" 2>&1 ;;
    *) in_it bash -ec "cd '$TREE'; $command" >"$OUT/typed" 2>&1 ;;
    esac || fail "$1: $(
        in_it journalctl -u nvmeof-target -n 5 -o cat
        tail -n 5 "$OUT/typed"
    )"
    ran=$((ran + 1))
}

# configured FILE : writes the configuration that a document shows.
configured() {
    sed -e "s/127\.0\.0\.1/$ADDRESS/; /^traddr/a provider = \"iwarp\"" \
        -e "s/^allowed_hosts = .*/allowed_hosts = [\"$(cat /etc/nvme/hostnqn)\"]/" "$1" >"$CONF"
}

# follow DOCUMENT [PATTERN] : does what it says: the lines after # in blocks of
# commands, and indented ones that PATTERN fits. The quick start has a
# configuration, others show parts of some.
follow() {
    local line kind='' before=$ran
    while IFS= read -r line <&3; do
        case $line in
        '```console') kind=console ;;
        '```toml') kind=toml && : >"$WORK/shown.toml" ;;
        '```')
            [ "$1 $kind" != "docs/quick-start.md toml" ] || configured "$WORK/shown.toml"
            kind=
            ;;
        '# '*) [ "$kind" != console ] || types "${line#\# }" ;;
        '    '*) [[ $# -lt 2 || ! ${line#    } =~ ^($2) ]] || types "${line#    }" ;;
        esac
        if [ "$kind" = toml ] && [ "$line" != '```toml' ]; then echo "$line" >>"$WORK/shown.toml"; fi
    done 3<"/lab/project/$1"
    [ $ran -gt "$before" ] || fail "$1: no command was found"
    record "$1" "$((ran - before)) commands"
}

# Without packages, and removed again.
systemd_start
follow systemd/README.md 'install |nvmeof|systemd-|systemctl '
active || fail "not started: $(in_it journalctl -u nvmeof-target -n 5 -o cat)"
follow docs/configuration.md 'systemctl '
follow docs/monitoring.md 'journalctl '
follow docs/security.md
in_it systemctl disable --now nvmeof-target
for file in /usr/share/man/man{8/nvmeof-target.8,5/nvmeof-target.toml.5,1/nvmeof.1}; do
    [ -s $file ] || fail "$file is missing"
done
rm -r /etc/nvmeof /usr/share/man/man{8,5,1}/nvmeof* \
    /usr/lib/systemd/system/nvmeof-target.service /usr/bin/nvmeof*
in_it systemctl daemon-reload

# From installation to a namespace in use, and back.
follow docs/quick-start.md
! active || fail "the service is active after removal"
in_it dpkg -P nvmeof
rm -r /var/lib/nvmeof
systemd_stop
