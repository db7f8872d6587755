#!/bin/bash
# about: the software RDMA devices of the guest work
# providers: verbs-rxe verbs-siw
# transport: yes
# timeout: 150
source /lab/guest/lib.sh

expect_match "port state" PORT_ACTIVE "$(ibv_devinfo -d "$RDMA")"
rping -s -a "$ADDRESS" -C 3 &
wait_for 5 rping -c -a "$ADDRESS" -C 3
wait %1
