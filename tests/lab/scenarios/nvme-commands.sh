#!/bin/bash
# about: read, write, compare, write-zeroes, dsm, flush, verify, copy of nvme-cli, byte by byte; invalid lengths and limits
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

# model FROM BLOCKS [FILE] : the expected content of blocks; zeroes without a file.
model() {
    dd if="${3:-/dev/zero}" of="$WORK/model" bs=512 seek="$1" count="$2" conv=notrunc status=none
}

# The namespace and its backing file look like the model.
same() {
    cmp "$WORK/model" "$WORK/d1" || fail "backing file after $1"
    nvme read "$disk" -s 0 -c 255 -z 131072 -d "$WORK/back" >/dev/null
    cmp -n 131072 "$WORK/model" "$WORK/back" || fail "namespace after $1"
}

# refused REGULAR-EXPRESSION COMMAND... : of nvme, with this status.
refused() {
    expect_match "status of ${*:2}" "$1" "$(expect_fail nvme "${@:2}")"
}

config "$(disk d1 1M)" "$(disk d2 64M)"
# Of the last namespace: with blocks of 512 bytes no command is longer than its limit.
printf 'block_size = 4096\n' >>"$CONFIG"
target_start
connect
disk=$(device 1)
wait_for 10 device 2
large=$(device 2)
truncate -s 1M "$WORK/model"
dd if=/dev/urandom of="$WORK/data" bs=128k count=1 status=none
dd if=/dev/urandom of="$WORK/other" bs=4k count=1 status=none

nvme write "$disk" -s 3 -c 0 -z 512 -d "$WORK/data"
model 3 1 "$WORK/data"
nvme write "$disk" -s 5 -c 7 -z 4096 -d "$WORK/other" --force-unit-access
model 5 8 "$WORK/other"
nvme write "$disk" -s 100 -c 150 -z 77312 -d "$WORK/data"
model 100 151 "$WORK/data"
same write

nvme compare "$disk" -s 5 -c 7 -z 4096 -d "$WORK/other"
refused 'Compare Failure' compare "$disk" -s 6 -c 7 -z 4096 -d "$WORK/other"
nvme write-zeroes "$disk" -s 6 -c 2
model 6 3
nvme write-zeroes "$disk" -s 110 -c 15 --deac
model 110 16
same write-zeroes
nvme dsm "$disk" -d -s 128,160,200 -b 8,24,1
model 128 8
model 160 24
model 200 1
same dsm
# Hints change no data.
nvme dsm "$disk" -r -w -s 0 -b 256
same "a hint"
nvme flush "$disk" -n 1

nvme verify "$disk" -s 0 -c 255
refused 'LBA Out of Range' verify "$disk" -s 2040 -c 8
# moved FROM TO BLOCKS : the model of a copy.
moved() {
    dd if="$WORK/model" of="$WORK/model" bs=512 skip="$1" seek="$2" count="$3" conv=notrunc status=none
}
nvme copy "$disk" --sdlba=60 --slbs=5,100 --blocks=7,0
moved 5 60 8
moved 100 68 1
same copy
refused 'LBA Out of Range' copy "$disk" --sdlba=60 --slbs=5,2047 --blocks=0,1
same "a copy that was refused"
# Up and down by less than its length: it arrives as it was.
for to in 61 58; do
    dd if="$WORK/model" of="$WORK/piece" bs=512 skip=60 count=8 status=none
    nvme copy "$disk" --sdlba=$to --slbs=60 --blocks=7
    model $to 8 "$WORK/piece"
    same "a copy to $to"
done

# VSL and WZSL are powers of two of pages and recommend only: what is longer is done as well.
# MCL and MSSRL are blocks, and one more is refused.
limits=$(nvme nvm-id-ctrl "/dev/$CTRL" -o json)
expect_eq "VSL, WZSL" "13 13" "$(field '"\(.vsl) \(.wzsl)"' <<<"$limits")"
expect_eq "the longest Write Zeroes of Linux" $((32 << 20)) \
    "$(cat "/sys/block/${large##*/}/queue/write_zeroes_max_bytes")"
for last in 8191 8192 16383; do
    nvme verify "$large" -s 0 -c $last
    nvme write-zeroes "$large" -s 0 -c $last
done
copies=$(nvme id-ns "$large" -o json)
expect_eq "MSSRL, MCL, MSRC" "16384 16384 127" \
    "$(field '"\(.mssrl) \(.mcl) \(.msrc)"' <<<"$copies")"
nvme copy "$large" --sdlba=8192 --slbs=0 --blocks=8191
refused 'Size Limit|183\)' copy "$large" --sdlba=0 --slbs=0 --blocks=16384
refused 'Size Limit|183\)' copy "$large" --sdlba=0 --slbs=0,0 --blocks=16383,0

refused 'Invalid Command Opcode' write-uncor "$disk" -s 0 -c 0
refused 'LBA Out of Range' write "$disk" -s 2047 -c 1 -z 1024 -d "$WORK/data"
refused 'LBA Out of Range' write-zeroes "$disk" -s 2048 -c 0
refused 'LBA Out of Range' dsm "$disk" -d -s 0,2040 -b 8,9

# io COMMAND-CODE LAST-BLOCK BYTES ARGUMENT... : blocks from 0 on, of a buffer
# that is too short or too long for them.
io() {
    refused 'SGL Length Invalid|Invalid Field' io-passthru "$disk" -n 1 --opcode="$1" \
        --cdw12="$2" --data-len="$3" "${@:4}"
}
for bytes in 511 512 1020 1028 4096 8192; do
    io 1 1 $bytes -w --input-file="$WORK/data"
    io 2 1 $bytes -r
    io 5 1 $bytes -w --input-file="$WORK/data"
done
# More blocks than a command may have.
io 1 512 4096 -w --input-file="$WORK/data"
io 2 1023 131072 -r
refused 'SGL Length Invalid|Invalid Field' admin-passthru "/dev/$CTRL" --opcode=6 --cdw10=1 \
    --data-len=100 -r
same "commands that were refused"
expect_eq "state" live "$(controller_state)"
expect_eq "connections that ended" 0 "$(grep -c 'disconnected:' "$LOG" || true)"
disconnect
target_stop
