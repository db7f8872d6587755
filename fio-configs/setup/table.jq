# Lines of the table, at most 80 columns, from run's results.

def fill($columns): [range($columns - length)] | map(" ") | add // "";
def left($columns): . + fill($columns);
def right($columns): fill($columns) + .;

# One digit after the point below 100, none above.
def number:
  if . == null then "-"
  elif . >= 99.95 then round | tostring
  else . * 10 | round | tostring | right(2) | sub(" "; "0") | .[:-1] + "." + .[-1:]
  end;

def row($errors):
  [
    (.[0] | left(19)), (.[1] | left(5)), (.[2] | right(8)),
    (.[3:7][] | right(7)), (.[7] | right(8)), ($errors | right(4))
  ] | join(" ") | sub(" +$"; "");

def outcome: if .status == "skipped" then "skip" else .errors | tostring end;

"\(.device), \(.bytes / 1048576 | floor) MiB, \(.engine), \(.fio), Linux \(.kernel)",
"\(.runtime_s) s for each measurement; latencies in µs, including time in the queue",
"",
(["job", "op", "IOPS", "MiB/s", "mean", "p50", "p99", "p99.9"] | row("errs")),
(
  .jobs[]
  | . as $job
  | (.results | if . == [] then [{operation: "-"}] else . end)
  | to_entries[]
  | .key as $key
  | .value
  | [
      (if $key == 0 then $job.job else "" end), .operation,
      ((.iops, .mib_s, .mean_us, .p50_us, .p99_us, .p999_us) | number)
    ]
  | row(if $key == 0 then $job | outcome else "" end)
),
"",
(
  .jobs[]
  | (select(.message) | "\(.job) \(.status): \(.message)"),
    (select(.slowest)
      | "\(.job): the slowest process did \(.slowest * 100 | round) % of the mean")
)
