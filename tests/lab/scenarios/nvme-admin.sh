#!/bin/bash
# about: identify, log pages, features and registers, field by field; reset; persistent names
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

dmesg_expect 'nvme nvme[0-9]+: resetting controller$'

uuid=5f2c1a9e-0d6b-4a53-9c52-8a1d3b7e6f40
nguid=0f1e2d3c4b5a69788796a5b4c3d2e1f0
eui64=0123456789abcdef

# The configuration with more lines for limits.
configure() {
    config
    printf '%s\n' 'serial = "LAB-0001"' 'model = "a disk of the lab"' >>"$CONFIG"
    namespace 1 "$WORK/d1"
    namespace 2 "$WORK/d2" 'block_size = 4096' "uuid = \"$uuid\"" \
        "nguid = \"$nguid\"" "eui64 = \"$eui64\""
    # Where it is kept what hosts write protect, without which they may not.
    printf '\n[control]\nstate = "%s"\n' "$WORK/state.json" >>"$CONFIG"
    printf '\n[limits]\n' >>"$CONFIG"
    printf '%s\n' "$@" >>"$CONFIG"
}

# json COMMAND ARGUMENT... : of nvme on the controller.
json() {
    nvme "$1" "/dev/$CTRL" "${@:2}" -o json
}

live() {
    [ "$(controller_state)" = live ]
}

# Names by which the host knows the two namespaces.
names() {
    local nsid
    for nsid in 1 2; do
        json ns-descs -n $nsid | jq -c '[."ns-descs"[] | {nidt, nidl, nguid, uuid, eui64, csi}]'
        cat "/sys/block/$(basename "$(device $nsid)")/wwid"
    done
}

disk d1 64M
disk d2 16M
configure
target_start
connect
wait_for 10 device 2
disk1=$(device 1)

# --- identify

controller=$(json id-ctrl)
expect_fields "id-ctrl" "{
    vid: 0, ssvid: 0, sn: \"LAB-0001            \",
    mn: \"a disk of the lab                       \",
    cmic: 11, mdts: 8, cntlid: $(cat "/sys/class/nvme/$CTRL/cntlid"), ver: 131072,
    oaes: 3148032, ctratt: 65, cntrltype: 1, oacs: 0, acl: 3, aerl: 3, frmw: 3, lpa: 7,
    elpe: 63, npss: 0, avscc: 0, wctemp: 343, cctemp: 358, kas: 10, sqes: 102, cqes: 68, maxcmd: 256, nn: 1024,
    oncs: 509, fuses: 1, fna: 0, vwc: 7, awun: 0, awupf: 0, nwpc: 3, sgls: 1048581,
    mnan: 1024, anatt: 10, anacap: 31, anagrpmax: 129, nanagrpid: 129,
    subnqn: \"$NQN\", ioccsz: 260, iorcsz: 1, icdoff: 0, fcatt: 0,
    msdbd: 16, ofcs: 1
}" "$controller"
expect_fields "nvm-id-ctrl" '{vsl: 13, wzsl: 13, dmrl: 0, dmsl: 0}' "$(json nvm-id-ctrl)"
expect_fields "list-ns" '{nsid_list: [{nsid: 1}, {nsid: 2}]}' "$(json list-ns)"
expect_fields "list-ctrl" "{num_ctrl: 1, ctrl_list: [{ctrl_id: $(field .cntlid <<<"$controller")}]}" \
    "$(json list-ctrl)"

same='nlbaf: 0, flbas: 0, mc: 0, dpc: 0, dps: 0, nmic: 1, rescap: 255,
    dlfeat: 9, nsattr: 0, anagrpid: 1'
one=$(nvme id-ns "$disk1" -o json)
expect_fields "id-ns 1" "{$same, nsze: 131072, ncap: 131072, nuse: 131072, nvmcap: 67108864,
    nsfeat: 18, npwg: 7, npwa: 7, npdg: 7, npda: 7, nows: 7,
    eui64: \"0000000000000000\", lbafs: [{ms: 0, ds: 9, rp: 0}]}" "$one"
two=$(json id-ns -n 2)
expect_fields "id-ns 2" "{$same, nsze: 4096, ncap: 4096, nuse: 4096, nvmcap: 16777216,
    nsfeat: 2,
    nguid: \"$nguid\", eui64: \"$eui64\", lbafs: [{ms: 0, ds: 12, rp: 0}]}" "$two"
expect_fields "cmdset-ind-id-ns" '{nsfeat: 0, nmic: 1, nsattr: 0, nstat: 1}' \
    "$(json cmdset-ind-id-ns -n 2)"

names=$(names)
derived=$(field .nguid <<<"$one")
expect_match "derived nguid" '^[0-9a-f]{32}$' "$derived"
expect_eq "ns-descs" "[{\"nidt\":2,\"nidl\":16,\"nguid\":\"$derived\",\"uuid\":null,\"eui64\":null,\"csi\":null}" \
    "$(head -n 1 <<<"$names" | sed 's/,{"nidt":3.*//')"
expect_eq "ns-descs 2" '[{"nidt":1,"nidl":8,"nguid":null,"uuid":null,"eui64":"'$eui64'","csi":null},{"nidt":2,"nidl":16,"nguid":"'$nguid'","uuid":null,"eui64":null,"csi":null},{"nidt":3,"nidl":16,"nguid":null,"uuid":"'$uuid'","eui64":null,"csi":null},{"nidt":4,"nidl":1,"nguid":null,"uuid":null,"eui64":null,"csi":"0"}]' \
    "$(sed -n 3p <<<"$names")"
expect_eq "name of namespace 2 in Linux" "uuid.$uuid" "$(sed -n 4p <<<"$names")"

# --- the JSON of our own initiator: keys and types of nvme-cli's, for every command both have

ours=$(initiator id-ctrl -o json)
same_shape id-ctrl "$controller" "$ours"
# Each has a controller of its own; all else is the same.
expect_eq "values of id-ctrl" "$(jq -S 'del(.cntlid)' <<<"$controller")" \
    "$(jq -S 'del(.cntlid)' <<<"$ours")"
for nsid in 1 2; do
    theirs=$(json id-ns -n $nsid)
    ours=$(initiator id-ns --namespace-id $nsid -o json)
    # For scripts that want neither ns-descs nor powers of two.
    same_shape "id-ns $nsid" "$theirs" "$ours" uuid block_size
    expect_eq "values of id-ns $nsid" "$(jq -S . <<<"$theirs")" \
        "$(jq -S 'del(.uuid, .block_size)' <<<"$ours")"
done
theirs=$(json list-ns)
ours=$(initiator list-ns -o json)
same_shape list-ns "$theirs" "$ours"
expect_eq "values of list-ns" "$(jq -S . <<<"$theirs")" "$(jq -S . <<<"$ours")"
same_shape smart-log "$(json smart-log)" "$(initiator smart-log -o json)"
# nvme-cli 2.13 has opcode and command set (Base 2.0) in its text alone.
same_shape error-log "$(json error-log -e 4)" "$(initiator error-log -e 4 -o json)" \
    'errors\.\*\.csi' 'errors\.\*\.opcode'
expect_eq "entries of error-log" 4 "$(initiator error-log -e 4 -o json | field '.errors | length')"
# nvme-cli prints get-log as a dump, whatever the format is: the bytes are compared.
expect_eq "get-log" "$(nvme get-log "/dev/$CTRL" -i 5 -l 4096 -b | sha256sum)" \
    "$(initiator get-log --log-id 5 --log-len 4096 -b | sha256sum)"
# Each host sets features of its own controller, so values can differ.
for id in 1 2 4 6 0xa 0xb 0xe 0xf; do
    same_shape "get-feature $id" "$(json get-feature -f $id)" \
        "$(initiator get-feature -f $id -o json)"
done
for id in 5 0x84; do
    same_shape "get-feature $id of namespace 2" "$(json get-feature -f $id -n 2)" \
        "$(initiator get-feature -f $id --namespace-id 2 -o json)"
done
expect_eq "values of get-feature 6" "$(json get-feature -f 6 | jq -S .)" \
    "$(initiator get-feature -f 6 -o json | jq -S .)"
# nvme-cli 2.13 prints the line even with -o json.
expect_eq "set-feature" "$(nvme set-feature "/dev/$CTRL" -f 6 -V 1 | head -n 1)" \
    "$(initiator set-feature -f 6 -V 1 -o json | field .result)"
# Everything but the device, for which nvmeof names the address.
others='del(."Asymmetric Namespace Access Log for NVMe device")'
for options in '' --groups; do
    theirs=$(json ana-log ${options:+"$options"})
    ours=$(initiator ana-log ${options:+"$options"} -o json)
    same_shape "ana-log $options" "$theirs" "$ours"
    expect_eq "values of ana-log $options" "$(jq -S "$others" <<<"$theirs")" \
        "$(jq -S "$others" <<<"$ours")"
done
theirs=$(nvme discover -t rdma -a "$ADDRESS" -s "$PORT" -o json)
ours=$(initiator discover -o json)
same_shape discover "$theirs" "$ours"
expect_eq "values of discover" "$(jq -S . <<<"$theirs")" "$(jq -S . <<<"$ours")"

# --- what Linux made of it

queue=/sys/block/${disk1##*/}/queue
# What MDTS says, or what the host's device registers at once, a page less than it
# could: 256 pages are all that siw does.
expect_match "Linux: max_hw_sectors_kb" '^(1020|1024)$' "$(cat "$queue/max_hw_sectors_kb")"
for pair in logical_block_size=512 'write_cache=write back' fua=1 \
    write_zeroes_max_bytes=33554432 discard_granularity=512 physical_block_size=512 \
    minimum_io_size=4096 optimal_io_size=4096; do
    expect_eq "Linux: ${pair%=*}" "${pair#*=}" "$(cat "$queue/${pair%=*}")"
done
expect_ge "Linux: discard_max_bytes" 67108864 "$(cat "$queue/discard_max_bytes")"
queues=$(($(cat "/sys/class/nvme/$CTRL/queue_count") - 1))
expect_eq "I/O queues" "$(nproc)" "$queues"

# --- log pages

smart() {
    json smart-log | field ".$1"
}
before=$(json smart-log)
expect_fields "smart-log" '{critical_warning: 0, temperature: 298, avail_spare: 100,
    spare_thresh: 10, percent_used: 0, data_units_written: 0, host_write_commands: 0,
    media_errors: 0, num_err_log_entries: 0, power_cycles: 1, power_on_hours: 0,
    unsafe_shutdowns: 0}' "$before"
dd if=/dev/zero of="$disk1" bs=64k count=16 oflag=direct status=none
dd if="$disk1" of=/dev/null bs=128k count=8 iflag=direct status=none
after=$(json smart-log)
# A unit is 1000 blocks of 512 bytes, rounded up.
expect_fields "smart-log after 1 MiB each" "{host_write_commands: 16, data_units_written: 3,
    host_read_commands: $(($(field .host_read_commands <<<"$before") + 8))}" "$after"
expect_ge "data units read" 3 "$(field .data_units_read <<<"$after")"
expect_fields "smart-log of namespace 1" '{host_write_commands: 16, data_units_written: 3,
    media_errors: 0, temperature: 298}' "$(json smart-log -n 1)"
expect_fields "smart-log of namespace 2" '{host_write_commands: 0, data_units_written: 0}' \
    "$(json smart-log -n 2)"

expect_eq "error-log of a new controller" 0 "$(json error-log | field '[.errors[].error_count] | add')"
expect_eq "entries of error-log" 64 "$(json error-log | field '.errors | length')"
said=$(expect_fail nvme read "$disk1" -s 131072 -c 0 -z 512)
expect_match "a read beyond the end" 'LBA Out of Range' "$said"
said=$(expect_fail nvme get-feature "/dev/$CTRL" -f 0x33)
expect_match "a feature that is not there" 'Invalid Field' "$said"
errors=$(json error-log -e 3)
expect_fields "newest error" '{error_count: 2, sqid: 0, status_field: 24578,
    parm_error_location: 40, lba: 0}' "$(field '.errors[0]' <<<"$errors")"
expect_fields "first error" '{error_count: 1, status_field: 24704, parm_error_location: 40,
    lba: 131072, nsid: 1}' "$(field '.errors[1]' <<<"$errors")"
expect_ge "queue of the first error" 1 "$(field '.errors[1].sqid' <<<"$errors")"
expect_eq "entry after the last error" 0 "$(field '.errors[2].error_count' <<<"$errors")"
expect_eq "errors in smart-log" 2 "$(smart num_err_log_entries)"
expect_eq "media errors in smart-log" 0 "$(smart media_errors)"

said=$(expect_fail nvme id-ns "/dev/$CTRL" -n 1025)
expect_match "id-ns of no namespace" 'Invalid Namespace' "$said"
said=$(expect_fail nvme smart-log "/dev/$CTRL" -n 3)
expect_match "smart-log of no namespace" 'Invalid Field' "$said"

firmware=$(field '.fr | sub(" +$"; "")' <<<"$controller")
slots=$(json fw-log | field ".$CTRL")
expect_fields "fw-log" '{"Active Firmware Slot (afi)": 1}' "$slots"
expect_match "fw-log: slot 1" "\($firmware\.*\)" "$(field '."Firmware Rev Slot 1"' <<<"$slots")"
expect_eq "effects-log" \
    '{"admin_cmd_set":{"ACS_10 (Get Features)":1,"ACS_12 (Asynchronous Event Request)":1,"ACS_127 (Fabrics Commands)":1,"ACS_2 (Get Log Page)":1,"ACS_24 (Keep Alive)":1,"ACS_56 (Unknown)":1,"ACS_6 (Identify)":1,"ACS_8 (Abort)":1,"ACS_9 (Set Features)":1},"command_set_identifier":0,"io_cmd_set":{"IOCS_0 (Flush)":1,"IOCS_1 (Write)":3,"IOCS_12 (Verify)":1,"IOCS_127 (Unknown)":1,"IOCS_13 (Reservation Register)":1,"IOCS_14 (Reservation Report)":1,"IOCS_17 (Reservation Acquire)":1,"IOCS_2 (Read)":1,"IOCS_21 (Reservation Release)":1,"IOCS_25 (Copy)":3,"IOCS_5 (Compare)":1,"IOCS_8 (Write Zeroes)":3,"IOCS_9 (Dataset Management)":3}}' \
    "$(json effects-log | jq -cS '.[] | select(.command_set_identifier == 0)')"
expect_eq "supported-log-pages" '0x0 0x1 0x2 0x3 0x4 0x5 0xc 0x12 0x1e 0x1f 0x80' \
    "$(json supported-log-pages | field '[.supported_logs[] | keys[] | sub("lid_"; "") | sub(" "; "")] | join(" ")')"
json changed-ns-list-log >/dev/null
said=$(expect_fail nvme get-log "/dev/$CTRL" -i 0xc0 -l 512)
expect_match "a log page that is not there" 'Invalid Log Page' "$said"

# --- features

# feature ID : its current value as a number.
feature() {
    local value
    value=$(json get-feature -f "$1" | field '[.[][] | .Current? // empty][0]')
    echo $((16#${value#0x}))
}
# Those that every I/O controller over fabrics has: arbitration, power,
# temperature (over), cache, queues, atomicity, events, keep alive.
while read -r id wanted; do
    expect_eq "get-feature $id" "$wanted" "$(feature "$id")"
done <<EOF
1 0
2 0
4 343
6 1
7 $((($(nproc) - 1) * 65537))
0xa 0
0xb 2304
0xf 5000
EOF
expect_match "get-feature 4 (under)" 'value:0+$' "$(nvme get-feature "/dev/$CTRL" -f 4 -c 0x100000)"
identifier=$(nvme get-feature "/dev/$CTRL" -f 0x81 -c 1 -l 16 -b | od -An -tx1 | tr -d ' \n')
expect_eq "get-feature 0x81 (host identifier)" "$(tr -d - </etc/nvme/hostid)" "$identifier"
for id in 1 4 6 0xb; do
    expect_match "get-feature $id: capabilities" 'value:0x0*4$' \
        "$(nvme get-feature "/dev/$CTRL" -f $id -s 3 | head -n 1)"
done
# set ID VALUE : and read it back; the default stays.
while read -r id value default; do
    nvme set-feature "/dev/$CTRL" -f "$id" -V "$value"
    expect_eq "feature $id after set-feature" $((value)) "$(feature "$id")"
    expect_match "feature $id: default" "value:(0x)?0*$default\$" \
        "$(nvme get-feature "/dev/$CTRL" -f "$id" -s 1 | head -n 1)"
    nvme set-feature "/dev/$CTRL" -f "$id" -V "0x$default"
done <<'EOF'
4 350 157
6 0 1
0xa 1 0
EOF
# Error recovery is of each namespace, and FFFFFFFFh sets that of all (Base 2.1, 4.4).
recovery() {
    nvme get-feature "/dev/$CTRL" -f 5 -n "$1" | grep -o 'value:.*'
}
nvme set-feature "/dev/$CTRL" -f 5 -n 2 -V 7
expect_match "error recovery of namespace 1" 'value:(0x)?0+$' "$(recovery 1)"
expect_match "error recovery of namespace 2" 'value:(0x)?0*7$' "$(recovery 2)"
nvme set-feature "/dev/$CTRL" -f 5 -n 0xffffffff -V 3
for nsid in 1 2; do
    expect_match "error recovery of all: $nsid" 'value:(0x)?0*3$' "$(recovery $nsid)"
done
said=$(expect_fail nvme get-feature "/dev/$CTRL" -f 5 -n 3)
expect_match "error recovery of no namespace" 'Invalid Field' "$said"
said=$(expect_fail nvme set-feature "/dev/$CTRL" -f 1 -n 1 -V 0)
expect_match "arbitration of a namespace" '[Nn]amespace [Ss]pecific' "$said"
said=$(expect_fail nvme set-feature "/dev/$CTRL" -f 1 -n 1025 -V 0)
expect_match "arbitration of an invalid namespace" 'Invalid Namespace' "$said"
said=$(expect_fail nvme set-feature "/dev/$CTRL" -f 1 -V 1 --save)
expect_match "a value that is to be saved" 'Not Saveable' "$said"

# --- timestamp: Linux has set it when it connected

timestamp=$(nvme get-feature "/dev/$CTRL" -f 0xe -l 8 -b | od -An -tu1)
read -r -a bytes <<<"$timestamp"
expect_eq "get-feature 0xe: set by the host" 2 "${bytes[6]}"
seconds=0
for at in 5 4 3 2 1 0; do
    seconds=$((seconds * 256 + bytes[at]))
done
seconds=$((seconds / 1000))
expect_ge "get-feature 0xe: it goes on" "$(($(date +%s) - 60))" "$seconds"
expect_ge "get-feature 0xe: it is not ahead" "$seconds" "$(($(date +%s) + 1))"

# --- write protection: Linux follows after an event

protection() {
    nvme get-feature "/dev/$CTRL" -f 0x84 -n "$1" | grep -o 'value:.*'
}
read_only() {
    [ "$(blockdev --getro "$disk1")" = "$1" ]
}
expect_match "get-feature 0x84" 'value:(0x)?0+$' "$(protection 1)"
nvme set-feature "/dev/$CTRL" -f 0x84 -n 1 -V 1
expect_match "get-feature 0x84 of a protected namespace" 'value:(0x)?0*1$' "$(protection 1)"
expect_eq "id-ns of a protected namespace" 1 "$(nvme id-ns "$disk1" -o json | field .nsattr)"
expect_eq "another namespace" 0 "$(json id-ns -n 2 | field .nsattr)"
wait_for 10 read_only 1
said=$(expect_fail nvme write-zeroes "$disk1" -s 0 -c 0)
expect_match "a write to a protected namespace" 'Write Protected' "$said"
dd if="$disk1" of=/dev/null bs=4k count=1 iflag=direct status=none
nvme set-feature "/dev/$CTRL" -f 0x84 -n 1 -V 0
wait_for 10 read_only 0
dd if=/dev/zero of="$disk1" bs=4k count=1 oflag=direct status=none
nvme set-feature "/dev/$CTRL" -f 0x84 -n 2 -V 2
said=$(expect_fail nvme set-feature "/dev/$CTRL" -f 0x84 -n 2 -V 0)
expect_match "protected until the power cycle" 'Not Changeable' "$said"
# Of all namespaces: the second one keeps that from being done.
said=$(expect_fail nvme set-feature "/dev/$CTRL" -f 0x84 -n 0xffffffff -V 1)
expect_match "protection of all" 'Not Changeable' "$said"
expect_match "the first one" 'value:(0x)?0+$' "$(protection 1)"
said=$(expect_fail nvme get-feature "/dev/$CTRL" -f 0x84 -n 0xffffffff)
expect_match "the state of all" 'Invalid Namespace' "$said"
said=$(expect_fail nvme set-feature "/dev/$CTRL" -f 0x84 -n 1 -V 3)
expect_match "protected for ever" 'Invalid Field' "$said"

# --- registers

registers=$(json show-regs)
cap=$(field .cap <<<"$registers")
expect_eq "CAP.MQES" 255 $((cap & 0xffff))
expect_eq "CAP.CQR" 1 $((cap >> 16 & 1))
expect_eq "CAP.TO" 20 $((cap >> 24 & 0xff))
# The NVM command set, and that Identify names the command sets there are (IOCSS).
expect_eq "CAP.CSS" 65 $((cap >> 37 & 0xff))
expect_eq "CAP.CRMS" 1 $((cap >> 59 & 3))
expect_eq "CAP.MPSMIN" 0 $((cap >> 48 & 0xf))
# Linux selects all supported command sets then (CC.CSS 110b).
expect_fields "show-regs" '{vs: 131072, cc: 4587617, csts: 1}' "$registers"

# --- reset and rescan

commands=$(smart host_write_commands)
nvme reset "/dev/$CTRL"
wait_for 10 live
expect_eq "namespaces after a reset" "$names" "$(names)"
expect_eq "counters after a reset" "$commands" "$(smart host_write_commands)"
expect_eq "error-log after a reset" 0 "$(json error-log -e 1 | field '.errors[0].error_count')"
nvme ns-rescan "/dev/$CTRL"
expect_eq "namespaces after ns-rescan" "$disk1" "$(device 1)"
dd if="$disk1" of=/dev/null bs=4k count=1 iflag=direct status=none
disconnect
target_stop

# --- hosts see the properties of the device

# Physical blocks of 4 KiB; the best writes have 32 KiB, and 64 KiB are freed at a time.
modprobe sd_mod
modprobe scsi_debug dev_size_mb=64 sector_size=512 physblk_exp=3 opt_blks=64 \
    lbpu=1 lbpws=1 lbprz=1 unmap_granularity=128
there=/sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block
wait_for 10 eval "ls $there"
block=$(eval "ls $there")
wait_for 10 test -b "/dev/$block"
attribute() {
    cat "/sys/block/$block/queue/$1"
}
expect_eq "the device" "512 4096 4096 32768 65536" "$(attribute logical_block_size) \
$(attribute physical_block_size) $(attribute minimum_io_size) $(attribute optimal_io_size) $(attribute discard_granularity)"
config "/dev/$block"
target_start
connect
wait_for 10 device 1
expect_fields "id-ns of a device" '{nsfeat: 18, nsze: 131072, npwg: 7, npwa: 7, npdg: 127,
    npda: 127, nows: 63, nawun: 7, nawupf: 7, nabsn: 7, nabspf: 7}' "$(json id-ns -n 1)"
queue=/sys/block/$(basename "$(device 1)")/queue
# What Linux takes for a physical block is written as a whole or not at all (NAWUPF).
for name in logical_block_size physical_block_size minimum_io_size optimal_io_size; do
    expect_eq "Linux: $name" "$(attribute $name)" "$(cat "$queue/$name")"
done
disconnect
target_stop
wait_for 10 modprobe -r scsi_debug

# --- the same names and other limits after a restart

configure 'queue_depth = 64' 'io_queues = 1' 'max_transfer = "64K"' 'in_capsule = 8192' \
    'max_descriptors = 1' 'traffic_keep_alive = false'
target_start
connect --keep-alive-tmo=9 --queue-size=64
wait_for 10 device 2
expect_eq "names after a restart" "$names" "$(names)"
expect_match "protected no more after a restart" 'value:(0x)?0+$' "$(protection 2)"
expect_fields "id-ctrl with other limits" '{mdts: 4, ioccsz: 516, msdbd: 1, maxcmd: 64, ctratt: 1,
    sn: "LAB-0001            "}' "$(json id-ctrl)"
expect_eq "CAP.MQES with other limits" 63 $(($(json show-regs | field .cap) & 0xffff))
expect_eq "queues with other limits" 0 "$(feature 7)"
expect_eq "I/O queues with other limits" 2 "$(cat "/sys/class/nvme/$CTRL/queue_count")"
expect_eq "entries of a queue with other limits" 63 "$(cat "/sys/class/nvme/$CTRL/sqsize")"
expect_eq "keep-alive of 9 s" 9000 "$(feature 0xf)"
queue=/sys/block/$(basename "$(device 1)")/queue
expect_eq "Linux: max_hw_sectors_kb with other limits" 64 "$(cat "$queue/max_hw_sectors_kb")"
disconnect
target_stop
