#!/bin/bash
# about: the job files of fio-configs in their short form
# providers: iwarp verbs-rxe
# timeout: 600
source /lab/guest/lib.sh

config "$(disk d1 64M)"
target_start
connect
status=0
# ENGINE means something else to that script.
results=$(env -u ENGINE RUNTIME=1 VERIFY_SIZE=2M \
    /lab/fio-configs/run "$(device 1)" --short -o json --keep "$OUT/fio" \
    2>"$OUT/fio-run.log") || status=$?
cat "$OUT/fio-run.log"
[ "$status" -le 1 ] || fail "fio-configs/run: $(tail -n 1 "$OUT/fio-run.log")"
expect_ge "jobs" 15 "$(field '.jobs | length' <<<"$results")"
bad=$(field '[.jobs[] | select(.status != "ok") | "\(.job) \(.status): \(.message)"] | join("; ")' <<<"$results")
expect_eq "jobs that did not pass" "" "$bad"
while IFS=$'\t' read -r job operation figures; do
    record "$job $operation" "$figures"
done < <(field '.jobs[] | {job} + .results[] |
    [.job, .operation, "\(.iops | round) IOPS, p99 \(.p99_us // 0 | round) us"] | @tsv' <<<"$results")
disconnect
target_stop
