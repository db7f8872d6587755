#!/bin/bash
# about: lists of namespaces and controllers, features and their effects, Abort, events, ANA groups, 256 ranges, the view of a second host, no SQ flow control
# providers: iwarp verbs-rxe verbs-siw
# timeout: 200
source /lab/guest/lib.sh

other=nqn.2026-11.org.example:other
other_id=1ab00000-0000-4000-8000-000000000002
trace=/sys/kernel/tracing

# json COMMAND ARGUMENT... : of nvme on the controller.
json() {
    nvme "$1" "/dev/$CTRL" "${@:2}" -o json
}
# line FILTER : values of the JSON on standard input, in one line.
line() {
    jq -r "[$1] | map(tostring) | join(\" \")"
}
# admin OPCODE ARGUMENT... : any admin command; all that nvme-cli says of it.
admin() {
    nvme admin-passthru "/dev/$CTRL" --opcode="$1" "${@:2}" 2>&1
}
# commands WORD... : identifiers of the commands that Linux sent since tracing began, of
# those whose line in its trace has all the words.
commands() {
    awk -v words="$*" 'BEGIN { n = split(words, all, " ") } /nvme_setup_cmd/ {
        for (i = 1; i <= n; i++) if (!index($0, all[i])) next
        sub(/.*cmdid=/, ""); print $0 + 0 }' $trace/trace
}

# Two ports, of which the second accepts less in-capsule data. Namespace 3 is disabled, and 4
# is for another host.
{
    printf '[[port]]\ntraddr = "%s"\ntrsvcid = %s\nprovider = "%s"\nin_capsule = 1024\n\n' \
        "$ADDRESS" $((PORT + 1)) "$ENGINE"
    config
    cat "$CONFIG"
} >"$WORK/both"
mv "$WORK/both" "$CONFIG"
namespace 1 "$(disk d1 64M)"
namespace 2 "$(disk d2 16M)" 'block_size = 4096' 'ana_group = 2'
namespace 3 "$(disk d3 16M)" 'enabled = false'
namespace 4 "$(disk d4 16M)" "hosts = [\"$other\"]"
# The state file, which keeps write protection.
printf '\n[control]\nstate = "%s"\n' "$WORK/state.json" >>"$CONFIG"
target_start
mount -t tracefs tracefs $trace
# Of earlier traces in this guest.
: >$trace/trace
echo 1 >$trace/events/nvme/nvme_async_event/enable
echo 1 >$trace/events/nvme/nvme_setup_cmd/enable
connect --disable-sqflow
wait_for 10 device 2
ours=$CTRL
disk=$(device 1)
id=$(<"/sys/class/nvme/$ours/cntlid")

# --- without flow control of submission queues

# One for each queue: bit 2 of CATTR asks for it (Base 2.1, 6.3).
expect_eq "Connect commands with flow control disabled" "$(<"/sys/class/nvme/$ours/queue_count")" \
    "$(commands fabrics_type_connect cattr=4, | wc -l)"
# All I/O below uses these queues.

# --- lists

list='.nsid_list[].nsid'
expect_eq "active namespaces (02h)" "1 2" "$(json list-ns | line "$list")"
expect_eq "those of the NVM command set (07h)" "1 2" "$(json list-ns --csi=0 | line "$list")"
expect_eq "allocated namespaces (10h)" "1 2 3" "$(json list-ns --all | line "$list")"
expect_eq "those of the NVM command set (1Ah)" "1 2 3" \
    "$(json list-ns --all --csi=0 | line "$list")"
expect_eq "allocated from 2 on" "2 3" "$(json list-ns --all -n 2 | line "$list")"
expect_match "another command set" 'Invalid Field' \
    "$(expect_fail nvme list-ns "/dev/$ours" --csi=2)"
expect_fields "id-ns of a disabled one" '{nsze: 0, nmic: 0}' "$(json id-ns -n 3)"
expect_fields "id-ns of a disabled one (11h)" '{nmic: 1, nsfeat: 2}' "$(json id-ns -n 3 --force)"
expect_fields "nvm-id-ns (05h)" '{lbstm: 0, pic: 0}' "$(json nvm-id-ns -n 1)"
expect_fields "cmdset-ind-id-ns (08h)" '{nmic: 1, anagrpid: 2, nstat: 1}' \
    "$(json cmdset-ind-id-ns -n 2)"
expect_eq "controllers (13h)" "$id" "$(json list-ctrl | line '.ctrl_list[].ctrl_id')"
expect_eq "controllers from the next on" "" \
    "$(json list-ctrl -c $((id + 1)) | line '.ctrl_list[].ctrl_id')"
expect_eq "controllers of 1 (12h)" "$id" "$(json list-ctrl -n 1 | line '.ctrl_list[].ctrl_id')"
expect_eq "controllers of a disabled one" "" "$(json list-ctrl -n 3 | line '.ctrl_list[].ctrl_id')"
expect_match "controllers of another host's" 'Invalid Field' \
    "$(expect_fail nvme list-ctrl "/dev/$ours" -n 4)"
expect_match "the controller of another command set (06h)" 'Invalid Field' \
    "$(expect_fail nvme admin-passthru "/dev/$ours" --opcode=6 --cdw10=6 \
        --cdw11=0x2000000 -l 4096 -r)"
# nvme-cli prints the name of the page first.
expect_fields "id-iocs (1Ch)" '{"I/O Command Set Combination[0]": 1}' \
    "$(json id-iocs | sed -n '/^{/,$p')"

# --- features

# Supported, of the controller: bits 0 and 21; 7 changes its capabilities, 5 and 82h to 84h are
# of a namespace, and 84h changes that.
declare -A effects=([5]=1048577 [7]=2097169 [130]=1048577 [131]=1048577 [132]=1048581)
wanted=
for fid in 1 2 4 5 6 7 10 11 14 15 22 25 129 130 131 132; do
    wanted+="fid_$fid=${effects[$fid]:-2097153} "
done
expect_eq "effects of features (12h)" "${wanted% }" \
    "$(json fid-support-effects-log | line '.fid_support[] | to_entries[] | "\(.key)=\(.value)"')"
# value SEL FID : 0 current, 1 default, 2 saved, 3 capabilities.
value() {
    nvme get-feature "/dev/$CTRL" -s "$1" -f "$2" | sed -n '1s/.*value: *\(0x\)\?0*\([0-9a-f]\)/\2/p'
}
while read -r fid default; do
    expect_eq "default of $fid" "$default" "$(value 1 "$fid")"
    # Nothing can be saved, so the default is what comes after a reset.
    expect_eq "saved value of $fid" "$default" "$(value 2 "$fid")"
    # Changeable (bit 2) alone.
    expect_eq "capabilities of $fid" 4 "$(value 3 "$fid")"
done <<'EOF'
4 157
7 f000f
0xb 0
0xf 1d4c0
0x16 0
EOF
expect_eq "command set profile (19h)" 0 "$(value 0 0x19)"
expect_fail nvme set-feature "/dev/$ours" -f 0x19 -V 1 >/dev/null
expect_match "no such SEL" 'Invalid Field' \
    "$(expect_fail nvme admin-passthru "/dev/$ours" --opcode=10 --cdw10=0x407)"
# Linux refuses to set 16h, Host Behavior Support ("Permission denied", also for root, without
# sending a command), so it is only read here. It does not set it itself for controllers without
# command retry delay times (CRDT1).
expect_eq "host behavior" "$(printf '00%.0s' {1..512})" \
    "$(nvme get-feature "/dev/$ours" -f 0x16 -l 512 -b | od -An -v -tx1 | tr -d ' \n')"

# --- events and Abort

expect_match "an Abort of what is not there" 'result: 0x0*1$' "$(admin 8 --cdw10=0x630000)"
expect_match "an Abort on a queue that is not there" 'result: 0x0*1$' "$(admin 8 --cdw10=0x630063)"
# Linux has one Asynchronous Event Request waiting; three more may, a fifth may not.
waiting() {
    [ "$(commands qid=0 async_event | wc -l)" = "$1" ]
}
for number in 1 2 3; do
    { admin 0xc --timeout=100000 >"$WORK/event$number" || true; } &
    wait_for 10 waiting "$number"
done
expect_match "a fifth request" 'Asynchronous Event Request Limit Exceeded' \
    "$(expect_fail nvme admin-passthru "/dev/$ours" --opcode=0xc --timeout=20000)"
# They are taken back one by one: each answer says that it was aborted (bit 0 is 0).
for number in 1 2 3; do
    cid=$(commands qid=0 async_event | sed -n "${number}p")
    expect_match "Abort of request $number" 'result: 0x0+$' "$(admin 8 --cdw10=$((cid << 16)))"
    wait_for 10 grep -q 'Command Abort Requested' "$WORK/event$number"
done

# --- ANA groups

groups=$(json ana-log -g)
expect_eq "groups alone" "1:0 2:0" \
    "$(line '."ANA DESC LIST "[] | "\(.grpid):\(.nnsids)"' <<<"$groups")"
expect_eq "groups and namespaces" "1:1 2:2" \
    "$(json ana-log | line '."ANA DESC LIST "[] | "\(.grpid):\(.NSIDS[].nsid)"')"

# --- 256 ranges in one command

# Eight blocks of each 256: context attributes, length, first block. nvme dsm makes no
# such list.
for range in {0..255}; do
    printf '\0\0\0\0\10\0\0\0\0'"\\x$(printf %02x "$range")"'\0\0\0\0\0\0'
done >"$WORK/ranges"
dd if=<(tr '\0' '\252' </dev/zero) of="$disk" bs=1M count=32 iflag=fullblock oflag=direct \
    status=none
nvme io-passthru "$disk" -n 1 --opcode=9 --cdw10=255 --cdw11=4 -l 4096 -w \
    -i "$WORK/ranges" >/dev/null
expect_eq "bytes that are zero after 256 ranges" $((256 * 4096)) \
    "$(dd if="$disk" bs=1M count=32 iflag=direct status=none | tr -d '\252' | wc -c)"
for block in 0 7 65280 65287; do
    dd if="$disk" bs=512 skip=$block count=1 iflag=direct status=none |
        cmp -n 512 - /dev/zero || fail "block $block has data"
done

# --- a second host, by the second port

connect -s $((PORT + 1)) -q "$other" -I "$other_id"
theirs=$CTRL
expect_eq "IOCCSZ of the first port" 260 "$(nvme id-ctrl "/dev/$ours" -o json | field .ioccsz)"
expect_eq "IOCCSZ of the second port" 68 "$(json id-ctrl | field .ioccsz)"
expect_eq "active namespaces of the second host" "1 2 4" "$(json list-ns | line "$list")"
their_id=$(<"/sys/class/nvme/$theirs/cntlid")
expect_eq "controllers of both" "$(printf '%s\n' "$id" "$their_id" | sort -n | paste -sd' ')" \
    "$(json list-ctrl | line '.ctrl_list[].ctrl_id')"
expect_eq "controllers of 4" "$their_id" \
    "$(json list-ctrl -n 4 | line '.ctrl_list[].ctrl_id')"
# If one host write-protects a namespace, the other one gets an event and cannot write.
heard() {
    grep -q "$theirs: NVME_AEN=0x040002" $trace/trace
}
! heard || fail "the second host had an event before anything changed"
nvme set-feature "/dev/$ours" -f 0x84 -n 1 -V 1
wait_for 10 heard
expect_match "protected for the second host" 'value:(0x)?0*1$' \
    "$(nvme get-feature "/dev/$theirs" -f 0x84 -n 1 | head -n 1)"
expect_eq "NSATTR for the second host" 1 "$(json id-ns -n 1 | field .nsattr)"
expect_match "a write of the second host" 'Write[[:space:]]+Protected' \
    "$(expect_fail initiator write -q "$other" -I "$other_id" --namespace-id 1 \
        --start-block 0 --block-count 8 --data "$WORK/ranges")"
nvme set-feature "/dev/$theirs" -f 0x84 -n 1 -V 0
expect_match "the first host, after the second took it back" 'value:(0x)?0+$' \
    "$(nvme get-feature "/dev/$ours" -f 0x84 -n 1 | head -n 1)"

echo 0 >$trace/events/nvme/enable
disconnect

# --- discovery with extended entries

# A controller that stays; bit 0 of the log specific parameter (EXTDLPE, Base 2.1,
# 5.1.12.3.1) asks for entries of 1032 bytes after a header that says how long all is.
nvme discover -t rdma -a "$ADDRESS" -s "$PORT" -p -o json >"$WORK/log"
discovery=$(grep -lx nqn.2014-08.org.nvmexpress.discovery /sys/class/nvme/*/subsysnqn)
discovery=$(basename "$(dirname "$discovery")")
entries=$(field '.records | length' <"$WORK/log")
# number OFFSET BYTES LSP : of the log.
number() {
    nvme get-log "/dev/$discovery" -i 0x70 -l 4096 -b --lsp="$3" |
        od -An -j "$1" -N "$2" -tu"$2" | tr -d ' '
}
expect_eq "total length without extended entries (TDLPL)" 0 "$(number 20 4 0)"
expect_eq "total length with them" $((1024 + entries * 1032)) "$(number 20 4 1)"
expect_eq "length of the first entry (TEL)" 1032 "$(number 2048 4 1)"
nvme disconnect -d "$discovery"
target_stop
