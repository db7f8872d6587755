#!/bin/bash
# about: Cross-Controller Reset by nvme admin-passthru under I/O over two paths: no I/O error
# providers: iwarp verbs-siw
# timeout: 180
source /lab/guest/lib.sh

losses_expected

# bytes FROM COUNT FILE : little endian, in hexadecimal.
bytes() {
    od -An -v -tx1 -j "$1" -N "$2" "$3" | tr -d ' \n' | fold -w 2 | tac | tr -d '\n'
}

# named CONTROLLER : CDW10, CDW12 and CDW13 that name its incarnation.
named() {
    local id cirn
    id=$OUT/id-$1
    nvme id-ctrl "/dev/$1" --raw-binary >"$id"
    cirn=$(bytes 136 8 "$id")
    echo "0x$(bytes 135 1 "$id")$(bytes 78 2 "$id") 0x${cirn:8} 0x${cirn:0:8}"
}

# reset_by SIBLING CDW10 CDW12 CDW13 : prints what nvme says.
reset_by() {
    nvme admin-passthru "/dev/$1" --opcode=0x38 --cdw10="$2" --cdw12="$3" --cdw13="$4" 2>&1
}

# log_page SIBLING : prints the first entry of log page 1Eh in hexadecimal.
log_page() {
    nvme get-log "/dev/$1" --log-id=0x1e --log-len=16 --raw-binary >"$OUT/log"
    od -An -v -tx1 -j 8 -N 8 "$OUT/log" | tr -d ' \n'
}

# is_successful SIBLING : whether that reset is.
is_successful() {
    [ "$(log_page "$1" | cut -c 13-14)" = 01 ]
}

config "$(disk d1 64M)"
printf '\n[[port]]\ntraddr = "%s"\ntrsvcid = %s\nprovider = "%s"\n' \
    "$ADDRESS" $((PORT + 1)) "$ENGINE" >>"$CONFIG"
target_start
connect --reconnect-delay=1
first=$CTRL
connect -s $((PORT + 1)) --reconnect-delay=1
second=$CTRL

disk=$(device 1)
fio --name=verify --filename="$disk" --rw=randwrite --bs=4k --iodepth=16 --size=32M \
    --verify=crc32c --verify_fatal=1 --ioengine=io_uring --direct=1 \
    --output-format=json --output="$OUT/fio.json" &
job=$!
sleep 1
read -r -a instance <<<"$(named "$first")"
said=$(reset_by "$second" "${instance[@]}") || fail "reset refused: $said"
expect_match "result of the reset" 'result:? *0x0*[01]|result: *0*[01]|success' "$said"
wait_for 10 is_successful "$second"
CTRL=$first wait_for 20 controller_is live
wait "$job" || fail "fio failed over a Cross-Controller Reset"
expect_eq "errors of fio" 0 "$(field '.jobs[0].error' <"$OUT/fio.json")"

# The incarnation that was reset is gone: the one that came after it stays.
read -r -a present <<<"$(named "$first")"
[ "${present[*]}" != "${instance[*]}" ] || fail "the new controller has the old names"
reset_by "$second" "${instance[@]}" >"$OUT/again" || fail "it is known to be quiet"
said=$(expect_fail reset_by "$second" "${present[0]}" "${present[1]}" 0x1)
expect_match "a wrong CIRN" '[Ii]nvalid.[Ff]ield' "$said"
CTRL=$first controller_is live || fail "the wrong controller was reset"
disconnect
target_stop
