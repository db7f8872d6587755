#!/bin/bash
# about: 50 connections leave nothing behind: memory, descriptors, queue pairs
# providers: iwarp verbs-rxe verbs-siw
# timeout: 300
source /lab/guest/lib.sh

config "$(disk d1 16M)"
target_start
# The first ones fill what is kept for later.
for _ in 1 2 3; do
    connect
    disconnect
done
before=$(footprint)
for _ in {1..50}; do
    connect
    dd if="$(device 1)" of=/dev/null bs=4k count=4 iflag=direct status=none
    disconnect
done
leaks_none "$before" 2048
target_stop
