#!/bin/bash
# about: kernel hosts prove their keys and the target proves its own, for each hash function and group; refusals; keys change live under verified I/O
# providers: iwarp verbs-rxe verbs-siw
# timeout: 500
# long-timeout: 3000
source /lab/guest/lib.sh

# What the host reports of a failed authentication. I/O errors are still failures.
dmesg_expect 'nvme nvme[0-9]+: qid [0-9]+:? (no key|auth|controller authentication failed|failed to receive|error)'
dmesg_expect 'nvme nvme[0-9]+: (Connect (command failed|Invalid)|failed to connect queue|Connect rejected|resetting controller)'
dmesg_expect 'no usable path|Connect for subsystem .* is not allowed, hostnqn: |nvme_rdma|(siw|rxe)[0-9]*: '

host=nqn.2026-11.org.example:host
id=1ab00000-0000-4000-8000-0000000000a1
stranger=nqn.2026-11.org.example:stranger
stranger_id=1ab00000-0000-4000-8000-0000000000a2
required=$NQN-required
keys=$WORK/keys
mkdir -m 700 "$keys"

# ctl ARGUMENT... : changes the running target.
ctl() {
    nvmeof-target ctl --socket "$WORK/control.sock" "$@"
}

# key NAME [ARGUMENT...] : a new key of nvme-cli, also in a file that only root can read.
key() {
    local text
    text=$(nvme gen-dhchap-key "${@:2}")
    printf '%s\n' "$text" >"$keys/$1"
    chmod 600 "$keys/$1"
    echo "$text"
}

# as_host ARGUMENT... : connects as the host that has keys.
as_host() {
    connect -q "$host" -I "$id" "$@"
}

# fabrics OPTION... : has the kernel connect that host, without nvme-cli.
fabrics() {
    local options=transport=rdma,traddr=$ADDRESS,trsvcid=$PORT,hostnqn=$host,hostid=$id
    printf -v options '%s,' "$options" "$@"
    printf %s "${options%,}" >/dev/nvme-fabrics
}

# refused [OPTION...] : that host is refused beside its other connections. nvme-cli would take the
# keys of another controller of the same subsystem.
refused() {
    expect_fail fabrics nqn="$NQN" duplicate_connect "$@" >"$OUT/refused"
}

# read_block : one block over an I/O queue of the controller CTRL.
read_block() {
    dd if="$(device 1)" of=/dev/null bs=4k count=1 iflag=direct status=none
}

# said LINE : how often the host logged that of an admin queue.
said() {
    dmesg --notime | since_begin | grep -cF ": qid 0: $1" || true
}

# more_than COUNT LINE : whether it logged that more often.
more_than() {
    [ "$(said "$2")" -gt "$1" ]
}

# proved HASH GROUP : as the host logs it.
proved() {
    echo "authenticated with hash hmac($1) dhgroup $2"
}

# authenticates KEYS HASH GROUP [ARGUMENT...] : sets the keys of the host, "host" or "host
# controller", then connects with the ARGUMENTs and reads.
authenticates() {
    local files=(--key-file "$keys/${1%% *}") line before both
    [ "${1%% *}" = "$1" ] || files+=(--controller-key-file "$keys/${1##* }")
    ctl host set-key "$host" "${files[@]}" --hash "$2" --dh-groups "$3"
    line=$(proved "$2" "$3")
    before=$(said "$line")
    both=$(said "controller authenticated")
    as_host "${@:4}"
    more_than "$before" "$line" || fail "the host did not use $2 and $3"
    [ "${1%% *}" = "$1" ] || more_than "$both" "controller authenticated" ||
        fail "the host did not authenticate the controller with $2 and $3"
    read_block
    disconnect
}

# again FILE KEY HASH GROUP : writes KEY to the attribute FILE of the controller CTRL, which
# authenticates the host again, and waits for that.
again() {
    local line before
    line=$(proved "$3" "$4")
    before=$(said "$line")
    printf '%s' "$2" >"/sys/class/nvme/$CTRL/$1"
    wait_for 60 more_than "$before" "$line"
}

# controllers FILTER : a jq filter over the controllers of the host that the target reports.
controllers() {
    ctl status -o json | jq -er "[.controllers[] | select(.host == \"$host\")] | $1"
}

# key_is STATE : whether all of them, of which there is one at least, used that key.
key_is() {
    controllers "length > 0 and all(.authentication.key == \"$1\")"
}

host_key=$(key host --hmac=0 --key-length=32)
controller_key=$(key controller --hmac=0 --key-length=32)
other_key=$(key other --hmac=0 --key-length=32)

config "$(disk d1 64M)"
cat >>"$CONFIG" <<TOML

[[subsystem]]
nqn = "$required"
allow_any_host = true
require_authentication = true
TOML
namespace 1 "$(disk d2 16M)"
cat >>"$CONFIG" <<TOML

[[host]]
nqn = "$host"
key_file = "$keys/host"
TOML
sed -i "1i [control]\nsocket = \"$WORK/control.sock\"\nstate = \"$WORK/state.json\"\n" "$CONFIG"
target_start

# A host without a key connects without authentication, but not under the name of the host that
# has one.
connect -q "$stranger" -I "$stranger_id"
read_block
disconnect
refused
as_host --dhchap-secret "$host_key"
read_block
wait_for 10 key_is current
disconnect

# Transformations of keys and their lengths (blktests nvme/042).
for kind in 0:32 0:48 0:64 1:32 2:48 3:64; do
    text=$(key kind --hmac="${kind%:*}" --key-length="${kind#*:}" --nqn="$host")
    authenticates kind sha256 null --dhchap-secret "$text"
done
# A key of this project.
nvmeof gen-dhchap-key --hmac 2 >"$keys/ours"
chmod 600 "$keys/ours"
authenticates ours sha384 ffdhe2048 --dhchap-secret "$(<"$keys/ours")"

# Hash functions, groups, one-way and two-way (blktests nvme/041, 043 and 044). A short run has
# one row, which changes with the commits so that each provider gets each row.
rows=()
for group in null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192; do
    for hash in sha256 sha384 sha512; do
        rows+=("$hash $group one-way" "$hash $group two-way")
    done
done
[ -n "$LONG" ] || rows=("${rows[TURN / 3 % ${#rows[@]}]}")
for row in "${rows[@]}"; do
    read -r hash group ways <<<"$row"
    case $ways in
    one-way) authenticates host "$hash" "$group" --dhchap-secret "$host_key" ;;
    two-way)
        authenticates "host controller" "$hash" "$group" --dhchap-secret "$host_key" \
            --dhchap-ctrl-secret "$controller_key"
        ;;
    esac
    record "authentication, $hash, $group, $ways" passed
done

# From here on the host does verified I/O, which no refusal and no change of keys disturbs.
ctl host set-key "$host" --key-file "$keys/host" --controller-key-file "$keys/controller" \
    --hash sha256 --dh-groups null
as_host --dhchap-secret "$host_key" --dhchap-ctrl-secret "$controller_key"
honest=$CTRL
fio --name=verify --filename="$(device 1)" --rw=randwrite --bs=4k --iodepth=8 --size=32M \
    --verify=crc32c --verify_fatal=1 --verify_backlog=256 --time_based --runtime=3600 \
    --thinktime=10ms --thinktime_blocks=16 --randseed=$SRANDOM --ioengine=io_uring --direct=1 \
    --output-format=json --output="$OUT/verify.json" 2>"$OUT/verify.err" &
fio=$!

# runs : fails if fio ended.
runs() {
    [ -d "/proc/$fio" ] || fail "$1: fio ended: $(fio_complaint "$OUT/verify.json")"
    controller_is live || fail "$1: the controller is $(controller_state)"
}

refused dhchap_secret="$other_key"
wait_for 10 target_logged "authentication failed: the response matches none of the keys of the host"
refused
refused dhchap_secret="$host_key" dhchap_ctrl_secret="$other_key"
wait_for 10 target_logged "authentication failed: the host reports: "
runs "refusals"

# Again, with the same keys, then with another key of the controller, another group, another
# hash function (blktests nvme/045).
again dhchap_secret "$host_key" sha256 null
again dhchap_ctrl_secret "$controller_key" sha256 null
other_controller_key=$(key other-controller --hmac=1)
ctl host set-key "$host" --force --key-file "$keys/host" \
    --controller-key-file "$keys/other-controller" \
    --hash sha256 --dh-groups null
again dhchap_ctrl_secret "$other_controller_key" sha256 null
ctl host set-key "$host" --force --key-file "$keys/host" \
    --controller-key-file "$keys/other-controller" \
    --hash sha256 --dh-groups ffdhe2048
again dhchap_secret "$host_key" sha256 ffdhe2048
ctl host set-key "$host" --force --key-file "$keys/host" \
    --controller-key-file "$keys/other-controller" \
    --hash sha512 --dh-groups ffdhe2048
again dhchap_secret "$host_key" sha512 ffdhe2048
runs "authentication again"

# A wrong key of a connected host: it goes on, and the right key authenticates it.
failed=$(said "authentication failed")
printf '%s' "$other_key" >"/sys/class/nvme/$CTRL/dhchap_secret"
wait_for 60 more_than "$failed" "authentication failed"
runs "a wrong key"
again dhchap_secret "$host_key" sha512 ffdhe2048

# Rotation: the target accepts both keys until the host has the new one.
new_key=$(key new --hmac=0 --key-length=48)
ctl host rotate-key "$host" --key-file "$keys/new"
expect_fail ctl host rotate-key "$host" --key-file "$keys/other" >/dev/null
wait_for 10 key_is old
expect_fail ctl host remove-old-key "$host" >/dev/null
# The old key still connects.
nvme reset "/dev/$CTRL"
wait_for 20 controller_is live
again dhchap_secret "$new_key" sha512 ffdhe2048
wait_for 10 key_is current
ctl host remove-old-key "$host"
refused dhchap_secret="$host_key"
runs "rotation"

# A file with another key under the same name.
newest_key=$(key new --hmac=0 --key-length=64)
kill -HUP "$TARGET"
wait_for 10 key_is removed
again dhchap_secret "$newest_key" sha512 ffdhe2048
wait_for 10 key_is current
runs "another key in the same file"

# The subsystem that requires keys, and a host whose key is removed while it is connected.
NQN=$required as_host --dhchap-secret "$newest_key"
expect_fail nvme connect -t rdma -a "$ADDRESS" -s "$PORT" -n "$required" -q "$stranger" \
    -I "$stranger_id" >"$OUT/refused"
wait_for 10 target_logged "$stranger.*$required|$required.*$stranger"
ctl host remove-key "$host"
read_block
wait_for 10 key_is removed
NQN=$required disconnect
expect_fail nvme connect -t rdma -a "$ADDRESS" -s "$PORT" -n "$required" -q "$host" -I "$id" \
    --dhchap-secret "$newest_key" >"$OUT/refused"
CTRL=$honest
runs "key removed"
ctl host set-key "$host" --force --key-file "$keys/new" \
    --controller-key-file "$keys/other-controller" \
    --hash sha384 --dh-groups ffdhe3072
again dhchap_secret "$newest_key" sha384 ffdhe3072
runs "key set again"

kill -INT $fio
status=0
wait $fio || status=$?
# 128: ended by the signal.
[[ $status = 0 || $status = 128 ]] || fail "$(fio_complaint "$OUT/verify.json")"
expect_eq "errors of fio" 0 "$(fio_report "$OUT/verify.json" | field '.jobs[0].error')"
disconnect

# Discovery with keys.
sed -i '/^\[\[host\]\]/i [discovery]\nrequire_authentication = true\n' "$CONFIG"
kill -HUP "$TARGET"
at=(-t rdma -a "$ADDRESS" -s "$PORT" -q "$host" -I "$id")
requires() {
    ! nvme discover "${at[@]}" -o json
}
wait_for 10 requires
# libnvme 1.x passes no key for a discovery controller.
finder=nqn.2014-08.org.nvmexpress.discovery
expect_fail fabrics nqn=$finder dhchap_secret="$other_key" >"$OUT/refused"
fabrics nqn=$finder dhchap_secret="$newest_key"
discovery=$(grep -lx $finder /sys/class/nvme/*/subsysnqn)
discovery=$(basename "${discovery%/subsysnqn}")
log=$(nvme discover -d "$discovery" "${at[@]}" -o json)
expect_eq "subsystems" "$NQN $required" "$(field '[.records[].subnqn] | join(" ")' <<<"$log")"
nvme connect-all -d "$discovery" "${at[@]}" --dhchap-secret "$newest_key"
both() {
    controllers "map(.subsystem) | any(. == \"$NQN\") and any(. == \"$required\")"
}
wait_for 10 both
nvme disconnect-all
target_stop
