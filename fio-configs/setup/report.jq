# Converts fio's report (json+) of one job file to one entry of run's results.
#
# $job: name of the file; $status: fio's exit status; $message: the first
# error in its log, or empty. Latencies are microseconds; errors are
# processes that failed.

def total: add // 0;
def spread: to_entries | map({ns: (.key | tonumber), n: .value});

# Processes of a file run together, groups of them one after the other.
def seconds(f): group_by(.groupid) | map(map(f) | max) | total | [., 1] | max / 1000;

# The latency below which a share of all bins lies; fio's own percentiles
# cannot be merged over processes, its bins can.
def percentile($share):
  sort_by(.ns) as $bins
  | ($bins | map(.n) | total * $share) as $rank
  | first(foreach $bins[] as $bin (0; . + $bin.n; select(. >= $rank) | $bin.ns / 1000))
    // null;

# One line of the table: what all processes did of one operation.
def line($operation; $seconds):
  (map(.[$operation].total_ios) | total) as $ios
  | if $ios == 0 then empty else
      (map(.[$operation].lat_ns | select(.N > 0))) as $latencies
      | ($latencies | map(.bins // {} | spread[])) as $bins
      | {
          operation: $operation,
          iops: ($ios / $seconds),
          mib_s: (if $operation == "sync" then null else
            (map(.[$operation].io_bytes) | total) / $seconds / 1048576 end),
          mean_us: (if $latencies == [] then null else
            ($latencies | (map(.mean * .N) | total) / (map(.N) | total) / 1000) end),
          p50_us: ($bins | percentile(0.5)),
          p90_us: ($bins | percentile(0.9)),
          p99_us: ($bins | percentile(0.99)),
          p999_us: ($bins | percentile(0.999)),
          p9999_us: ($bins | percentile(0.9999))
        }
    end;

# fio sometimes reports success for processes that verified nothing.
def complaint($options):
  ($options + ."job options") as $options
  | if .error != 0 then "\(.jobname): error \(.error)"
    elif .read.io_bytes + .write.io_bytes + .trim.io_bytes == 0 then
      "\(.jobname): no data read or written"
    elif $options.verify != null and $options.do_verify != "0"
      and .read.io_bytes < .write.io_bytes then
      "\(.jobname): \(.write.io_bytes) bytes written, only \(.read.io_bytes) verified"
    else empty end;

(."global options" // {}) as $options
| [.jobs[]] as $processes
| [$processes[] | complaint($options)] as $complaints
| ($complaints != [] or $status != 0) as $failed
| {
    job: $job,
    status: (if $failed then "failed" else "ok" end),
    errors: (if $failed then [$complaints | length, 1] | max else 0 end),
    message: (
      if $failed | not then null
      elif $message != "" then $message
      else $complaints[0] // "fio ended with status \($status)" end),
    # For processes with the same job and run time: operations of the slowest,
    # as a fraction of the mean.
    slowest: (
      ($processes | map(.read.total_ios + .write.total_ios)) as $ios
      | if ($ios | length) > 1 and $options.runtime != null
          and ($processes | map(.jobname) | unique | length) == 1
        then ($ios | min / ([total / length, 1] | max)) else null end),
    results: [
      ($processes | line("read"; seconds(.read.runtime))),
      ($processes | line("write"; seconds(.write.runtime))),
      ($processes | line("trim"; seconds(.trim.runtime))),
      ($processes | line("sync"; seconds(.job_runtime)))
    ]
  }
