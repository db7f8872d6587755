#!/bin/bash
# about: a setup of the kernel's target is imported and serves the same: data, blocks, names, ANA states
# providers: iwarp
# timeout: 240
source /lab/guest/lib.sh

NVMET=/sys/kernel/config/nvmet
MAIL=nqn.2026-11.org.example:mail
BUILD=nqn.2026-11.org.example:build
SECOND=4421
# A host that only the second subsystem takes.
STRANGER=nqn.2026-11.org.example:stranger
STRANGER_ID=1ab00000-0000-4000-8000-00000000f002

# Of the host that is refused, by either target: Connect Invalid Host, DNR.
dmesg_expect "Connect for subsystem $MAIL is not allowed, hostnqn: $STRANGER\$"
dmesg_expect 'failed to connect queue: 0 ret=16772'

# attributes FOLDER GROUP : as nvmetcli saves them: those that can be written, as
# the kernel shows them.
attributes() {
    local file
    find "$1" -maxdepth 1 -name "$2_*" -perm -u+w | while read -r file; do
        printf '%s\t%s\n' "$(basename "$file" | cut -d_ -f2-)" "$(cat "$file")"
    done | jq -Rn '[inputs | split("\t") | {(.[0]): .[1]}] | add // {}'
}

# names FOLDER : what is in it, as a list.
names() {
    find "$1" -mindepth 1 -maxdepth 1 -printf '%f\n' | jq -Rn '[inputs]'
}

namespace_json() {
    jq -n --argjson device "$(attributes "$1" device)" --argjson ana "$(attributes "$1" ana)" \
        --argjson enable "$(cat "$1/enable")" --argjson nsid "${1##*/}" \
        '{$device, $ana, $enable, $nsid, ana_grpid: ($ana.grpid | tonumber)}'
}

subsystem_json() {
    local namespace
    jq -n --argjson attr "$(attributes "$1" attr)" --arg nqn "${1##*/}" \
        --argjson allowed_hosts "$(names "$1/allowed_hosts")" \
        --argjson namespaces "$(for namespace in "$1"/namespaces/*; do
            namespace_json "$namespace"
        done | jq -s .)" '{$attr, $nqn, $allowed_hosts, $namespaces}'
}

group_json() {
    jq -n --argjson ana "$(attributes "$1" ana)" --argjson grpid "${1##*/}" '{$ana, $grpid}'
}

referral_json() {
    jq -n --argjson addr "$(attributes "$1" addr)" --argjson enable "$(cat "$1/enable")" \
        --arg name "${1##*/}" '{$addr, $enable, $name}'
}

port_json() {
    local group referral
    jq -n --argjson addr "$(attributes "$1" addr)" --argjson param "$(attributes "$1" param)" \
        --argjson portid "${1##*/}" --argjson subsystems "$(names "$1/subsystems")" \
        --argjson ana_groups "$(for group in "$1"/ana_groups/*; do
            group_json "$group"
        done | jq -s .)" --argjson referrals "$(for referral in "$1"/referrals/*/; do
            [ ! -d "$referral" ] || referral_json "${referral%/}"
        done | jq -s .)" '{$addr, $param, $portid, $subsystems, $ana_groups, $referrals}'
}

# save : what `nvmetcli save` writes.
save() {
    local one
    jq -n --argjson ports "$(for one in $NVMET/ports/*; do port_json "$one"; done | jq -s .)" \
        --argjson subsystems "$(for one in $NVMET/subsystems/*; do
            subsystem_json "$one"
        done | jq -s .)" --argjson hosts "$(names $NVMET/hosts | jq 'map({nqn: .})')" \
        '{$hosts, $ports, $subsystems}'
}

# serve_namespace SUBSYSTEM NSID PATH GROUP [NGUID] : with a UUID that the kernel makes.
serve_namespace() {
    local namespace=$NVMET/subsystems/$1/namespaces/$2
    mkdir "$namespace"
    [ $# -lt 5 ] || echo "$5" >"$namespace/device_nguid"
    echo -n "$3" >"$namespace/device_path"
    echo "$4" >"$namespace/ana_grpid"
    echo 1 >"$namespace/enable"
}

# serve_port ID SERVICE SUBSYSTEM...
serve_port() {
    local port=$NVMET/ports/$1 subsystem
    mkdir "$port"
    echo rdma >"$port/addr_trtype"
    echo ipv4 >"$port/addr_adrfam"
    echo "$ADDRESS" >"$port/addr_traddr"
    echo "$2" >"$port/addr_trsvcid"
    mkdir "$port/ana_groups/2"
    for subsystem in "${@:3}"; do
        ln -s "$NVMET/subsystems/$subsystem" "$port/subsystems/$subsystem"
    done
}

# serve_referral PORT-ID : to a discovery service that is not there.
serve_referral() {
    local referral=$NVMET/ports/$1/referrals/other
    mkdir "$referral"
    echo rdma >"$referral/addr_trtype"
    echo ipv4 >"$referral/addr_adrfam"
    echo 192.0.2.7 >"$referral/addr_traddr"
    echo 8009 >"$referral/addr_trsvcid"
    echo 9 >"$referral/addr_portid"
    echo 1 >"$referral/enable"
}

# paths COUNT : whether the controller CTRL has so many namespaces.
paths() {
    [ "$(find -L "/sys/class/nvme/$CTRL" -maxdepth 1 -name 'nvme*n*' | wc -l)" = "$1" ]
}

# groups : of the controller CTRL that have namespaces, a line each.
groups() {
    nvme ana-log "/dev/$CTRL" -o json | jq -r '."ANA DESC LIST "[] | select(.nnsids > 0) |
        "group \(.grpid) \(.state): \([.NSIDS[].nsid] | sort)"' | sort
}

# referrals : what the discovery log of the first port has of them, a line each.
referrals() {
    nvme discover -t rdma -a "$ADDRESS" -s "$PORT" -o json | jq -r '.records[] |
        select(.subtype | contains("referral")) |
        "\(.trtype) \(.adrfam) \(.traddr) \(.trsvcid) port \(.portid)"'
}

# refuse_stranger : nvme connect of that host fails, and says so.
refuse_stranger() {
    local said
    said=$(expect_fail nvme connect -t rdma -a "$ADDRESS" -s "$PORT" -n "$MAIL" \
        -q "$STRANGER" -I "$STRANGER_ID")
    echo "$said"
    [ -n "$said" ] || fail "nvme connect says nothing"
}

# refusals : how often Linux said that the host is not allowed.
refusals() {
    dmesg | since_begin | grep -c "is not allowed, hostnqn: $STRANGER" || true
}

# fill NSID : random data all over a namespace of the controller CTRL; prints their sum.
fill() {
    local disk
    wait_for 20 device "$1"
    disk=$(device "$1")
    head -c "$(blockdev --getsize64 "$disk")" /dev/urandom >"$WORK/data"
    dd if="$WORK/data" of="$disk" bs=1M oflag=direct conv=fsync status=none
    checksum "$WORK/data"
}

# sum_of NSID : of what is read from a namespace of the controller CTRL.
sum_of() {
    wait_for 20 device "$1"
    checksum "$(device "$1")"
}

# leads : where ports lead, as hosts discover it. The kernel's target tells at each port
# of that port alone, ours of all.
leads() {
    local service
    for service in "$PORT" "$SECOND"; do
        nvme discover -t rdma -a "$ADDRESS" -s "$service" -o json | jq -r '.records[] |
            select(.subtype == "nvme subsystem") |
            "port \(.portid) at \(.trsvcid) leads to \(.subnqn)"'
    done | sort -u
}

# seen : what a host sees through both ports, a line each.
seen() {
    leads
    subsystem "$MAIL" "$PORT" 2
    subsystem "$MAIL" "$SECOND" 2
    subsystem "$BUILD" "$PORT" 1
}

# subsystem NQN SERVICE NAMESPACES : what a host sees of it.
subsystem() {
    local path attribute
    connect -n "$1" -s "$2" >&2
    wait_for 20 paths "$3"
    echo "$1 $2"
    for attribute in serial model firmware_rev cntrltype; do
        echo "$attribute $(tr -d ' ' <"/sys/class/nvme/$CTRL/$attribute")"
    done
    nvme id-ctrl "/dev/$CTRL" -o json | jq -c '{ieee, cmic, nn, anacap, icdoff, ioccsz}'
    for path in /sys/class/nvme/"$CTRL"/nvme*n*; do
        echo "$(cat "$path/nsid") $(cat "$path/uuid")" \
            "$(cat "$path/nguid" 2>/dev/null || echo 'no NGUID') $(cat "$path/wwid")" \
            "group $(cat "$path/ana_grpid") $(cat "$path/ana_state")" \
            "$(cat "$path/size") sectors," \
            "blocks of $(cat "$path/queue/logical_block_size")"
    done | sort
    groups
    nvme disconnect -d "$CTRL" >&2
}

modprobe -a nvmet nvmet_rdma
for subsystem in "$MAIL" "$BUILD"; do
    mkdir "$NVMET/subsystems/$subsystem"
done
echo 0123456789abcdef0123 >"$NVMET/subsystems/$MAIL/attr_serial"
for subsystem in "$MAIL" "$BUILD"; do
    echo lab-7 >"$NVMET/subsystems/$subsystem/attr_firmware"
    echo 0x00a0b8 >"$NVMET/subsystems/$subsystem/attr_ieee_oui"
done
host=$(cat /etc/nvme/hostnqn)
mkdir "$NVMET/hosts/$host"
ln -s "$NVMET/hosts/$host" "$NVMET/subsystems/$MAIL/allowed_hosts/$host"
echo 1 >"$NVMET/subsystems/$BUILD/attr_allow_any_host"
# Groups are there when a port has them.
serve_port 1 "$PORT" "$MAIL" "$BUILD"
serve_port 2 "$SECOND" "$MAIL"
serve_referral 1
serve_namespace "$MAIL" 1 "$(disk mail-1 64M)" 1 ef90689c-6c46-d44c-89c1-4067801309a1
serve_namespace "$MAIL" 2 "$(disk mail-2 16M)" 2 ef90689c-6c46-d44c-89c1-4067801309a2
serve_namespace "$BUILD" 1 "$(disk build 8M)" 1
echo non-optimized >"$NVMET/ports/1/ana_groups/2/ana_state"
echo inaccessible >"$NVMET/ports/2/ana_groups/2/ana_state"

# A file system on a partition: it is lost if blocks have another size.
connect -n "$MAIL"
mkfs.ext4 -q "$(device 1)"
mkdir "$WORK/mounted"
mount "$(device 1)" "$WORK/mounted"
dd if=/dev/urandom of="$WORK/mounted/letter" bs=1M count=4 status=none
sum=$(checksum "$WORK/mounted/letter")
umount "$WORK/mounted"
mail=$(fill 2)
nvme disconnect -n "$MAIL"
connect -n "$BUILD"
build=$(fill 1)
nvme disconnect -n "$BUILD"

theirs=$(seen)
their_referrals=$(referrals)
expect_eq "referrals of the kernel's target" 'rdma ipv4 192.0.2.7 8009 port 9' "$their_referrals"
refuse_stranger
their_refusals=$(refusals)
expect_ge "refusals by the kernel's target" 1 "$their_refusals"
save >"$OUT/nvmet.json"
rm $NVMET/ports/*/subsystems/*
rmdir $NVMET/ports/*/referrals/*
rmdir $NVMET/ports/*/ana_groups/2 $NVMET/ports/*
nvmeof-target import "$OUT/nvmet.json" --output "$CONFIG" >"$OUT/import.log" 2>&1 ||
    fail "$(tail -n 1 "$OUT/import.log")"
expect_eq "items that are not carried over" "" "$(grep 'not carried over' "$OUT/import.log" || true)"
# Nobody said how many queues: the kernel's target has 128, and so many entries of each.
expect_match "note of the queues of a controller" \
    'note: .*attr\.qid_max: 128 I/O queues of a controller become 16, and so 1 more' \
    "$(<"$OUT/import.log")"
expect_eq "notes of the entries of queues" "" "$(grep max_queue_size "$OUT/import.log" || true)"
cp "$CONFIG" "$OUT/"
rmdir $NVMET/subsystems/*/namespaces/*
nvmeof-target check-config "$CONFIG"
target_start
expect_eq "what hosts see" "$theirs" "$(seen)"
expect_eq "referrals" "$their_referrals" "$(referrals)"

# Who was refused is, and told why; who was not is not.
refuse_stranger
expect_ge "refusals by both" $((their_refusals + 1)) "$(refusals)"
target_logged "host $STRANGER is not in allowed_hosts of $MAIL" ||
    fail "the target does not say whom it refused"
connect -n "$BUILD" -q "$STRANGER" -I "$STRANGER_ID"
nvme disconnect -n "$BUILD"

connect -n "$MAIL"
mount "$(device 1)" "$WORK/mounted"
expect_eq "the letter" "$sum" "$(checksum "$WORK/mounted/letter")"
umount "$WORK/mounted"
expect_eq "what was written to namespace 2" "$mail" "$(sum_of 2)"
nvme disconnect -n "$MAIL"
connect -n "$BUILD"
expect_eq "what was written to the second subsystem" "$build" "$(sum_of 1)"
nvme disconnect -n "$BUILD"
target_stop
