#!/bin/bash
# Functions for scenarios. A scenario is a file in tests/lab/scenarios:
#
#   #!/bin/bash
#   # about: what it verifies, in one line              (required)
#   # providers: iwarp verbs-rxe verbs-siw              (required, one or more)
#   # timeout: 120                                      (seconds, default 120)
#   # long-timeout: 1200                                (with --long, default: timeout)
#   # memory: 2048                                      (MiB, default 1024)
#   # transport: yes                                    (--rotate uses all providers)
#   # packages: yes                                     (requires /lab/packages)
#   # outside: gateways                                 (runs outside/gateways.sh meanwhile)
#   source /lab/guest/lib.sh
#   config "$(disk d1 256M)"
#   target_start
#   connect
#   mkfs.ext4 -q "$(device 1)"
#   expect_eq "block size" 512 "$(nvme id-ns "$(device 1)" -o json | field '.lbafs[0].ds | pow(2; .)')"
#   disconnect
#   target_stop
#
# A scenario runs once for each provider, with `set -Eeuo pipefail`. The first
# command that fails ends the scenario, and the table of results shows the line
# of that command. Afterwards the kernel log must be free of warnings, except
# those that the scenario declares with `dmesg_expect`. A scenario need not clean
# up: processes, mounts, controllers and the configuration of nvmet are removed
# after each scenario. The scenario fails if something cannot be removed.
#
# Variables:
#   PROVIDER   iwarp      software iWARP in the target process, kernel host over siw0
#              verbs-rxe  libibverbs over rxe0 (RoCEv2)
#              verbs-siw  libibverbs over siw0 (iWARP)
#   ENGINE     iwarp or verbs: name of the provider for target and initiator
#   RDMA       rxe0 or siw0: the RDMA device of the kernel host
#   ADDRESS    address of that device, on which the target listens
#   PORT       port of the target, 4420
#   NQN        NQN of the subsystem
#   WORK       empty folder on disk, removed afterwards
#   OUT        folder on the host machine, kept if the scenario fails
#   CONFIG     configuration of the target, $WORK/target.toml
#   TARGET     process id of the target
#   CTRL       controller of the last connect, such as nvme0
#   LONG       "long" with --long: repeat faults more often; otherwise empty
#   TURN       number of commits, by which a short run rotates what only --long runs whole

: "${PROVIDER:=iwarp}" "${WORK:=/work}" "${OUT:=$WORK}" "${LONG:=}" "${TURN:=0}"
case $PROVIDER in
iwarp) ENGINE=iwarp RDMA=siw0 ADDRESS=10.10.1.1 ;;
verbs-rxe) ENGINE=verbs RDMA=rxe0 ADDRESS=10.10.0.1 ;;
verbs-siw) ENGINE=verbs RDMA=siw0 ADDRESS=10.10.1.1 ;;
esac
PORT=4420
NQN=nqn.2026-11.org.example:lab
CONFIG=$WORK/target.toml
TARGET=
CTRL=
LOG=$OUT/target.log
EXPECTED_DMESG='^$'
export PROVIDER ENGINE RDMA ADDRESS PORT NQN WORK OUT CONFIG

# --- results -----------------------------------------------------------------

# reason TEXT : the cause of a failure; the first one counts.
reason() {
    [ -s /run/lab/reason ] || printf '%s\n' "${1//$'\n'/ }" >/run/lab/reason
}

# fail TEXT : ends the scenario.
# The status of a subshell among arguments, such as "$(expect_fail ...)", is lost:
# the scenario then fails at its end.
fail() {
    reason "$*"
    [ -s /run/lab/failed ] || printf '%s\n' "${*//$'\n'/ }" >/run/lab/failed
    echo "FAILED: $*" >&2
    exit 1
}

# record KEY VALUE : a figure for the results.
record() {
    printf '%s\t%s\n' "$1" "$2" >>/run/lab/records
}

# compare WORK ROUND MEASURE THEIRS OURS : operations per second of the device of
# the yardstick and of this project, which `MEASURE DEVICE WORK` prints, one
# directly after the other. The order alternates between rounds, because it may
# influence the result.
compare() {
    local theirs ours
    # Not among arguments, where the status of a failure would be lost.
    if [ $(($2 % 2)) = 1 ]; then
        theirs=$("$3" "$4" "$1")
        ours=$("$3" "$5" "$1")
    else
        ours=$("$3" "$5" "$1")
        theirs=$("$3" "$4" "$1")
    fi
    record "compare $1 $2" "$theirs $ours"
}

# expect_eq WHAT WANTED GOT
expect_eq() {
    [ "$2" = "$3" ] && return
    diff <(printf '%s\n' "$2") <(printf '%s\n' "$3") >&2 || true
    fail "$1: expected '$2', got '$3'"
}

# expect_match WHAT REGULAR-EXPRESSION GOT
expect_match() {
    [[ $3 =~ $2 ]] || fail "$1: expected a match of '$2', got '$3'"
}

# expect_ge WHAT LEAST GOT : whole numbers.
expect_ge() {
    [ "$3" -ge "$2" ] || fail "$1: expected at least $2, got $3"
}

# expect_fail COMMAND... : the command must fail; prints its output.
expect_fail() {
    ! "$@" 2>&1 || fail "succeeded, expected failure: $*"
}

# field FILTER : the value of a jq filter over the JSON on standard input.
field() {
    jq -er "$1"
}

# wait_for SECONDS COMMAND... : until the command succeeds. The limit is a minute at least,
# because this machine may be busy.
wait_for() {
    local seconds=$(($1 > 60 ? $1 : 60))
    local until=$((SECONDS + seconds))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -le "$until" ] || fail "not true within $seconds s: $*"
        sleep 0.1
    done
}

# --- target ------------------------------------------------------------------

# disk NAME SIZE : an empty sparse file; prints its path.
disk() {
    truncate -s "$2" "$WORK/$1"
    echo "$WORK/$1"
}

# config [PATH...] : configures one subsystem with a namespace for each path
# (a file, ram:SIZE or null:SIZE). More can be appended to $CONFIG.
config() {
    cat >"$CONFIG" <<TOML
[[port]]
traddr = "$ADDRESS"
trsvcid = $PORT
provider = "$ENGINE"

[[subsystem]]
nqn = "$NQN"
allow_any_host = true
TOML
    local nsid=0 path
    for path; do
        nsid=$((nsid + 1))
        namespace "$nsid" "$path"
    done
}

# namespace NSID PATH [TOML-LINE...] : appended to the last subsystem.
namespace() {
    printf '\n[[subsystem.namespace]]\nnsid = %s\npath = "%s"\n' "$1" "$2" >>"$CONFIG"
    [ $# -lt 3 ] || printf '%s\n' "${@:3}" >>"$CONFIG"
}

# target_start : starts the target and waits until it is ready.
target_start() {
    local lines=0
    [ ! -f "$LOG" ] || lines=$(wc -l <"$LOG")
    nvmeof-target serve --config "$CONFIG" >>"$LOG" 2>&1 &
    TARGET=$!
    for _ in {1..1000}; do
        if tail -n +$((lines + 1)) "$LOG" | grep 'ready: serving' >/dev/null; then return; fi
        [ -d "/proc/$TARGET" ] || break
        sleep 0.1
    done
    fail "the target does not start: $(tail -n 1 "$LOG")"
}

# target_stop [SIGNAL] : stops the target, which must exit with status 0.
target_stop() {
    kill -s "${1:-TERM}" "$TARGET"
    local status=0
    timeout 100 tail --pid="$TARGET" -f /dev/null || fail "the target does not stop"
    wait "$TARGET" || status=$?
    expect_eq "exit status of the target" 0 "$status"
    TARGET=
}

# target_kill : kills the target with SIGKILL.
target_kill() {
    kill -9 "$TARGET"
    wait "$TARGET" || true
    TARGET=
}

# target_logged REGULAR-EXPRESSION : whether the target logged it.
target_logged() {
    grep -Eq "$1" "$LOG"
}

# --- kernel host -------------------------------------------------------------

# connect [ARGUMENT...] : of nvme connect; they override the defaults. Sets CTRL.
connect() {
    local answer
    answer=$(nvme connect -t rdma -a "$ADDRESS" -s "$PORT" -n "$NQN" -o json "$@")
    CTRL=$(field .device <<<"$answer")
    wait_for 10 device 1
}

# disconnect : all controllers of the subsystem.
disconnect() {
    nvme disconnect -n "$NQN"
}

# device NSID : the block device of a namespace of the controller CTRL.
device() {
    local subsystem head
    for subsystem in /sys/class/nvme-subsystem/*; do
        [ -e "$subsystem/$CTRL" ] || continue
        for head in "$subsystem"/nvme*n[0-9]*; do
            if [ "$(cat "$head/nsid")" = "$1" ]; then
                [ -b "/dev/${head##*/}" ] || return 1
                echo "/dev/${head##*/}"
                return
            fi
        done
    done 2>/dev/null
    return 1
}

# controller_state : live, connecting, deleting ... of the controller CTRL.
controller_state() {
    cat "/sys/class/nvme/$CTRL/state"
}

# controller_is STATE : whether the controller CTRL is in that state.
controller_is() {
    [ "$(controller_state)" = "$1" ]
}

# checksum FILE... : one sum over the contents of files or devices, in order.
checksum() {
    cat "$@" | sha256sum | cut -d' ' -f1
}

# --- initiator, kernel target ------------------------------------------------

# initiator COMMAND [ARGUMENT...] : nvmeof with address, provider, subsystem.
initiator() {
    local nqn=(-n "$NQN")
    [ "$1" != discover ] || nqn=()
    nvmeof "$1" -t rdma -a "$ADDRESS" -s "$PORT" --provider "$ENGINE" "${nqn[@]}" "${@:2}"
}

# nvmet_start DEVICE... : the kernel target with a namespace for each device.
nvmet_start() {
    local nvmet=/sys/kernel/config/nvmet nsid=0 device
    modprobe -a nvmet nvmet_rdma
    local subsystem=$nvmet/subsystems/$NQN
    mkdir "$subsystem"
    echo 1 >"$subsystem/attr_allow_any_host"
    for device; do
        nsid=$((nsid + 1))
        mkdir "$subsystem/namespaces/$nsid"
        echo -n "$device" >"$subsystem/namespaces/$nsid/device_path"
        # As a saved configuration has it: otherwise each start makes a new one.
        printf '1ab00001-0000-4000-8000-%012d' "$nsid" >"$subsystem/namespaces/$nsid/device_uuid"
        echo 1 >"$subsystem/namespaces/$nsid/enable"
    done
    mkdir $nvmet/ports/1
    echo rdma >$nvmet/ports/1/addr_trtype
    echo ipv4 >$nvmet/ports/1/addr_adrfam
    echo "$ADDRESS" >$nvmet/ports/1/addr_traddr
    echo "$PORT" >$nvmet/ports/1/addr_trsvcid
    ln -s "$subsystem" "$nvmet/ports/1/subsystems/$NQN"
}

# --- the machine outside of the guest -----------------------------------------

# outside COMMAND... : a command of the script that runs there; prints its output.
outside() {
    local result
    printf 'outside\t%s\n' "$*" >&3
    IFS= read -r -t 400 result <&3 || fail "no response outside of the guest: $*"
    result=${result%$'\r'}
    [ "$result" = ok ] || fail "outside of the guest: $result"
    cat "$OUT/output"
}

# outside_network : the device siw1, over which 10.0.2.2 is loopback of that machine.
outside_network() {
    local interface
    modprobe virtio_net
    interface=$(basename /sys/bus/virtio/drivers/virtio_net/virtio*/net/*)
    ip address add 10.0.2.15/24 dev "$interface"
    ip link set "$interface" up
    rdma link add siw1 type siw netdev "$interface"
}

# --- leaks -------------------------------------------------------------------

# footprint : current resources of the target, "descriptors objects kilobytes";
# objects are the RDMA device's queue pairs, completion queues and so on.
footprint() {
    local descriptors resident objects
    descriptors=$(find "/proc/$TARGET/fd" -mindepth 1 | wc -l)
    resident=$(sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\).*/\1/p' "/proc/$TARGET/status")
    objects=$(rdma resource show "$RDMA" | grep -oE '(pd|cq|qp|cm_id|mr|srq) [0-9]+' | tr -d ' ' | paste -sd,)
    echo "$descriptors $objects $resident"
}

# leaks_none BEFORE KILOBYTES : compares with an earlier footprint. Descriptors and RDMA
# objects must be the same again; memory may grow a little.
leaks_none() {
    local before=$1 now
    for _ in {1..600}; do
        now=$(footprint)
        if [ "${now% *}" = "${before% *}" ]; then break; fi
        sleep 0.1
    done
    expect_eq "descriptors and RDMA objects of the target" "${before% *}" "${now% *}"
    local grown=$((${now##* } - ${before##* }))
    record grown_kib "$grown"
    [ "$grown" -le "$2" ] || fail "the target grew by $grown KiB, at most $2 are allowed"
}

# --- the kernel's multipath ---------------------------------------------------

MULTIPATH=/sys/module/nvme_core/parameters/multipath

# multipath Y|N : reloads the kernel's host with that setting. Scenarios end with Y.
multipath() {
    nvme disconnect-all
    modprobe -r nvme_rdma nvme_fabrics nvme_core
    modprobe nvme_core multipath="$1"
    modprobe nvme_rdma
}

# without_multipath : each controller has its own block devices. Otherwise those of several hosts
# are paths of one.
without_multipath() {
    multipath N
    dmesg_expect 'nvme[0-9]+: (Found shared namespace|Support for shared namespaces without)'
}

# --- the kernel log ----------------------------------------------------------

# dmesg_expect REGULAR-EXPRESSION : this scenario causes such lines.
dmesg_expect() {
    EXPECTED_DMESG="$EXPECTED_DMESG|$1"
}

# losses_expected : what a host reports when a path or the target is lost. I/O errors are still
# failures.
losses_expected() {
    dmesg_expect 'nvme nvme[0-9]+: .*(failed|rejected|error|I/O|[Rr]econnect|timeout|dying|resetting)'
    dmesg_expect 'no usable path|nvme_rdma|callbacks suppressed|(siw|rxe)[0-9]*: '
    dmesg_expect 'ctrl_loss_tmo < 0 will reconnect forever'
}

# since_begin : the part of the kernel log on standard input since the scenario began. It
# reads all of it: an early end would break the pipe of the writer.
since_begin() {
    awk '/lab: begin/ { n = 0 } { line[n++] = $0 } END { for (i = 0; i < n; i++) print line[i] }'
}

# undisturbed CONTROLLER : fails if that controller ever lost its connections, also where
# such lines of others are expected.
undisturbed() {
    local lost
    lost=$(dmesg --notime | since_begin |
        grep -E "nvme $1: .*([Rr]econnect|resetting|error recovery|timeout|dying)") || return 0
    fail "$1 lost its connections: ${lost%%$'\n'*}"
}

# check_dmesg : fails on errors and relevant warnings since the beginning of the
# scenario. Runs automatically at the end.
check_dmesg() {
    local bad
    bad=$(dmesg --decode --notime | since_begin |
        grep -E '^[a-z]+ *:(emerg|alert|crit|err) |^[a-z]+ *:warn .*(nvme|siw|rxe|infiniband|rdma|WARNING|BUG|EXT4|XFS|Call Trace)' |
        grep -vE 'clocksource|rcu:|hogged CPU|interrupt took too long|long keepalive RTT|keep_alive_end_io error=4|speed is unknown|iwpm_register_pid' |
        grep -vE "$EXPECTED_DMESG") || return 0
    echo "$bad"
    bad=${bad%%$'\n'*}
    fail "kernel log: ${bad#*:*: }"
}

# finish STATUS : called when the scenario ends, for any cause.
finish() {
    set +x
    trap - ERR EXIT
    grep -q Y "$MULTIPATH" || multipath Y
    if [ "$1" = 0 ] && [ -s /run/lab/failed ]; then
        cp /run/lab/failed /run/lab/reason
        exit 1
    elif [ "$1" = 0 ]; then
        check_dmesg
    elif [ -f "$LOG" ]; then
        echo "--- last lines of the target's log:"
        tail -n 5 "$LOG"
    fi
    exit "$1"
}

# --- JSON --------------------------------------------------------------------

# expect_fields WHAT WANTED GOT : every field of WANTED, an object as jq writes
# it, is in the JSON object GOT with the same value.
expect_fields() {
    local wrong
    wrong=$(jq -rn --argjson got "$3" "($2)"' | to_entries[] |
        select($got[.key] != .value) | "\(.key) is \($got[.key]), not \(.value)"')
    [ -z "$wrong" ] || fail "$1: ${wrong//$'\n'/, }"
}

# shape : of the JSON on standard input, a line `PATH TYPE` for each key, elements of
# arrays as one.
shape() {
    jq -r '[paths as $path | "\($path | map(if type == "number" then "*" else . end) |
        join(".")) \(getpath($path) | type)"] | unique[]'
}

# same_shape WHAT THEIRS OURS [OURS-ONLY...] : the JSON of nvmeof has each key of that of
# nvme-cli, of the same type, and no others except those named.
same_shape() {
    local what=$1 theirs ours
    theirs=$(shape <<<"$2")
    ours=$(shape <<<"$3" | grep -vxE "$(printf '(%s) .*|' "${@:4}")")
    expect_ge "$what: keys" 1 "$(grep -c . <<<"$theirs")"
    expect_eq "$what: keys and types of nvme-cli and nvmeof" "$theirs" "$ours"
}

# --- fio ---------------------------------------------------------------------

# fio_report FILE : the JSON of fio without the messages around it.
fio_report() {
    sed -n '/^{/,/^}/p' "$1"
}

# fio_complaint FILE : its first message about an error; FILE is NAME.json, and
# what fio wrote to its standard error NAME.err.
fio_complaint() {
    grep -hm 1 -E 'verify: |verify failed|err=' "${1%.json}.err" "$1" | head -n 1 | grep . ||
        echo "fio failed, see ${1##*/}"
}

# run_jobs NAME JOBS ARGUMENT... : jobs of fio-configs in their short form, all
# of which must pass. Records operations per second and the 99th percentile of the
# latency, in a column named by NAME up to its hyphen. Reports are kept in $OUT/NAME.
run_jobs() {
    local results status=0 wanted=${2//[^,]/} job operation figures
    # ENGINE has another meaning for that script.
    results=$(env -u ENGINE RUNTIME=1 VERIFY_SIZE=2M /lab/fio-configs/run --short \
        --jobs "$2" -o json --keep "$OUT/$1" "${@:3}" 2>"$OUT/$1.log") || status=$?
    [ "$status" -le 1 ] || fail "fio-configs/run: $(tail -n 1 "$OUT/$1.log")"
    expect_eq "jobs of $1 that did not pass" "" "$(field '[.jobs[] | select(.status != "ok") |
        "\(.job) \(.status): \(.message)"] | join("; ")' <<<"$results")"
    expect_eq "jobs of $1" $((${#wanted} + 1)) "$(field '.jobs | length' <<<"$results")"
    while IFS=$'\t' read -r job operation figures; do
        record "$job $operation, ${1%%-*}" "$figures"
    done < <(field '.jobs[] | {job} + .results[] |
        [.job, .operation, "\(.iops | round)/s \(.p99_us // 0 | . / 100 | round | . / 10) ms"] | @tsv' <<<"$results")
}

# all_jobs : the names of all jobs of fio-configs, for run_jobs.
all_jobs() {
    /lab/fio-configs/run --list | grep -v '^ ' | paste -sd,
}
