#!/bin/bash
# about: the job files of fio-configs in their short form
# providers: verbs-rxe
# timeout: 600
source /lab/guest/lib.sh

config "$(disk d1 64M)"
target_start
connect
jobs=$(all_jobs)
expect_match "jobs" randread-4k-qd1,.*persist-write,persist-read "$jobs"
run_jobs device "$jobs" "$(device 1)"
disconnect
target_stop
