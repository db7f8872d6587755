#!/bin/bash
# A Ceph cluster of one monitor and one OSD on loopback, from Debian's packages. They are
# unpacked into a folder and not installed; neither command requires root.
set -euo pipefail

usage() {
    cat <<'END'
Usage: one-node.sh packages CACHE               download and unpack the packages
       one-node.sh up CACHE RUN [--until-pid PID]  start a cluster with all its files in RUN
       one-node.sh env CACHE RUN [--plain]      print its environment, for `eval`;
                                                --plain: NAME=VALUE
       one-node.sh down RUN                     end its processes and remove RUN
       one-node.sh stop RUN                     end its processes and keep RUN

With --until-pid, the cluster ends when that process has ended.

Variables of `up`:
  PORT       port of the monitor; a free one by default
  OSD_STORE  memstore (default, in memory) or bluestore (a file in RUN)
  OSD_SIZE   capacity in MiB; 1536 by default, 4096 for bluestore
END
}

# The programs that this script and tests use.
PROGRAMS=(ceph-authtool ceph-mon ceph-osd monmaptool rados rbd)
# librbd1 and librados2 are in the cache even if they are installed: all programs must use the
# same version.
PACKAGES=(ceph-common ceph-mon ceph-osd librados2 librbd1)
# Dependencies of maintainer scripts, of real disks and of radosgw; sudo would also put a program
# with the set-user-ID bit into the cache.
UNNEEDED='^(sudo|lvm2|liblvm2cmd.*|dmeventd|libdevmapper-event.*|parted|libparted.*|gdisk|hdparm|'
UNNEEDED+='cryptsetup-bin|dmidecode|logrotate|nvme-cli|libnvme1|smartmontools|uuid-runtime|'
UNNEEDED+='xfsprogs|libinih1|adduser|python3-rgw|librgw2)$'

# Bounds of every wait, in seconds: an overloaded machine takes longer than an idle one.
START_TIMEOUT=120

fail() {
    printf 'one-node.sh: %s\n' "$*" >&2
    exit 1
}

# progress TEXT : a line with the time since the start.
progress() {
    printf 'ceph: %2d s: %s\n' "$SECONDS" "$*"
}

# --- packages ---------------------------------------------------------------------------------

packages() {
    local cache
    cache=$(absolute "$1")
    mkdir -p "$cache"
    # Another run may be unpacking into the same folder.
    exec {lock}>"$cache/lock"
    flock "$lock"
    if [ -f "$cache/complete" ] && programs_run "$cache/root"; then
        return
    fi
    local tool
    for tool in apt-get dpkg dpkg-query; do
        command -v "$tool" >/dev/null || fail "$tool: not found; the cluster is made of Debian's" \
            'packages, so run this on Debian or Ubuntu'
    done
    rm -rf -- "$cache/complete" "$cache/root" "${cache:?}/bin" "$cache/new"
    # The lists of the system may be missing or older than the archive.
    if ! download "$cache" 2>"$cache/apt.log"; then
        progress 'updating the package lists in the cache'
        private_lists "$cache"
        if ! apt "$cache" update >>"$cache/apt.log" 2>&1 ||
            ! download "$cache" 2>>"$cache/apt.log"; then
            tail -n 20 "$cache/apt.log" >&2
            fail "packages ${PACKAGES[*]} cannot be downloaded; check the network and" \
                "/etc/apt/sources.list, then repeat the command; the log is $cache/apt.log"
        fi
    fi
    progress 'unpacking'
    local file
    for file in "$cache"/new/*.deb; do
        dpkg -x "$file" "$cache/new/root"
    done
    mv -- "$cache/new/root" "$cache/root"
    programs_run "$cache/root" verbose || fail "$cache: the unpacked programs do not run; see above"
    wrappers "$cache"
    (cd "$cache/new" && printf '%s\n' *.deb) >"$cache/packages"
    rm -rf -- "$cache/new"
    mv -- "$cache/packages" "$cache/complete"
    progress "packages are ready: $(wc -l <"$cache/complete"), $(du -sh "$cache/root" | cut -f1)"
}

# apt CACHE ARGUMENT... : apt-get, with the lists in the cache if there are any.
apt() {
    local cache=$1 own=()
    shift
    if [ -d "$cache/apt/lists" ]; then
        own=(-o "Dir::State::Lists=$cache/apt/lists" -o "Dir::Cache=$cache/apt/cache")
    fi
    # The user _apt cannot write to a folder of this user.
    LC_ALL=C apt-get -q -o APT::Sandbox::User= -o Debug::NoLocking=1 "${own[@]}" "$@"
}

private_lists() {
    mkdir -p "$1/apt/lists/partial" "$1/apt/cache/archives/partial"
}

# download CACHE : the packages and their missing dependencies, to CACHE/new.
download() {
    local cache=$1 plan names
    # The state of the system decides what is missing; -s changes nothing and needs no rights.
    plan=$(apt "$cache" -s --no-install-recommends install "${PACKAGES[@]}") || return
    # `Inst NAME [OLD] (VERSION ...)`
    names=$(sed -n 's/^Inst \([^ ]*\) .*/\1/p' <<<"$plan")
    names=$(printf '%s\n' "$names" "${PACKAGES[@]}" | sort -u | grep -Ev "$UNNEEDED")
    mapfile -t names <<<"$names"
    progress "downloading ${#names[@]} packages"
    rm -rf -- "$cache/new"
    mkdir -p "$cache/new"
    local ticker status=0
    report_size "$cache/new" &
    ticker=$!
    (cd "$cache/new" && apt "$cache" download "${names[@]}" >&2) || status=$?
    kill "$ticker" 2>/dev/null || true
    return "$status"
}

# report_size FOLDER : a line every 5 s while the script runs.
report_size() {
    local size tick
    for ((tick = 1; ; tick++)); do
        # Short: it keeps the output open after this function is killed.
        sleep 1
        kill -0 $$ 2>/dev/null || return 0
        ((tick % 5 == 0)) || continue
        size=$(du -sm "$1" 2>/dev/null | cut -f1) || continue
        progress "downloaded $size MiB of about 46"
    done
}

# libraries ROOT : the value of LD_LIBRARY_PATH.
libraries() {
    local folder list=
    for folder in "$1"/usr/lib/*-linux-gnu "$1"/lib/*-linux-gnu "$1"/usr/lib/*-linux-gnu/ceph; do
        [ ! -d "$folder" ] || list+=${list:+:}$folder
    done
    printf '%s' "$list"
}

# programs_run ROOT [verbose] : whether all programs find all their libraries.
programs_run() {
    local root=$1 program folder missing
    local -x LD_LIBRARY_PATH
    LD_LIBRARY_PATH=$(libraries "$root")
    for program in "${PROGRAMS[@]}"; do
        [ -x "$root/usr/bin/$program" ] || return 1
        missing=$(ldd "$root/usr/bin/$program" | grep 'not found') || continue
        [ -z "${2:-}" ] || printf '%s:\n%s\n' "$program" "$missing" >&2
        return 1
    done
    # Libraries that are loaded by name: object classes, erasure codes, Python.
    for folder in "$root"/usr/lib/*-linux-gnu/{rados-classes,ceph/erasure-code}; do
        [ -d "$folder" ] || return 1
    done
    [ -z "${2:-}" ] || "$root/usr/bin/rbd" --version
}

# wrappers CACHE : programs to call without LD_LIBRARY_PATH. `ceph` is a script for Debian's
# Python, which need not be the first in PATH.
wrappers() {
    local cache=$1 program python=/usr/bin/python3
    [ -x "$python" ] || python=$cache/root/usr/bin/python3
    mkdir -p "$cache/bin"
    for program in ceph "${PROGRAMS[@]}"; do
        {
            printf '#!/bin/bash\n'
            # shellcheck disable=SC2016 # The wrapper expands them.
            printf 'LD_LIBRARY_PATH=%q${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n' \
                "$(libraries "$cache/root")"
            printf 'export LD_LIBRARY_PATH\n'
            if [ "$program" = ceph ]; then
                printf 'PYTHONPATH=%q exec %q %q "$@"\n' \
                    "$cache/root/usr/lib/python3/dist-packages" "$python" \
                    "$cache/root/usr/bin/ceph"
            else
                printf 'exec %q "$@"\n' "$cache/root/usr/bin/$program"
            fi
        } >"$cache/bin/$program"
        chmod +x "$cache/bin/$program"
    done
}

# --- up ---------------------------------------------------------------------------------------

up() {
    local cache run owner=
    cache=$(absolute "$1")
    run=$(absolute "$2")
    if [ $# -eq 4 ] && [ "$3" = --until-pid ]; then
        owner=$4
        [ -d "/proc/$owner" ] || fail "--until-pid: $owner: no such process"
    elif [ $# -ne 2 ]; then
        usage >&2
        exit 2
    fi
    [ -f "$cache/complete" ] || fail "$cache: no packages; run: one-node.sh packages $cache"
    local name
    # The watchdog of a killed run may not have ended its cluster yet.
    if [ -f "$run/owner.pid" ] && ! is_running "$run/owner.pid"; then
        down "$run"
    fi
    for name in mon osd; do
        ! is_running "$run/$name.pid" ||
            fail "$run: a cluster is running; end it with: one-node.sh down $run"
    done
    remove "$run"
    # Keyrings are in it.
    (umask 077 && mkdir -p "$run" && touch "$run/.one-node")
    # Also after Ctrl-C.
    trap 'down "$run"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    # Before the processes that it ends.
    [ -z "$owner" ] || watch "$run" "$owner"

    PATH=$cache/bin:$PATH
    export CEPH_CONF=$run/ceph.conf
    unset CEPH_ARGS
    local port=${PORT:-} fsid osd_uuid
    [ -n "$port" ] || port=$(free_port)
    OSD_STORE=${OSD_STORE:-memstore}
    case $OSD_STORE in
    memstore) OSD_SIZE=${OSD_SIZE:-1536} ;;
    bluestore) OSD_SIZE=${OSD_SIZE:-4096} ;;
    *) fail "OSD_STORE: $OSD_STORE is not a store; use memstore or bluestore" ;;
    esac
    fsid=$(</proc/sys/kernel/random/uuid)
    osd_uuid=$(</proc/sys/kernel/random/uuid)
    configuration "$cache/root" "$run" "$port" "$fsid" >"$CEPH_CONF"
    keyrings "$run"

    progress "starting the monitor on port $port"
    monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$port]" "$run/monmap" \
        >"$run/log/setup" 2>&1
    ceph-mon --mkfs -i a --monmap "$run/monmap" --keyring "$run/mon.keyring" >>"$run/log/setup" 2>&1
    start "$run" mon ceph-mon -f -i a
    # The command waits until the monitor listens.
    answers "$run" mon ceph osd new "$osd_uuid" 0

    progress "starting the OSD ($OSD_STORE, $OSD_SIZE MiB)"
    ceph-osd -i 0 --mkfs --osd-uuid "$osd_uuid" >>"$run/log/setup" 2>&1 ||
        fail_with "$run/log/setup" 'the OSD cannot create its store'
    # Memory of the OSD beside its store is far below 4 GiB. The store detects too late that it is
    # full if it is filled within a second.
    (
        ulimit -v $(((OSD_SIZE + 4096) * 1024))
        start "$run" osd ceph-osd -f -i 0
    )
    answers "$run" osd ceph osd pool create rbd
    answers "$run" osd ceph osd pool application enable rbd rbd

    progress 'waiting for the pool'
    # Blocks until the placement group is active.
    answers "$run" osd rados -p rbd put ready /dev/null
    answers "$run" osd rados -p rbd rm ready
    trap - EXIT INT TERM
    progress "cluster is ready: $CEPH_CONF"
}

# configuration ROOT RUN PORT FSID
configuration() {
    local root=$1 run=$2 port=$3 fsid=$4 lib sockets=
    lib=$(dirname "$root"/usr/lib/*-linux-gnu/rados-classes)
    # The path of a socket has at most 107 bytes. Without them, only `ceph daemon` is missing.
    [ ${#run} -gt 90 ] || sockets="$run/\$name.asok"
    cat <<END
[global]
fsid = $fsid
mon_host = [v2:127.0.0.1:$port]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
run_dir = $run
keyring = $run/\$name.keyring
log_file =
log_to_stderr = true
err_to_stderr = true
debug_default = 0/0
$(printf 'debug_%s = 0/0\n' asok auth bluefs bluestore bdev client crush filer finisher heartbeatmap \
    journal journaler kinetic leveldb memdb mon monc ms none objecter objclass optracker osd paxos \
    perfcounter rados rbd rgw rocksdb throttle timer tp)
plugin_dir = $lib/ceph
osd_class_dir = $lib/rados-classes
erasure_code_dir = $lib/ceph/erasure-code
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
# A placement group serves requests for one read lease (grace of heartbeats times this ratio, 16 s
# by default) after it was renewed. If it expires, for example while the OSD is stopped with
# SIGSTOP, the group is laggy and delays all requests until another OSD acknowledges a lease.
# There is no other OSD, so it would delay them forever: use one hour.
osd_pool_default_read_lease_ratio = 180

[mon]
mon_data = $run/mon
keyring = $run/mon/keyring
admin_socket = $sockets
mon_initial_members = a
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_cluster_log_to_file = false
mon_health_to_clog = false
mon_warn_on_pool_no_redundancy = false
# The monitor ends itself when the file system is nearly full.
mon_data_avail_crit = 0
mon_data_avail_warn = 2
# Changes of a map are published without waiting for more of them.
paxos_propose_interval = 0.05
paxos_min_wait = 0.01

[osd]
# An OSD that was stopped must not abort when it continues.
osd_op_thread_suicide_timeout = 0
osd_data = $run/osd
admin_socket = $sockets
osd_objectstore = $OSD_STORE
# The OSD detects with its heartbeats that its store is full.
osd_heartbeat_interval = 1
osd_memory_target = 939524096
memstore_device_bytes = ${OSD_SIZE}M
bluestore_block_size = ${OSD_SIZE}M
END
}

# keyrings RUN : of the cluster and of its users.
keyrings() {
    local run=$1
    user "$run/mon.keyring" mon. mon 'allow *'
    user "$run/client.admin.keyring" client.admin mon 'allow *' osd 'allow *' mgr 'allow *' \
        mds 'allow *'
    user "$run/osd.0.keyring" osd.0 mon 'allow profile osd' osd 'allow *'
    user "$run/client.nvmeof.keyring" client.nvmeof mon 'profile rbd' osd 'profile rbd pool=rbd'
    # May connect, and may not use any pool.
    user "$run/client.unprivileged.keyring" client.unprivileged mon 'allow r'
    # The monitor adds all users of its first keyring.
    local name
    for name in client.admin osd.0 client.nvmeof client.unprivileged; do
        cat "$run/$name.keyring" >>"$run/mon.keyring"
    done
    mkdir -p "$run/mon" "$run/osd" "$run/log"
}

# user FILE NAME [SERVICE CAPS]...
user() {
    local file=$1 name=$2 caps=()
    shift 2
    while [ $# -gt 0 ]; do
        caps+=(--cap "$1" "$2")
        shift 2
    done
    (umask 077 && ceph-authtool --create-keyring "$file" --gen-key -n "$name" "${caps[@]}" >/dev/null)
}

# free_port : nothing listens on it. Below the range that the kernel gives to clients.
free_port() {
    local port
    for _ in {1..100}; do
        port=$((20000 + RANDOM % 10000))
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            printf '%d' "$port"
            return
        fi
    done
    fail 'found no free port; choose one: PORT=3300'
}

# start RUN NAME COMMAND... : in a session of its own, which Ctrl-C does not reach.
start() {
    local run=$1 name=$2
    shift 2
    setsid "$@" >"$run/log/$name" 2>&1 </dev/null &
    remember "$run/$name.pid" $!
    # Its end is not a message of this shell.
    disown
}

# answers RUN NAME COMMAND... : the command succeeds while process NAME runs.
answers() {
    local run=$1 name=$2
    shift 2
    if ! timeout "$START_TIMEOUT" "$@" >>"$run/log/setup" 2>&1; then
        is_running "$run/$name.pid" || fail_with "$run/log/$name" "$name ended unexpectedly"
        fail_with "$run/log/setup" "failed: $*"
    fi
}

# fail_with LOG TEXT
fail_with() {
    tail -n 30 "$1" >&2
    fail "$2; see above"
}

# watch RUN PID : ends the cluster when that process has ended.
watch() {
    local run=$1
    remember "$run/owner.pid" "$2"
    setsid "$0" watchdog "$run" >/dev/null 2>&1 </dev/null &
    remember "$run/watchdog.pid" $!
}

watchdog() {
    while is_running "$1/owner.pid"; do
        sleep 1
    done
    down "$1"
}

# --- processes --------------------------------------------------------------------------------

# started PID : when it started, which tells it from a later process with the same number.
started() {
    local stat
    { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return
    # The name in parentheses may contain anything.
    read -ra stat <<<"${stat##*) }"
    # A zombie does not run.
    [ "${stat[0]}" != Z ] && printf '%s' "${stat[19]}"
}

# remember FILE PID : its number and start time.
remember() {
    local since
    since=$(started "$2") || since=0
    printf '%s %s\n' "$2" "$since" >"$1"
}

# is_running FILE : whether the process that it names still runs.
is_running() {
    local pid since
    [ -f "$1" ] && read -r pid since <"$1" && [ "$(started "$pid")" = "$since" ]
}

# terminate FILE : kills that process and waits for its end. Nothing of it is to be kept, and a
# stopped process does not receive SIGTERM.
terminate() {
    local pid
    is_running "$1" || return 0
    read -r pid _ <"$1"
    # The watchdog does not end itself.
    [ "$pid" != $$ ] || return 0
    kill -KILL "$pid" 2>/dev/null || true
    for _ in {1..200}; do
        is_running "$1" || return 0
        sleep 0.05
    done
    fail "process $pid does not end; see /proc/$pid/status"
}

stop() {
    local run name
    run=$(absolute "$1")
    for name in watchdog osd mon; do
        terminate "$run/$name.pid"
    done
}

down() {
    stop "$1"
    remove "$(absolute "$1")"
}

# remove RUN : only what this script has created.
remove() {
    [ -e "$1" ] || return 0
    [ -f "$1/.one-node" ] || rmdir -- "$1" 2>/dev/null ||
        fail "$1: not the folder of a cluster; choose another one"
    rm -rf -- "$1"
}

# --- env --------------------------------------------------------------------------------------

environment() {
    local cache run pid name
    cache=$(absolute "$1")
    run=$(absolute "$2")
    for name in mon osd; do
        is_running "$run/$name.pid" || fail "$run: the cluster is not running; start it with: one-node.sh up $cache $run"
    done
    local libraries variables
    libraries=$(libraries "$cache/root")
    variables=(
        "CEPH_CONF=$run/ceph.conf"
        "NVMEOF_CEPH_CONF=$run/ceph.conf"
        "NVMEOF_CEPH_POOL=rbd"
        "NVMEOF_CEPH_USER=nvmeof"
        "NVMEOF_CEPH_KEYRING=$run/client.nvmeof.keyring"
        "NVMEOF_CEPH_UNPRIVILEGED_USER=unprivileged"
        "NVMEOF_CEPH_UNPRIVILEGED_KEYRING=$run/client.unprivileged.keyring"
    )
    for name in mon osd; do
        read -r pid _ <"$run/$name.pid"
        variables+=("NVMEOF_CEPH_${name^^}_PID=$pid")
    done
    if [ "${3:-}" = --plain ]; then
        printf '%s\n' "PATH=$cache/bin:$PATH" \
            "LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "${variables[@]}"
        return
    fi
    # shellcheck disable=SC2016 # The shell that reads the output expands its own values.
    printf 'export PATH=%q:"$PATH"\nexport LD_LIBRARY_PATH=%q"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\n' \
        "$cache/bin" "$libraries"
    for name in "${variables[@]}"; do
        printf 'export %s=%q\n' "${name%%=*}" "${name#*=}"
    done
}

# --- command line -----------------------------------------------------------------------------

absolute() {
    realpath -m -- "$1"
}

case ${1:-}:$# in
packages:2) packages "$2" ;;
up:*) [ $# -ge 3 ] || { usage >&2; exit 2; }; shift; up "$@" ;;
env:3) environment "$2" "$3" ;;
env:4)
    [ "$4" = --plain ] || { usage >&2; exit 2; }
    environment "$2" "$3" "$4"
    ;;
down:2) down "$2" ;;
stop:2) stop "$2" ;;
watchdog:2) watchdog "$2" ;;
help:1 | --help:1) usage ;;
*)
    usage >&2
    exit 2
    ;;
esac
