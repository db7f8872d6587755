#!/bin/bash
# about: a multipath device over two ports: ANA states change under fio without I/O errors; namespaces for some hosts only
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

# While no port has access to the group.
dmesg_expect 'block nvme[0-9]+n[0-9]+: no usable path|nvme_ns_head_submit_bio: [0-9]+ callbacks suppressed'

other=nqn.2026-11.org.example:other

# port NUMBER STATE : with the state of group 2.
port() {
    printf '[[port]]\nid = %s\ntraddr = "%s"\ntrsvcid = %s\nprovider = "%s"\n' \
        "$1" "$ADDRESS" $((PORT + $1 - 1)) "$ENGINE"
    printf '[[port.ana_group]]\nid = 2\nstate = "%s"\n' "$2"
}

# write_config STATE STATE [TOML-LINE...] : namespace 1 and 2 in group 2,
# namespace 3 with the lines.
write_config() {
    {
        port 1 "$1"
        port 2 "$2"
        printf '[[subsystem]]\nnqn = "%s"\nallow_any_host = true\n' "$NQN"
    } >"$CONFIG"
    namespace 1 "$WORK/d1"
    namespace 2 "$WORK/d2" 'ana_group = 2'
    namespace 3 "$WORK/d3" "${@:3}"
}

reloads() {
    grep -c 'reloaded: ' "$LOG" || true
}

# has_reloads COUNT
has_reloads() {
    [ "$(reloads)" -ge "$1" ]
}

# reload STATE STATE [TOML-LINE...] : reloads with this configuration.
reload() {
    local before
    before=$(reloads)
    write_config "$@"
    kill -HUP "$TARGET"
    wait_for 10 has_reloads $((before + 1))
}

# path_is CONTROLLER NSID STATE : the state in the host.
path_is() {
    local path
    for path in "/sys/class/nvme/$1"/nvme*c*n*; do
        if [ "$(cat "$path/nsid")" = "$2" ]; then
            [ "$(cat "$path/ana_state")" = "$3" ]
            return
        fi
    done
    return 1
}

# both STATE STATE : changes states, and waits until the host has them. The longest
# time is recorded.
slowest=0
both() {
    reload "$@"
    local from=${EPOCHREALTIME/./}
    wait_for 5 path_is "$first" 2 "$1"
    wait_for 5 path_is "$second" 2 "$2"
    local took=$(((${EPOCHREALTIME/./} - from) / 1000))
    [ "$took" -le "$slowest" ] || slowest=$took
    # Other groups do not change.
    path_is "$first" 1 optimized || fail "namespace 1 is reached otherwise"
    sleep 1
}

# work DEVICE NAME : writes and verifies until it is stopped.
work() {
    local rounds=0
    until [ -e "$WORK/stop" ]; do
        fio --name=verify --filename="$1" --rw=randwrite --bs=4k --iodepth=16 \
            --size=4M --verify=crc32c --verify_fatal=1 --ioengine=io_uring --direct=1 \
            --randseed=$SRANDOM --output-format=json --output="$OUT/fio-$2.json"
        expect_eq "errors of fio" 0 "$(field '.jobs[0].error' <"$OUT/fio-$2.json")"
        rounds=$((rounds + 1))
    done
    echo "$rounds" >"$WORK/rounds-$2"
}

for disk in d1 d2 d3; do disk $disk 32M >/dev/null; done
write_config optimized non-optimized "hosts = [\"$other\"]"
target_start
connect
first=$CTRL
connect -s $((PORT + 1))
second=$CTRL
wait_for 10 path_is "$second" 2 non-optimized
path_is "$first" 2 optimized || fail "the first port is not optimized"
expect_eq "paths of the subsystem" 2 "$(nvme list-subsys -o json |
    field "[.. | objects | select(.NQN? == \"$NQN\") | .Paths[]] | length")"
expect_match "the log page" '"state" *: *"(optimized|1)"|optimized' "$(nvme ana-log "/dev/$first" -o json)"

# A namespace for another host is not accessible, until it is allowed.
expect_fail device 3
reload optimized non-optimized
wait_for 5 device 3
reload optimized non-optimized "hosts = [\"$other\"]"
gone() {
    ! device 3
}
wait_for 5 gone

work "$(device 2)" two &
two=$!
work "$(device 1)" one &
one=$!
sleep 2
both inaccessible optimized
both optimized inaccessible
both non-optimized change
both change optimized
both persistent-loss non-optimized
both optimized optimized
# No port has access to it, then the second one has.
both inaccessible inaccessible
both inaccessible optimized
touch "$WORK/stop"
wait "$two" || fail "I/O on the namespace whose states changed failed"
wait "$one" || fail "I/O on the other namespace failed"
expect_ge "rounds of fio" 1 "$(cat "$WORK/rounds-two")"
record "host knows after" "$slowest ms at most"
cmp "$(device 2)" "$WORK/d2" || fail "the backing file has other data"

# Whether the states decide the path of I/O.
counts() {
    for path in "/sys/class/nvme/$1"/nvme*c*n*; do
        [ "$(cat "$path/nsid")" != 2 ] || awk '{ print $1 + $5 }' "$path/stat"
    done
}
both optimized non-optimized
before=$(counts "$second")
dd if="$(device 2)" of=/dev/null bs=64k count=64 iflag=direct status=none
expect_eq "operations over the port that is not optimized" "$before" "$(counts "$second")"
disconnect
target_stop
