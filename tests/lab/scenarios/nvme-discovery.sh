#!/bin/bash
# about: discovery log and controller, a unique discovery NQN, referrals, connect-all, list
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

friend=nqn.2026-11.org.example:friend
friend_id=1ab00000-0000-4000-8000-00000000f001
at=(-t rdma -a "$ADDRESS" -s "$PORT")
# The RDMA type of the port in the log.
case $RDMA in
rxe*) fabric=roce-v2 ;;
siw*) fabric=iwarp ;;
esac

# expect_entries WHAT LOG SUBSYSTEM... : the log has one whole entry for each.
expect_entries() {
    local what=$1 log=$2 number=0 nqn
    shift 2
    expect_eq "$what: subsystems" "$*" "$(field '[.records[].subnqn] | join(" ")' <<<"$log")"
    for nqn; do
        expect_fields "$what: entry $number" "{
            trtype: \"rdma\", adrfam: \"ipv4\", traddr: \"$ADDRESS\",
            trsvcid: \"$PORT\", subnqn: \"$nqn\", subtype: \"nvme subsystem\",
            treq: \"not specified, sq flow control disable supported\",
            portid: 1, eflags: \"none\", rdma_prtype: \"$fabric\",
            rdma_qptype: \"connected\", rdma_cms: \"rdma-cm\", rdma_pkey: 0
        }" "$(field ".records[$number]" <<<"$log")"
        number=$((number + 1))
    done
}

# controller_of NQN : such as nvme0.
controller_of() {
    local found
    found=$(grep -lx "$1" /sys/class/nvme/*/subsysnqn)
    found=${found%/subsysnqn}
    echo "${found##*/}"
}

controllers() {
    find /sys/class/nvme -mindepth 1 | wc -l
}

config "$(disk d1 16M)"
namespace 7 "$(disk d2 32M)" 'block_size = 4096'
cat >>"$CONFIG" <<TOML

[[subsystem]]
nqn = "$NQN-second"
serial = "SECOND"
model = "second disk"
allow_any_host = true
TOML
namespace 1 "$(disk d3 8M)"
cat >>"$CONFIG" <<TOML

[[subsystem]]
nqn = "$NQN-private"
allowed_hosts = ["$friend"]
TOML
namespace 1 "$(disk d4 8M)"
target_start

# Each host sees the subsystems that allow it.
log=$(nvme discover "${at[@]}" -o json)
expect_eq "generation" 1 "$(field .genctr <<<"$log")"
expect_entries "any host" "$log" "$NQN" "$NQN-second"
log=$(nvme discover "${at[@]}" -q $friend -I $friend_id -o json)
expect_entries "its friend" "$log" "$NQN" "$NQN-second" "$NQN-private"
expect_eq "controllers left by discover" 0 "$(controllers)"

# A persistent discovery controller.
nvme discover "${at[@]}" -p -o json >"$WORK/log"
discovery=$(controller_of nqn.2014-08.org.nvmexpress.discovery)
expect_fields "discovery controller" '{
    cntrltype: 2, subnqn: "nqn.2014-08.org.nvmexpress.discovery", ver: 131072,
    oaes: 2147483648, lpa: 6, oacs: 0, nn: 0, oncs: 0, kas: 10, aerl: 3,
    maxcmd: 256, sgls: 1048581, iorcsz: 1, icdoff: 0, msdbd: 16, mdts: 8
}' "$(nvme id-ctrl "/dev/$discovery" -o json)"
expect_eq "its kind" ddc "$(cat "/sys/class/nvme/$discovery/dctype")"
expect_eq "its I/O queues" 1 "$(cat "/sys/class/nvme/$discovery/queue_count")"
log=$(nvme discover -d "$discovery" "${at[@]}" -o json)
expect_entries "the controller that stays" "$log" "$NQN" "$NQN-second"
said=$(expect_fail nvme id-ns "/dev/$discovery" -n 1)
expect_match "a namespace of a discovery controller" 'Invalid Field' "$said"
nvme disconnect -d "$discovery"

nvme connect-all "${at[@]}"
expect_eq "controllers of connect-all" 2 "$(controllers)"
# Namespaces appear a moment after the controller.
listed() {
    nvme list -o json | jq -e '.Devices | length == 3'
}
wait_for 10 listed

firmware=$(nvme id-ctrl "/dev/$(controller_of "$NQN")" -o json | field '.fr | sub(" +$"; "")')
derived=$(cat "/sys/class/nvme/$(controller_of "$NQN")/serial")
expect_match "derived serial number" '^[0-9A-F]{20}$' "$derived"
list=$(nvme list -o json)
# entry SERIAL NSID : of the list.
entry() {
    field ".Devices[] | select(.SerialNumber == \"$1\" and .NameSpace == $2)" <<<"$list"
}
expect_fields "list: namespace 1" "{
    ModelNumber: \"nvmeof\", SerialNumber: \"$derived\", PhysicalSize: 16777216,
    UsedBytes: 16777216, MaximumLBA: 32768, SectorSize: 512
}" "$(entry "$derived" 1)"
expect_fields "list: namespace 7" '{
    ModelNumber: "nvmeof", PhysicalSize: 33554432, MaximumLBA: 8192, SectorSize: 4096
}' "$(entry "$derived" 7)"
expect_fields "list: the second subsystem" "{
    ModelNumber: \"second disk\", PhysicalSize: 8388608, MaximumLBA: 16384,
    SectorSize: 512, Firmware: \"$firmware\"
}" "$(entry SECOND 1)"

subsystems=$(nvme list-subsys -o json)
for nqn in "$NQN" "$NQN-second"; do
    paths=$(field ".[].Subsystems[] | select(.NQN == \"$nqn\") | .Paths" <<<"$subsystems")
    expect_eq "paths of $nqn" 1 "$(field length <<<"$paths")"
    expect_fields "path of $nqn" "{
        Name: \"$(controller_of "$nqn")\", Transport: \"rdma\",
        Address: \"traddr=$ADDRESS,trsvcid=$PORT\", State: \"live\"
    }" "$(field '.[0]' <<<"$paths")"
done
expect_eq "list-subsys: host" "$(cat /etc/nvme/hostnqn)" "$(field '.[0].HostNQN' <<<"$subsystems")"

# By name, by device, all.
nvme disconnect -n "$NQN-second"
expect_eq "controllers after disconnect -n" 1 "$(controllers)"
nvme connect "${at[@]}" -n "$NQN-second"
nvme disconnect -d "$(controller_of "$NQN")"
expect_eq "controllers after disconnect -d" "$NQN-second" "$(cat /sys/class/nvme/*/subsysnqn)"
nvme disconnect-all
expect_eq "controllers after disconnect-all" 0 "$(controllers)"

# A unique NQN for the discovery subsystem, and a referral: a persistent host gets an event,
# and finds the target under either NQN.
nvme discover "${at[@]}" -p -k 30 -o json >"$WORK/log"
generation=$(field .genctr <"$WORK/log")
staying=$(controller_of nqn.2014-08.org.nvmexpress.discovery)
udevadm monitor --kernel --property --subsystem-match=nvme >"$WORK/events" &
monitor=$!
finder=nqn.2026-11.org.example:finder
cat >>"$CONFIG" <<TOML

[discovery]
nqn = "$finder"

[[referral]]
traddr = "192.0.2.7"
trsvcid = 8009
port_id = 9
TOML
# The monitor listens a moment after it was started.
sleep 1
kill -HUP "$TARGET"
notified() {
    grep -q 'NVME_AEN=0x70f002' "$WORK/events"
}
wait_for 10 notified
kill "$monitor"
for name in nqn.2014-08.org.nvmexpress.discovery "$finder"; do
    log=$(nvme discover "${at[@]}" -n "$name" -o json)
    expect_eq "$name: generation" $((generation + 1)) "$(field .genctr <<<"$log")"
    expect_eq "$name: subsystems" \
        "$finder $NQN $NQN-second nqn.2014-08.org.nvmexpress.discovery" \
        "$(field '[.records[].subnqn] | join(" ")' <<<"$log")"
done
expect_fields "the discovery subsystem itself" "{
    subtype: \"current discovery subsystem\", eflags: \"explicit discovery connections\",
    traddr: \"$ADDRESS\", trsvcid: \"$PORT\", portid: 1
}" "$(field '.records[0]' <<<"$log")"
expect_fields "the referral" '{
    subtype: "discovery subsystem referral", eflags: "none", traddr: "192.0.2.7",
    trsvcid: "8009", portid: 9, rdma_prtype: "not specified"
}' "$(field '.records[3]' <<<"$log")"
nvme disconnect -d "$staying"
nvme discover "${at[@]}" -n "$finder" -p -o json >/dev/null
expect_fields "a discovery controller under its own name" "{cntrltype: 2, subnqn: \"$finder\"}" \
    "$(nvme id-ctrl "/dev/$(controller_of "$finder")" -o json)"
nvme disconnect -n "$finder"
expect_eq "controllers at the end" 0 "$(controllers)"
target_stop
