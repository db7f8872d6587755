# Converts fio's IOPS logs of one job file to its IOPS over time.
#
# Lines of the logs: milliseconds, IOPS, operation, and more. $job: name of the
# file; $interval: milliseconds that a line is the average of (log_avg_msec).
#
# fio writes no line for an interval without a completion, and writes lines
# late on a busy machine. A line therefore stands for the time since the line
# before. After a longer time it stands for its interval only: IOPS of a stalled
# device are 0, not those of its next completions.

def points_at_most: 120;

# What each line stands for: [from, to, IOPS], milliseconds since the start.
def spans($start; $interval):
  group_by(.process)
  | map(
      sort_by(.to)
      | [., ([.[0].to - $interval] + map(.to))] | transpose[] | select(.[0])
      | .[0] as $line
      | (if $line.to - .[1] > 2.5 * $interval then $line.to - $interval else .[1] end)
      | [. - $start, $line.to - $start, $line.iops]);

# Operations in each step of the time axis: [step, operations].
def steps($width):
  .[] as [$from, $to, $iops]
  | range($from / $width | floor; $to / $width | ceil)
  | [., $iops / 1000 * (([$to, (. + 1) * $width] | min) - ([$from, . * $width] | max))];

[
  inputs
  | [splits(", *") | tonumber?]
  | select(length > 2)
  | {process: input_filename, to: .[0], iops: .[1], operation: .[2]}
] as $lines
| {job: $job, series: (
    if $lines == [] then [] else
      (($lines | map(.to) | min) - $interval) as $start
      | (($lines | map(.to) | max) - $start) as $length
      | ($length / $interval / points_at_most | ceil * $interval) as $width
      # The last step is incomplete, and so is the one before if some
      # processes ended earlier.
      | ($lines | map(.process) | unique | length) as $processes
      | ([1, ($length / $width | floor) - ([$processes - 1, 1] | min)] | max) as $count
      | $lines | group_by(.operation) | map({
          operation: (["read", "write", "trim"][.[0].operation] // "other"),
          points: (
            reduce (spans($start; $interval) | steps($width)) as [$at, $operations]
              ([range($count) | 0]; if $at < $count then .[$at] += $operations else . end)
            | to_entries
            | map([(.key + 0.5) * $width / 1000, .value / $width * 1000]))
        })
    end)}
