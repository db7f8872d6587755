#!/bin/bash
# about: a stopped host with a stale copy of an ext4 file system is fenced, the other host repairs and mounts it, the first one continues to write; also with a crash of the target in between
# providers: iwarp verbs-rxe verbs-siw
# timeout: 200
# long-timeout: 6000
source /lab/guest/lib.sh

losses_expected

# Over software iWARP more often: it has no other device of the machine below it.
rounds=1
[ -z "$LONG" ] || rounds=10
[ -z "$LONG" ] || [ "$PROVIDER" != iwarp ] || rounds=100
host=nqn.2026-11.org.example:host
id=1ab00000-0000-4000-8000-00000000000
mount=$WORK/mount
size=48M

# --- the first host: our initiator, which SIGSTOP stops as a whole ------------

# one COMMAND [ARGUMENT...] : as the first host, which does not connect a lost path again.
one() {
    initiator "$1" -q "${host}1" -I "${id}1" --namespace-id 1 \
        --keep-alive-tmo=30 --ctrl-loss-tmo=0 "${@:2}"
}

# writes : writes its copy of the file system again and again, and notes how each pass ends.
writes() {
    local said
    while :; do
        if said=$(one write --data "$WORK/stale" 2>&1); then
            echo ok
        elif [[ $said = *"Reservation Conflict"* ]]; then
            echo conflict
        else
            echo "other: ${said//$'\n'/ }"
        fi >>"$WORK/passes"
    done
}

# passes WHAT : the number of passes that ended so.
passes() {
    grep -c "^$1" "$WORK/passes" || true
}

more_passes() {
    [ "$(passes "$1")" -ge "$2" ]
}

# --- the second host: the kernel ----------------------------------------------

# sums : of all files.
sums() {
    (cd "$mount" && find . -type f -exec md5sum {} + | sort)
}

# fill NUMBER : files of the generation of that number instead of those before.
fill() {
    local file
    rm -rf "$mount"/files-*
    mkdir "$mount/files-$1"
    for file in {1..60}; do
        head -c $((1024 * (1 + file * 7 % 90))) /dev/urandom >"$mount/files-$1/$file"
    done
    sync -f "$mount"
}

# inspect DISK WHAT : the file system as it is on the target has to be consistent.
inspect() {
    blockdev --flushbufs "$1"
    echo 3 >/proc/sys/vm/drop_caches
    e2fsck -fn "$1" >"$WORK/fsck" 2>&1 ||
        fail "$2: the file system is damaged: $(grep -v -m 1 -E '^(e2fsck|Pass|$)' "$WORK/fsck")"
}

crash() {
    target_kill
    target_start
    wait_for 60 controller_is live
}

# fence NUMBER [crash] : the first host holds the reservation and writes, the second one takes
# over while the first one is stopped.
fence() {
    local number=$1 writer disk before
    disk=$(device 1)
    one resv-register --nrkey=0xa1 --rrega=0 --cptpl=3 >/dev/null
    one resv-acquire --crkey=0xa1 --rtype=3 --racqa=0 >/dev/null
    blkpr -c register -k 0xb1 "$disk"
    inspect "$disk" "round $number"
    rm -f "$WORK/stale"
    one read --data "$WORK/stale" --start-block=0 --data-size=$((48 << 20)) >/dev/null
    : >"$WORK/passes"
    set -m
    writes &
    writer=$!
    set +m
    wait_for 30 more_passes ok 2
    # In the middle of any command.
    sleep "0.$((RANDOM % 400 + 100))"
    kill -STOP -- "-$writer"
    before=$(passes ok)

    blkpr -c preempt-abort -K 0xb1 -k 0xa1 -t write-exclusive-reg-only "$disk"
    [ -z "${2:-}" ] || "$2"
    # The data are those of before: the journal need not be recovered.
    inspect "$disk" "round $number, fenced"
    mount "$disk" "$mount"
    fill "$number"
    kill -CONT -- "-$writer"
    wait_for 60 more_passes conflict 2
    fill "$number-again"
    sums >"$WORK/sums"
    wait_for 60 more_passes conflict 4
    umount "$mount"
    inspect "$disk" "round $number, after writes of the first host"
    mount -o ro "$disk" "$mount"
    expect_eq "files in round $number" "$(<"$WORK/sums")" "$(sums)"
    umount "$mount"
    kill -KILL -- "-$writer"
    wait "$writer" || true

    # The pass that was interrupted may have ended before the reservation did.
    [ "$(passes ok)" -le $((before + 1)) ] ||
        fail "round $number: the preempted host wrote: $(sort "$WORK/passes" | uniq -c)"
    # With the target, its connection is lost.
    [ -n "${2:-}" ] || expect_eq "other errors of the first host" 0 "$(passes other)"
    blkpr -c clear -k 0xb1 "$disk"
}

config "$(disk d1 $size)"
sed -i "1i [control]\nsocket = \"$WORK/control.sock\"\nstate = \"$WORK/state.json\"\n" "$CONFIG"
target_start
connect -q "${host}2" -I "${id}2" --reconnect-delay=1 --ctrl-loss-tmo=120 --keep-alive-tmo=5
mkdir "$mount"
mkfs.ext4 -q "$(device 1)"
mount "$(device 1)" "$mount"
fill 0
umount "$mount"
for round in $(seq $rounds); do
    fence "$round"
    fence "$round-crash" crash
done
record rounds $((2 * rounds))
disconnect
target_stop
