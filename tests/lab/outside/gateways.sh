#!/bin/bash
# Gateways on this machine that serve images of a Ceph cluster, for a scenario in the guest.
#
# The runner starts this script in the folder of the scenario. Each line on standard input is a
# command. Its output is written to `output`, and then `ok` or `failed: CAUSE` to standard output. A
# command that fails ends the script.
#
#   cluster           starts a cluster of one node, and creates the images
#   gateway NAME      starts the gateway gw1 or gw2; prints its port
#   signal NAME SIG   sends a signal; with KILL and TERM, waits for its end
#   ctl NAME WORD...  of that gateway
#   errors            prints all errors that gateways logged
#
# All of it ends with standard input, so also if the runner is killed.
#
# Environment: NVMEOF_TARGET, the program; NVMEOF_CEPH_CACHE, the folder with Ceph's packages.
set -euo pipefail

NQN=nqn.2026-11.org.example:lab
CEPH=$(dirname "$(realpath "$0")")/../../ceph/one-node.sh
FOLDER=$PWD/outside
# Namespaces, all in ANA group 1.
IMAGES=3
declare -A PIDS=() PORTS=()

fail() {
    printf '%s\n' "$*" >&2
    return 1
}

cluster() {
    "$CEPH" packages "$NVMEOF_CEPH_CACHE" </dev/null
    env -u PORT -u OSD_STORE -u OSD_SIZE \
        "$CEPH" up "$NVMEOF_CEPH_CACHE" "$FOLDER/ceph" --until-pid $$ </dev/null
    eval "$("$CEPH" env "$NVMEOF_CEPH_CACHE" "$FOLDER/ceph")"
    local number
    for ((number = 1; number <= IMAGES; number++)); do
        rbd create --size 64M "rbd/n$number"
    done
}

# free_port : nothing listens on it, and no other gateway has it.
free_port() {
    local port
    for _ in {1..100}; do
        port=$((30000 + RANDOM % 2000))
        if [[ " ${PORTS[*]} " != *" $port "* ]] &&
            ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            printf '%d' "$port"
            return
        fi
    done
    fail 'no free port'
}

# configuration NAME PORT
configuration() {
    local first=${1#gw}00 number
    cat <<TOML
[control]
socket = "$FOLDER/$1.sock"

[ceph]
conf = "$NVMEOF_CEPH_CONF"
user = "$NVMEOF_CEPH_USER"
keyring = "$NVMEOF_CEPH_KEYRING"

[ha]
gateway = "$1"
record = "rbd/ha"

[[ha.group]]
id = 1
gateways = ["gw1", "gw2"]

[[port]]
traddr = "127.0.0.1"
trsvcid = $2
provider = "iwarp"

[[subsystem]]
nqn = "$NQN"
serial = "HA1"
allow_any_host = true
cntlid_min = $first
cntlid_max = $((first + 99))
TOML
    for ((number = 1; number <= IMAGES; number++)); do
        printf '\n[[subsystem.namespace]]\nnsid = %s\npath = "rbd:rbd/n%s"\nana_group = 1\n' \
            $number $number
    done
}

gateway() {
    local name=$1 log=$FOLDER/$1.log lines=0
    [ -n "${PORTS[$name]:-}" ] || PORTS[$name]=$(free_port)
    configuration "$name" "${PORTS[$name]}" >"$FOLDER/$name.toml"
    [ ! -f "$log" ] || lines=$(wc -l <"$log")
    "$NVMEOF_TARGET" serve --config "$FOLDER/$name.toml" >>"$log" 2>&1 </dev/null &
    PIDS[$name]=$!
    for _ in {1..600}; do
        if tail -n +$((lines + 1)) "$log" | grep -q 'ready: serving'; then
            echo "${PORTS[$name]}"
            return
        fi
        kill -0 "${PIDS[$name]}" || break
        sleep 0.1
    done
    fail "$name does not start: $(tail -n 1 "$log")"
}

signal() {
    local name=$1 pid=${PIDS[$1]} status=0
    kill -s "$2" "$pid"
    case $2 in
    KILL | TERM) ;;
    *) return 0 ;;
    esac
    wait "$pid" || status=$?
    unset "PIDS[$name]"
    [ "$2" = KILL ] || [ $status = 0 ] || fail "$name ended with status $status"
}

ctl() {
    timeout 100 "$NVMEOF_TARGET" ctl --socket "$FOLDER/$1.sock" "${@:2}"
}

errors() {
    grep -h ERROR "$FOLDER"/gw?.log || true
}

# finish STATUS : ends everything; a failed command ends this script.
finish() {
    [ "$1" = 0 ] || printf 'failed: %s: %s\n' "${words[*]}" "$(tail -n 1 errors | tr '\t' ' ')"
    local pid
    for pid in "${PIDS[@]}"; do
        # Without the message of the shell that it was killed.
        { kill -KILL "$pid"; wait "$pid"; } 2>/dev/null || true
    done
    [ ! -d "$FOLDER/ceph" ] || "$CEPH" down "$FOLDER/ceph"
}

words=()
trap 'finish $?' EXIT
trap 'exit 1' INT TERM
mkdir -p "$FOLDER"
while read -ra words; do
    case ${words[0]:-} in
    cluster | gateway | signal | ctl | errors) "${words[@]}" >output 2>errors ;;
    *) fail "unknown command" 2>errors ;;
    esac
    echo ok
done
words=()
