#!/bin/bash
# about: missing requirements of RDMA are reported at the start, with the remedy, and the target retries
# providers: verbs-rxe
# timeout: 240
source /lab/guest/lib.sh

# The message of the device about the memory limit.
dmesg_expect 'rxe_reg_user_mr'

config "$(disk d1 16M)"
chmod 777 "$WORK" && chmod 666 "$WORK/d1"

# refused WHAT REGULAR-EXPRESSION COMMAND... : the target must end with status
# 2 and one message that matches.
refused() {
    local what=$1 wanted=$2 said status=0
    shift 2
    said=$(timeout 20 "$@" nvmeof-target serve --config "$CONFIG" 2>&1) || status=$?
    echo "$what: $said"
    expect_eq "exit status ($what)" 2 "$status"
    expect_match "message ($what)" "$wanted" "$said"
    expect_eq "messages ($what)" 1 "$(grep -c '^nvmeof-target: ' <<<"$said")"
}

# waits WHAT REGULAR-EXPRESSION COMMAND... : the target must run and wait for its port
# with a message that matches.
waits() {
    local what=$1 wanted=$2 said
    shift 2
    said=$(timeout 15 "$@" nvmeof-target serve --config "$CONFIG" 2>&1) || true
    echo "$what: $said"
    expect_match "message ($what)" "waiting for port .*($wanted)" "$said"
    expect_match "readiness ($what)" 'ready: serving .* on no port' "$said"
}

library=$(ldconfig -p | awk '/librdmacm.so.1 / && !found++ { print $NF }')
# shellcheck disable=SC2016
hidden='mount --bind /dev/null "$1" && shift && exec "$@"'
waits "rdma-core is missing" 'librdmacm1' \
    unshare --mount bash -c "$hidden" hidden "$(readlink -f "$library")"

# An ordinary user with a memlock limit of 64 KiB.
chmod 666 /dev/infiniband/*
refused "memlock limit" 'ulimit -l|LimitMEMLOCK' \
    prlimit --memlock=65536:65536 setpriv --reuid 12345 --regid 12345 --clear-groups

# More addresses than the device has GID table entries: the last ones have none.
places=(/sys/class/infiniband/"$RDMA"/ports/1/gids/*)
link=$(cat "/sys/class/infiniband/$RDMA/parent")
for ((number = 0; number <= ${#places[@]}; number++)); do
    last=10.200.$((number / 250)).$((number % 250 + 1))
    echo "address add $last/32 dev $link"
done >"$WORK/addresses"
ip -batch "$WORK/addresses"
sed -i "s/^traddr = .*/traddr = \"$last\"/" "$CONFIG"
waits "no usable GID" "$RDMA has no usable GID for $last.*ibv_devinfo" env
ip address flush dev "$link" to 10.200.0.0/16

sed -i 's/^traddr = .*/traddr = "10.99.99.99"/' "$CONFIG"
waits "foreign address" '10.99.99.99.*not assigned to an interface' env
sed -i 's/^traddr = .*/traddr = "127.0.0.1"/' "$CONFIG"
waits "no device there" 'no RDMA device serves 127.0.0.1.*rdma link' env

# Without any device, as on most machines.
sed -i "s/^traddr = .*/traddr = \"$ADDRESS\"/" "$CONFIG"
rdma link delete rxe0
rdma link delete siw0
waits "no device" 'no RDMA device|rdma link' env
# auto continues without a device.
sed -i 's/^provider = .*/provider = "auto"/' "$CONFIG"
target_start
target_logged 'iwarp \(software' || fail "auto without a device: $(tail -n 1 "$LOG")"
target_stop
