#!/bin/bash
# about: the initiator authenticates itself to the kernel target (nvmet) and the target to it, for each hash function and group; wrong keys are refused
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
# long-timeout: 1800
source /lab/guest/lib.sh

host=nqn.2026-11.org.example:host
nvmet=/sys/kernel/config/nvmet
modprobe loop
nvmet_start "$(losetup -f --show "$(disk d1 64M)")"
mkdir "$nvmet/hosts/$host"
echo 0 >"$nvmet/subsystems/$NQN/attr_allow_any_host"
ln -s "$nvmet/hosts/$host" "$nvmet/subsystems/$NQN/allowed_hosts/$host"

# set_keys HOST CONTROLLER HASH GROUP : what nvmet has for the host.
set_keys() {
    echo "$1" >"$nvmet/hosts/$host/dhchap_key"
    # nvmet cannot remove a key again. It does not use it if the host does not request that.
    [ -z "$2" ] || echo "$2" >"$nvmet/hosts/$host/dhchap_ctrl_key"
    echo "hmac($3)" >"$nvmet/hosts/$host/dhchap_hash"
    echo "$4" >"$nvmet/hosts/$host/dhchap_dhgroup"
}

# reads ARGUMENT... : one block over an I/O queue.
reads() {
    initiator read --hostnqn "$host" --namespace-id 1 --block-count 1 --data /dev/null "$@"
}

# Keys of nvme-cli and of this project, transformed and not.
theirs=$(nvme gen-dhchap-key --hmac=0 --key-length=32)
ours=$(nvmeof gen-dhchap-key --hmac 3)
transformed=$(nvme gen-dhchap-key --hmac=2 --nqn="$host")
nvme check-dhchap-key --key="$ours"
for key in "$theirs" "$transformed"; do nvmeof check-dhchap-key --key "$key"; done

hashes=(sha256 sha384 sha512)
groups=(null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192)
count=0
for group in "${groups[@]}"; do
    for hash in "${hashes[@]}"; do
        # A group has one hash function in a short run, which changes with the group.
        count=$((count + 1))
        [ -n "$LONG" ] || [ $((count % 4)) = 1 ] || continue
        set_keys "$ours" "" "$hash" "$group"
        reads --dhchap-secret "$ours"
        set_keys "$theirs" "$transformed" "$hash" "$group"
        reads --dhchap-secret "$theirs" --dhchap-ctrl-secret "$transformed"
        for ways in one-way two-way; do record "authentication, $hash, $group, $ways" passed; done
    done
done

set_keys "$theirs" "$transformed" sha256 ffdhe2048
# Keys from files are not visible in the process list.
echo "$theirs" >"$WORK/key"
echo "$transformed" >"$WORK/controller-key"
reads --dhchap-secret "@$WORK/key" --dhchap-ctrl-secret "@$WORK/controller-key"
# One way: the controller's key is not required.
reads --dhchap-secret "$theirs"

# refused ARGUMENT... : the error of the initiator.
refused() {
    expect_fail reads -o json "$@" | field .error
}

answer=$(refused --dhchap-secret "$ours")
# nvmet also ends the controller, perhaps before the host has fetched the failure.
expect_match "wrong key" "authentication failed: the (controller reports|target closed)" "$answer"
answer=$(refused --dhchap-secret "$theirs" --dhchap-ctrl-secret "$ours")
expect_match "wrong key of the controller" "did not prove its key" "$answer"
answer=$(refused)
expect_match "no key" "requires in-band authentication" "$answer"
dmesg_expect 'nvmet: ctrl [0-9]+ (qid [0-9]+ failure1|fatal error)|nvmet: .*(auth|mismatch)|nvmet_rdma: (received IB QP event|post_recv cmd failed)'
