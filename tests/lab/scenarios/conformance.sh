#!/bin/bash
# about: the provider over libibverbs keeps the contract of all providers
# providers: verbs-rxe verbs-siw
# timeout: 420
source /lab/guest/lib.sh

# The suite breaks rules, and the devices say so.
dmesg_expect '(rxe|siw)[0-9]*: '

# A machine that does not answer: packets to it go nowhere.
SILENT=${ADDRESS%.*}.99
ip neighbour replace "$SILENT" lladdr 02:00:00:00:00:99 dev "$(ip -o route get "$SILENT" | sed 's/.* dev \([^ ]*\).*/\1/')"

status=0
NVMEOF_VERBS_ADDR=$ADDRESS NVMEOF_VERBS_SILENT=$SILENT conformance --test-threads 1 >"$OUT/conformance.log" 2>&1 || status=$?
grep -E '^test result|FAILED' "$OUT/conformance.log" | head -n 20 || true
expect_eq "exit status of the suite" 0 "$status"
record cases "$(sed -n 's/^test result: ok. \([0-9]*\) passed.*/\1/p' "$OUT/conformance.log")"
