#!/bin/bash
# RDMA devices in software: rxe0 (RoCEv2) on dm0, siw0 (iWARP) on dm1.
set -euo pipefail

modprobe -a configfs dummy rdma_rxe siw ib_uverbs rdma_ucm nvme_rdma
mount -t configfs config /sys/kernel/config
# One address each: a peer on the same machine is reached through the device
# that owns the address.
ip link set lo up
ip link add dm0 type dummy
ip link add dm1 type dummy
ip link set dm0 mtu 4200 up
ip link set dm1 mtu 4200 up
ip address add 10.10.0.1/24 dev dm0
ip address add 10.10.1.1/24 dev dm1
rdma link add rxe0 type rxe netdev dm0
rdma link add siw0 type siw netdev dm1
# Without these (udev makes them elsewhere) librdmacm finds nothing.
[ -c /dev/infiniband/rdma_cm ]
