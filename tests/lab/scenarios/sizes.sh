#!/bin/bash
# about: writes and reads from one block to more than the largest transfer, in-capsule and keyed, from unaligned buffers; queues of 1024 entries
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

# Blocks, pages, the longest buffers but one of the target, the largest transfer
# (1 MiB), what lies around them.
sizes=(512 1024 4096 4608 8192 16384 16896 65536 262144 266240 1044480 1048576 1052672)

# commands KIND : how many reads or writes the target counted.
commands() {
    nvme smart-log "/dev/$CTRL" -o json | field ".host_$1_commands"
}

# one_of_each NSID BLOCK : one request of each size, one after the other, written
# to the namespace and to a file that shows how it must look; read and compared.
one_of_each() {
    local disk model=$WORK/model$1 size most writes=0 before used=()
    disk=$(device "$1")
    # The device of the host may register less at once than a command can carry.
    most=$(($(cat "/sys/block/${disk##*/}/queue/max_sectors_kb") * 1024))
    expect_ge "the largest transfer of Linux" 1044480 "$most"
    truncate -s 8M "$model"
    before=$(commands write)
    for size in "${sizes[@]}"; do
        [ $((size % $2)) = 0 ] || continue
        used+=("$size")
        # What is larger than the largest transfer takes several commands.
        writes=$((writes + (size + most - 1) / most))
    done
    one_each "$disk" "$model" "$2" "$2" "${used[@]}" || fail "what was written comes back otherwise"
    expect_eq "write commands" "$writes" $(($(commands write) - before))
    cmp "$model" "$WORK/d$1" || fail "the backing file of namespace $1 has other content"
    cmp "$model" "$disk" || fail "namespace $1 has other content"
}

# unaligned NSID BLOCK : data that begins anywhere in a page.
unaligned() {
    local disk align job jobs=() number=0
    disk=$(device "$1")
    for align in 4 2052; do
        for job in "$2 32k" '12k 96k' '64k 128k' '260k 520k'; do
            jobs+=("--name=${job% *}-at-$align" "--iomem_align=$align" "--bs=${job% *}"
                "--offset=$((number * 520))k" "--size=${job#* }")
            number=$((number + 1))
        done
    done
    fio --filename="$disk" --rw=randwrite --iodepth=4 --ioengine=io_uring --direct=1 \
        --verify=crc32c --verify_fatal=1 --aux-path="$WORK" --output-format=json \
        --output="$OUT/fio.json" "${jobs[@]}" 2>"$OUT/fio.err" ||
        fail "unaligned buffers: $(fio_complaint "$OUT/fio.json")"
    expect_eq "jobs that wrote and verified" 8 "$(fio_report "$OUT/fio.json" | field '[.jobs[] |
        select(.error == 0 and .read.io_bytes > 0 and .read.io_bytes == .write.io_bytes)] | length')"
    cmp "$disk" "$WORK/d$1" || fail "the backing file of namespace $1 has other content"
}

# With no data in capsules, with a page, with more than Linux puts in one.
for in_capsule in 4096 0 16384; do
    rm -f "$WORK"/{d,model}?
    config "$(disk d1 8M)"
    namespace 2 "$(disk d2 8M)" 'block_size = 4096'
    # More than a page goes with one descriptor for each command.
    descriptors=$((in_capsule > 4096 ? 1 : 16))
    printf '\n[limits]\nin_capsule = %s\nmax_descriptors = %s\n' \
        $in_capsule $descriptors >>"$CONFIG"
    target_start
    connect
    wait_for 10 device 2
    expect_eq "IOCCSZ" $(((64 + in_capsule) / 16)) \
        "$(nvme id-ctrl "/dev/$CTRL" -o json | field .ioccsz)"
    one_of_each 1 512
    one_of_each 2 4096
    if [ $in_capsule = 4096 ]; then
        unaligned 1 512
        unaligned 2 4096
    fi
    disconnect
    target_stop
done

# The longest queues there are. Linux takes 1024 entries for an answer and makes no more
# than 256 over RDMA (NVME_RDMA_MAX_QUEUE_SIZE); with these it has more to do than a queue
# can take. Ours has 1023 commands in one queue.
dmesg_expect 'ctrl sqsize 1024 > max queue size 256, clamping down'
rm -f "$WORK"/d?
config "$(disk d1 16M)"
printf '\n[limits]\nqueue_depth = 1024\n' >>"$CONFIG"
target_start
connect --queue-size=1024 --nr-io-queues=1
expect_eq "CAP.MQES" 1023 $(($(nvme show-regs "/dev/$CTRL" -o json | field .cap) & 0xffff))
entries=$(cat "/sys/class/nvme/$CTRL/sqsize")
record "entries of Linux" $((entries + 1))
expect_eq "entries of Linux" 255 "$entries"
fio --name=deep --filename="$(device 1)" --rw=randwrite --bs=4k --iodepth=1100 \
    --size=16M --ioengine=io_uring --direct=1 --verify=crc32c --verify_fatal=1 \
    --aux-path="$WORK" --output-format=json --output="$OUT/deep.json" 2>"$OUT/deep.err" ||
    fail "1100 requests at once: $(fio_complaint "$OUT/deep.json")"
expect_eq "the job that wrote and verified" 16777216 \
    "$(fio_report "$OUT/deep.json" | field '.jobs[0] | select(.error == 0) | .read.io_bytes')"
cmp "$(device 1)" "$WORK/d1" || fail "the backing file has other content"
disconnect
initiator bench --namespace-id 1 --rw randrw --iodepth 1023 --nr-io-queues 1 --runtime 2 \
    -o json >"$WORK/bench"
expect_eq "commands in one queue" "1023 1" "$(field '"\(.iodepth) \(.io_queues)"' <"$WORK/bench")"
expect_ge "operations with 1023 in one queue" 1023 \
    "$(field '.read.operations + .write.operations' <"$WORK/bench")"
target_stop
