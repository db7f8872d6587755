#!/bin/bash
# about: the provider over libibverbs keeps the contract of all providers
# providers: verbs-rxe verbs-siw
# timeout: 600
source /lab/guest/lib.sh

# The suite breaks rules, and the devices say so.
dmesg_expect '(rxe|siw)[0-9]*: '

status=0
NVMEOF_VERBS_ADDR=$ADDRESS conformance --test-threads 1 >"$OUT/conformance.log" 2>&1 || status=$?
grep -E '^test result|FAILED' "$OUT/conformance.log" | head -n 20 || true
expect_eq "exit status of the suite" 0 "$status"
record cases "$(sed -n 's/^test result: ok. \([0-9]*\) passed.*/\1/p' "$OUT/conformance.log")"
