# For scenarios with faults: verified I/O and a file system in use until the scenario stops them.
# shellcheck shell=bash

# work_start NAME : verified random writes to namespace 1, and files on an ext4 file system on
# namespace 2, both of the controller CTRL.
work_start() {
    WORK_NAME=$1
    WORK_DEVICE=$(device 2)
    rm -rf "$WORK/copies"
    mkdir -p "$WORK/mnt" "$WORK/copies"
    mkfs.ext4 -qF "$WORK_DEVICE"
    mount "$WORK_DEVICE" "$WORK/mnt"
    rm -f "$WORK/stop"
    fio --name=verify --filename="$(device 1)" --rw=randwrite --bs=4k --iodepth=16 --size=32M \
        --verify=crc32c --verify_fatal=1 --verify_backlog=256 --time_based --runtime=3600 \
        --randseed=$SRANDOM --ioengine=io_uring --direct=1 --output-format=json \
        --output="$OUT/$1.json" 2>"$OUT/$1.err" &
    FIO=$!
    files &
    FILES=$!
    sleep 1
    work_runs
}

# work_runs : fails if the work ended.
work_runs() {
    [ -d "/proc/$FIO" ] || fail "fio ended: $(fio_complaint "$OUT/$WORK_NAME.json")"
    [ -d "/proc/$FILES" ] || fail "the work on the file system ended"
}

# files : writes files with fsync until the scenario stops it. Copies are elsewhere.
files() {
    local number=0 name
    until [ -e "$WORK/stop" ]; do
        number=$((number + 1))
        name=$((number % 20))
        head -c $((RANDOM * 8 + 1)) /dev/urandom >"$WORK/copies/$name"
        cp "$WORK/copies/$name" "$WORK/mnt/new"
        sync "$WORK/mnt/new"
        mv "$WORK/mnt/new" "$WORK/mnt/$name"
        sleep 0.1
    done
}

# work_stop : ends the work, which must have seen no error: checks data and file system.
# Records the longest time of one command.
work_stop() {
    local status=0 report
    work_runs
    touch "$WORK/stop"
    wait "$FILES" || fail "the work on the file system failed"
    kill -INT "$FIO"
    wait "$FIO" || status=$?
    # 128: ended by the signal.
    [[ $status = 0 || $status = 128 ]] || fail "$(fio_complaint "$OUT/$WORK_NAME.json")"
    report=$(fio_report "$OUT/$WORK_NAME.json")
    expect_eq "errors of fio" 0 "$(field '.jobs[0].error' <<<"$report")"
    record "longest stall, $WORK_NAME" \
        "$(field '.jobs[0] | [.read, .write] | map(.lat_ns.max) | max / 1000000 | floor' <<<"$report") ms"
    umount "$WORK/mnt"
    e2fsck -fn "$WORK_DEVICE" || fail "the file system is damaged"
    mount -o ro "$WORK_DEVICE" "$WORK/mnt"
    diff -r -x lost+found "$WORK/copies" "$WORK/mnt" || fail "files have other contents"
    umount "$WORK/mnt"
}
