#!/bin/bash
# about: a configuration of the kernel target (nvmet) is imported: the same data, block sizes, names and ANA states
# providers: iwarp
# timeout: 240
source /lab/guest/lib.sh

NVMET=/sys/kernel/config/nvmet
# What nvmetcli itself saved of the kernel's target that is set up here.
SAVED=/lab/nvmetcli/2026-07.json
MAIL=nqn.2026-11.org.example:mail
BUILD=nqn.2026-11.org.example:build
SECOND=4421
# A host that only the second subsystem takes.
STRANGER=nqn.2026-11.org.example:stranger
STRANGER_ID=1ab00000-0000-4000-8000-00000000f002

# Of the host that is refused, by either target: Connect Invalid Host, DNR.
dmesg_expect "Connect for subsystem $MAIL is not allowed, hostnqn: $STRANGER\$"
dmesg_expect 'failed to connect queue: 0 ret=16772'
# The queues of the second port are shorter than what Linux asks for.
dmesg_expect 'queue_size 128 > ctrl sqsize 64, clamping down'

# steps : what makes the kernel's target what the file says, a line each: a folder, a
# value and the file to write it to, or a link and its target. Unset values are empty.
steps() {
    jq -r '
        def write(at; group): at as $at | group as $group | .[$group] // {} | to_entries[] |
            select(.value != "") | "write \($at)/\($group)_\(.key) \(.value)";
        def folder(at): at as $at | "mkdir \($at)";
        (.hosts[] | folder("hosts/\(.nqn)")),
        (.subsystems[] | "subsystems/\(.nqn)" as $at | folder($at), write($at; "attr"),
            (.allowed_hosts[] | "link \($at)/allowed_hosts/\(.) hosts/\(.)"),
            (.namespaces[] | "\($at)/namespaces/\(.nsid)" as $at | folder($at),
                write($at; "device"), write($at; "ana"), "write \($at)/enable \(.enable)")),
        (.ports[] | "ports/\(.portid)" as $at | folder($at), write($at; "addr"),
            write($at; "param"),
            (.ana_groups[] | "\($at)/ana_groups/\(.grpid)" as $at |
                # The first one is there from the start.
                if .grpid > 1 then folder($at) else empty end, write($at; "ana")),
            (.referrals[] | "\($at)/referrals/\(.name)" as $at | folder($at),
                write($at; "addr"), "write \($at)/enable \(.enable)"),
            (.subsystems[] | "link \($at)/subsystems/\(.) subsystems/\(.)"))' "$SAVED"
}

# restore : sets up the kernel's target.
restore() {
    local step at value
    steps >"$WORK/steps"
    while read -r step at value; do
        case $step in
        mkdir) mkdir "$NVMET/$at" ;;
        write) echo -n "$value" >"$NVMET/$at" ;;
        link) ln -s "$NVMET/$value" "$NVMET/$at" ;;
        esac
    done <"$WORK/steps"
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
    for attribute in serial model firmware_rev cntrltype sqsize; do
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
disk mail-1 64M
disk mail-2 16M
disk build 8M
restore

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
rm $NVMET/ports/*/subsystems/*
rmdir $NVMET/ports/*/referrals/*
rmdir $NVMET/ports/*/ana_groups/2 $NVMET/ports/*
nvmeof-target import "$SAVED" --output "$CONFIG" >"$OUT/import.log" 2>&1 ||
    fail "$(tail -n 1 "$OUT/import.log")"
expect_eq "items that are not imported" "" "$(grep 'not imported' "$OUT/import.log" || true)"
# Nobody said how many queues one of the two has: the kernel's target has 128.
expect_match "note of the queues of a controller" \
    'note: .*attr\.qid_max: 128 I/O queues of a controller become 16;' \
    "$(<"$OUT/import.log")"
expect_eq "notes of the entries of queues" "" "$(grep max_queue_size "$OUT/import.log" || true)"
cp "$CONFIG" "$OUT/"
rmdir $NVMET/subsystems/*/namespaces/*
nvmeof-target check-config "$CONFIG"
target_start
expect_eq "what hosts see" "$theirs" "$(seen)"
expect_eq "referrals" "$their_referrals" "$(referrals)"

# Refused hosts are refused as before, with the reason; others are not.
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
