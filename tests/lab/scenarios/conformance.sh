#!/bin/bash
# about: the libibverbs provider passes the conformance suite of the providers
# providers: verbs-rxe verbs-siw
# transport: yes
# timeout: 600
source /lab/guest/lib.sh

# The suite violates rules, which the devices log.
dmesg_expect '(rxe|siw)[0-9]*: '

# An address that does not respond: packets to it are dropped.
SILENT=${ADDRESS%.*}.99
ip neighbour replace "$SILENT" lladdr 02:00:00:00:00:99 dev "$(ip -o route get "$SILENT" | sed 's/.* dev \([^ ]*\).*/\1/')"

# Most cases wait most of the time. Over siw two at once disturb each other.
threads=1
[ "$PROVIDER" != verbs-rxe ] || threads=2

# suite LOG [ARGUMENT...]
suite() {
    NVMEOF_VERBS_ADDR=$ADDRESS NVMEOF_VERBS_SILENT=$SILENT \
        conformance --test-threads $threads "${@:2}" >"$OUT/$1" 2>&1
}

# The devices are drivers with races of their own, in a machine that is slow. As
# a scenario that fails, so a case that fails is tried once more, alone.
again=
if ! suite conformance.log; then
    # The names stand behind the second "failures:", if the suite came to its end.
    again=$(awk '/^failures:$/ { part++ } part == 2 && /^    / { print $1 }' "$OUT/conformance.log")
    [ -n "$again" ] || fail "the suite: $(tail -n 1 "$OUT/conformance.log")"
fi
for case in $again; do
    suite "$case.log" --exact "$case" || fail "$case failed twice"
done
record cases "$(sed -n 's/^running \([0-9]*\) tests.*/\1/p' "$OUT/conformance.log")"
record again "${again:-none}"
