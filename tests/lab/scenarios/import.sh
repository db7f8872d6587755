#!/bin/bash
# about: a setup of the kernel's target is imported and serves the same: data, blocks, names, ANA states
# providers: iwarp
# timeout: 240
source /lab/guest/lib.sh

NVMET=/sys/kernel/config/nvmet
MAIL=nqn.2026-11.org.example:mail
BUILD=nqn.2026-11.org.example:build
SECOND=4421

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

port_json() {
    local group
    jq -n --argjson addr "$(attributes "$1" addr)" --argjson param "$(attributes "$1" param)" \
        --argjson portid "${1##*/}" --argjson subsystems "$(names "$1/subsystems")" \
        --argjson ana_groups "$(for group in "$1"/ana_groups/*; do
            group_json "$group"
        done | jq -s .)" '{$addr, $param, $portid, $subsystems, $ana_groups, referrals: []}'
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

# serve_namespace SUBSYSTEM NSID PATH GROUP
serve_namespace() {
    local namespace=$NVMET/subsystems/$1/namespaces/$2
    mkdir "$namespace"
    echo -n "$3" >"$namespace/device_path"
    echo "$4" >"$namespace/ana_grpid"
    echo 1 >"$namespace/enable"
}

# serve_port ID SERVICE : both subsystems.
serve_port() {
    local port=$NVMET/ports/$1 subsystem
    mkdir "$port"
    echo rdma >"$port/addr_trtype"
    echo ipv4 >"$port/addr_adrfam"
    echo "$ADDRESS" >"$port/addr_traddr"
    echo "$2" >"$port/addr_trsvcid"
    mkdir "$port/ana_groups/2"
    for subsystem in "$MAIL" "$BUILD"; do
        ln -s "$NVMET/subsystems/$subsystem" "$port/subsystems/$subsystem"
    done
}

# paths COUNT : whether the controller CTRL has so many namespaces.
paths() {
    [ "$(find -L "/sys/class/nvme/$CTRL" -maxdepth 1 -name 'nvme*n*' | wc -l)" = "$1" ]
}

# seen : what a host sees of both subsystems through both ports, a line each.
seen() {
    local nqn service path
    for nqn in "$MAIL" "$BUILD"; do
        for service in "$PORT" "$SECOND"; do
            connect -n "$nqn" -s "$service" >&2
            if [ "$nqn" = "$MAIL" ]; then wait_for 20 paths 2; else wait_for 20 paths 1; fi
            echo "$nqn $service" "$(tr -d ' ' <"/sys/class/nvme/$CTRL/serial")" \
                "$(tr -d ' ' <"/sys/class/nvme/$CTRL/model")"
            for path in /sys/class/nvme/"$CTRL"/nvme*n*; do
                echo "$(cat "$path/nsid") $(cat "$path/uuid") group $(cat "$path/ana_grpid")" \
                    "$(cat "$path/ana_state") blocks of $(cat "$path/queue/logical_block_size")"
            done | sort
            nvme disconnect -d "$CTRL" >&2
        done
    done
}

modprobe -a nvmet nvmet_rdma
for subsystem in "$MAIL" "$BUILD"; do
    mkdir "$NVMET/subsystems/$subsystem"
done
echo 0123456789abcdef0123 >"$NVMET/subsystems/$MAIL/attr_serial"
host=$(cat /etc/nvme/hostnqn)
mkdir "$NVMET/hosts/$host"
ln -s "$NVMET/hosts/$host" "$NVMET/subsystems/$MAIL/allowed_hosts/$host"
echo 1 >"$NVMET/subsystems/$BUILD/attr_allow_any_host"
# Groups are there when a port has them.
serve_port 1 "$PORT"
serve_port 2 "$SECOND"
serve_namespace "$MAIL" 1 "$(disk mail-1 64M)" 1
serve_namespace "$MAIL" 2 "$(disk mail-2 32M)" 2
serve_namespace "$BUILD" 1 "$(disk build 16M)" 1
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
nvme disconnect -n "$MAIL"

theirs=$(seen)
save >"$OUT/nvmet.json"
rm $NVMET/ports/*/subsystems/*
rmdir $NVMET/ports/*/ana_groups/2 $NVMET/ports/*
nvmeof-target import "$OUT/nvmet.json" --output "$CONFIG" >"$OUT/import.log" 2>&1 ||
    fail "$(tail -n 1 "$OUT/import.log")"
expect_eq "items that are not carried over" "" "$(grep 'not carried over' "$OUT/import.log" || true)"
cp "$CONFIG" "$OUT/"
rmdir $NVMET/subsystems/*/namespaces/*
nvmeof-target check-config "$CONFIG"
target_start
expect_eq "what hosts see" "$theirs" "$(seen)"

connect -n "$MAIL"
mount "$(device 1)" "$WORK/mounted"
expect_eq "the letter" "$sum" "$(checksum "$WORK/mounted/letter")"
umount "$WORK/mounted"
nvme disconnect -n "$MAIL"
target_stop
