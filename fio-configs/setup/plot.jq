# Draws run's results as SVG: latency percentiles and IOPS over time.
#
# Input: run's results. $series: what iops.jq printed of each job; $interval:
# milliseconds of each of its samples. Jobs are drawn in rows of a few, with one
# legend for both charts of a row. Failed and skipped jobs are listed below.

def jobs_per_row: 6;
def chart: {width: 350, height: 250, left: 80, right: 520, legend: 900};
def whole: {width: 1120, top: 76, below: 108, note: 18};
def percentiles:
  [["p50_us", "p50"], ["p90_us", "p90"], ["p99_us", "p99"], ["p999_us", "p99.9"],
   ["p9999_us", "p99.99"]];

def style: "<style>
.fio-plot text { fill: #1f2328; font: 12px sans-serif; }
.fio-plot .title { font-size: 17px; }
.fio-plot .chart { font-size: 14px; }
.fio-plot .paper { fill: #fff; }
.fio-plot .grid { stroke: #d8dce0; fill: none; }
.fio-plot .line { stroke: currentColor; stroke-width: 2; fill: none; stroke-linejoin: round; }
.fio-plot .thin { stroke-width: 1.3; }
.fio-plot .mark { fill: currentColor; }
.fio-plot .write { stroke-dasharray: 7 3; }
.fio-plot .trim { stroke-dasharray: 2 3; }
.fio-plot .sync { stroke-dasharray: 9 3 2 3; }
.fio-plot .c0 { color: #0072b2; }
.fio-plot .c1 { color: #d55e00; }
.fio-plot .c2 { color: #00805d; }
.fio-plot .c3 { color: #b34e86; }
.fio-plot .c4 { color: #8f6a00; }
.fio-plot .c5 { color: #5c636b; }
@media (prefers-color-scheme: dark) {
.fio-plot text { fill: #e6e8eb; }
.fio-plot .paper { fill: #15181c; }
.fio-plot .grid { stroke: #3a4047; }
.fio-plot .c0 { color: #56b4e9; }
.fio-plot .c1 { color: #ff8b3d; }
.fio-plot .c2 { color: #2fc79c; }
.fio-plot .c3 { color: #ea9bc8; }
.fio-plot .c4 { color: #e3bd45; }
.fio-plot .c5 { color: #b4bac2; }
}
</style>";

# jq: a parameter $NAME also defines NAME, so that none may be called $length.

# XML has no escapes for control characters, U+FFFE and U+FFFF.
def escaped:
  explode | map(if . < 32 or . == 127 or . == 65534 or . == 65535 then 32 else . end)
  | implode | @html;
def shortened($columns): if length > $columns then .[:$columns - 1] + "…" else . end;
def text($x; $y; $anchor; $class):
  "<text x=\"\($x)\" y=\"\($y)\" text-anchor=\"\($anchor)\" class=\"\($class)\">\(escaped)</text>";
def text($x; $y; $anchor): text($x; $y; $anchor; "label");

# Coordinates in tenths.
def short: . * 10 | round / 10;
# Numbers of an axis in hundredths.
def number: . * 100 | round / 100 | tostring;
def rate:
  if . >= 1e6 then "\(. / 1e6 | number)M" elif . >= 1e3 then "\(. / 1e3 | number)k" else number end;
def duration:
  if . < 1 then "\(. * 1e3 | number) ns"
  elif . < 1e3 then "\(number) µs"
  elif . < 1e6 then "\(. / 1e3 | number) ms"
  else "\(. / 1e6 | number) s" end;

# The first of 1, 2, 5, 10, 20 ... that is not below a value.
def above:
  if . <= 0 then 1 else
    . as $value
    | pow(10; log10 | floor) as $unit
    | first((1, 2, 5, 10) * $unit | select(. >= $value * 0.999999))
  end;

# Marks of a logarithmic axis that includes all values: 1, 2 and 5 within each
# power of ten, or powers of ten if these suffice.
def logarithmic:
  if . == [] then [1, 10, 100] else
    min as $least | max as $most
    | (if $most / $least > 1000 then [1] else [1, 2, 5] end) as $steps
    | [range(-3; 10) as $power | $steps[] * pow(10; $power)] as $all
    | ($all | map(select(. <= $least * 1.000001)) | last // $all[0]) as $bottom
    | ($all | map(select(. >= $most * 0.999999 and . > $bottom)) | first) as $top
    | $all | map(select(. >= $bottom and . <= $top))
  end;

# Marks of a linear axis from 0, about five.
def linear($most): ($most / 5 | above) as $step | [range($most / $step | ceil + 1) * $step];

# What a job did of one operation, in the colour of the job.
def lines($series):
  to_entries[]
  | .key as $colour | .value as $job
  | ($series | map(select(.job == $job.job)) | last | .series // []) as $samples
  | $job.results[]
  | .operation as $operation
  | {
      name: "\($job.job) \($operation)", class: "c\($colour)", $operation, $colour,
      latencies: [percentiles[] as $key | .[$key[0]]
        | if . == null then null else [., 0.001] | max end],
      samples: ($samples | map(select(.operation == $operation)) | last | .points // [])
    };

# Marks of different shape, one for each colour.
def mark($x; $y; $colour):
  "<path class=\"mark\" d=\"M\($x) \($y)\([
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", "m-3.5 -3.5h7v7h-7z", "m0 -5l4.5 8h-9z",
    "m0 -5l5 5l-5 5l-5 -5z", "m0 5l4.5 -8h-9z",
    "m-1.5 -4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z"][$colour])\"/>";

# A line through points, with marks if it asks for them or would not be visible.
def drawn($line; $marks; $caption):
  map(map(short))
  | (if $marks then "line" else "line thin" end) as $class
  | if . == [] then empty else
      "<g class=\"\($line.class)\"><title>\($caption | escaped)</title>",
      "<polyline class=\"\($class) \($line.operation)\" points=\"\(
        map("\(.[0]),\(.[1])") | join(" "))\"/>",
      (if $marks or length == 1 then .[] | mark(.[0]; .[1]; $line.colour) else empty end),
      "</g>"
    end;

def frame($x; $y; $title; $axis_x; $axis_y):
  ($title | text($x + chart.width / 2; $y - 32; "middle"; "chart")),
  ($axis_y | text($x - 62; $y - 12; "start")),
  ($axis_x | text($x + chart.width / 2; $y + chart.height + 38; "middle")),
  "<path class=\"grid\" d=\"M\($x) \($y)h\(chart.width)v\(chart.height)h-\(chart.width)z\"/>";

# A mark of the vertical axis, of the horizontal axis.
def across($x; $y; $caption):
  "<path class=\"grid\" d=\"M\($x) \($y | short)h\(chart.width)\"/>",
  ($caption | text($x - 8; $y + 4 | short; "end"));
def upright($x; $y; $caption):
  "<path class=\"grid\" d=\"M\($x | short) \($y)v\(chart.height)\"/>",
  ($caption | text($x | short; $y + chart.height + 18; "middle"));

def nothing($x; $y): text($x + chart.width / 2; $y + chart.height / 2; "middle");

def latencies($y; $marks):
  chart.left as $x
  | def place: $x + chart.width * (. + 0.5) / (percentiles | length);
    def up: $y + chart.height * (1 - (. / $marks[0] | log10) / ($marks[-1] / $marks[0] | log10));
    frame($x; $y; "Latency percentiles"; "percentile"; "latency (logarithmic)"),
    ($marks[] | across($x; up; duration)),
    (percentiles | to_entries[] | upright(.key | place; $y; .value[1])),
    (.[]
      | . as $line
      | [.latencies | to_entries[] | select(.value != null)]
      | map("\(percentiles[.key][1]) \(.value | duration)") as $values
      | map([(.key | place), ([.value, $marks[0]] | max | up)])
      | drawn($line; true; "\($line.name): \($values | join(", "))")),
    (if [.[].latencies[] | values] == [] then "no latencies" | nothing($x; $y) else empty end);

def rates($y; $seconds):
  chart.right as $x
  | [.[].samples[]] as $points
  | ([$points[][0]] | max // $seconds | [., 0.1] | max) as $last
  | linear([$points[][1]] | max // 1 | [., 1] | max) as $marks
  | def place: $x + chart.width * . / $last;
    def up: $y + chart.height * (1 - . / $marks[-1]);
    frame($x; $y; "IOPS over time"; "time since the start of the job (s)"; "IOPS"),
    ($marks[] | across($x; up; rate)),
    (linear($last)[] | select(. <= $last) | upright(place; $y; number)),
    (.[]
      | . as $line
      | .samples
      | (map(.[1]) | "from \(min // 0 | rate) to \(max // 0 | rate) IOPS") as $range
      | map([(.[0] | place), (.[1] | up)])
      | drawn($line; false; "\($line.name): \($range)")),
    (if $points == [] then "no samples" | nothing($x; $y) else empty end);

def legend($y):
  to_entries[]
  | ($y + 6 + 18 * .key) as $middle
  | chart.legend as $x
  | .value
  | "<g class=\"\(.class)\"><path class=\"line \(.operation)\" d=\"M\($x) \($middle)h34\"/>",
    mark($x + 17; $middle; .colour), "</g>",
    (.name | text($x + 42; $middle + 4; "start"));

# Rows of charts, each with its distance from the top and its height.
def rows($series):
  [.jobs[] | select(.status == "ok")]
  | ([length, 1] | max) as $count
  | ($count / ($count / jobs_per_row | ceil) | ceil) as $per_row
  | [range(0; $count; $per_row) as $from | [.[$from:$from + $per_row] | lines($series)]]
  | [foreach .[] as $lines ({bottom: whole.top};
      {y: (.bottom + 40),
       bottom: (.bottom + ([chart.height, 18 * ($lines | length)] | max) + whole.below),
       lines: $lines})];

# Jobs that are not in the charts, and why.
def notes($rows):
  [$rows[].lines[]] as $lines
  | (.jobs[] | select(.status != "ok") | "not drawn: \(.job) \(.status): \(.message)"),
    ($lines | map(select(.latencies == [percentiles[] | null]).name) | select(. != [])
      | "no latencies: \(join(", "))"),
    ($lines | map(select(.samples == [] and .operation != "sync").name) | select(. != [])
      | "no IOPS over time (shorter than \($interval) ms, or verification): \(join(", "))");

# Lines of a text, between words if there are any.
def wrapped($columns):
  if length <= $columns then . else
    (.[:$columns] | rindex(" ") // $columns) as $cut
    | .[:$cut], (.[$cut:] | ltrimstr(" ") | wrapped($columns))
  end;

. as $results
| rows($series) as $rows
| ($rows[-1].bottom - 6) as $bottom
| [notes($rows) | wrapped(160)] as $notes
| ([$rows[].lines[].latencies[] | values] | logarithmic) as $marks
| ($bottom + whole.note * ($notes | length)) as $height
| "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fio-plot\" role=\"img\" width=\"\(whole.width
    )\" height=\"\($height)\" viewBox=\"0 0 \(whole.width) \($height)\">",
  "<title>\("fio: \(.device)" | escaped)</title>",
  style,
  "<rect class=\"paper\" width=\"\(whole.width)\" height=\"\($height)\"/>",
  (.device | shortened(110) | text(18; 28; "start"; "title")),
  ("\(.bytes / 1048576 | floor) MiB, \(.engine), \(.fio), Linux \(.kernel); "
    + "\(.runtime_s) s for each measurement; latencies include time in the queue"
    | shortened(170) | text(18; 50; "start")),
  ($rows[]
    | .y as $y
    | .lines
    | latencies($y; $marks), rates($y; $results.runtime_s), legend($y)),
  ($notes | to_entries[]
    | .key as $key | .value
    | text(18; $bottom + whole.note * $key; "start")),
  "</svg>"
