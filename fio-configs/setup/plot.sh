# The part of `run` that draws its results: --plot.
# Sourced by `run`, whose variables and functions it uses.
# shellcheck shell=bash disable=SC2034,SC2154

# Checks that the file can be written, before any job runs. Only a file of this
# kind is overwritten: neither a device nor an image by mistake.
allow_plot() {
    local folder cause
    [[ $plot == *.svg ]] || refuse "--plot $plot: must be a file name ending in .svg"
    folder=$(dirname -- "$plot")
    [ -d "$folder" ] || refuse "--plot $plot: folder $folder does not exist: create it"
    if [ -e "$plot" ]; then
        [ -f "$plot" ] || refuse "--plot $plot: is not a regular file: choose another name"
        [ ! "$plot" -ef "$device" ] ||
            refuse "--plot $plot: is the file that the jobs use: choose another name"
    fi
    cause=$({ : >>"$plot"; } 2>&1) ||
        refuse "--plot $plot: cannot write it: ${cause##*: }: choose another folder"
}

# Sets plot_interval, the milliseconds of each sample of IOPS: about a hundred
# in a measuring job. A verifying job has no run time.
plot_settings() {
    plot_interval=$((RUNTIME * 10))
    if [ "$plot_interval" -lt 100 ]; then plot_interval=100; fi
    if [ "$plot_interval" -gt 1000 ]; then plot_interval=1000; fi
    series=$keep/iops.jsonl
    : >"$series"
}

# Sets plot_arguments, which let fio write the IOPS of each process of a job:
# options of all its sections, with the time of day, as sections may wait for
# each other.
plot_job() {
    rm -f "$keep/$1"_iops.*.log
    plot_arguments=(--name=global "--write_iops_log=$keep/$1"
        "--log_avg_msec=$plot_interval" --log_unix_epoch=1)
}

# Adds what fio wrote of a job to the samples. A job without samples is named in
# the plot; it is no reason to end the run.
plot_samples() {
    local logs=("$keep/$1"_iops.*.log)
    [ -e "${logs[0]}" ] || return 0
    jq -cnR --arg job "$1" --argjson interval "$plot_interval" \
        -f "$here/setup/iops.jq" "${logs[@]}" >>"$series" || true
}

# Draws the results. The file is written only if all of it is known.
draw() {
    local picture cause='jq failed'
    picture=$(jq -r --slurpfile series "$series" --argjson interval "$plot_interval" \
        -f "$here/setup/plot.jq" <<<"$1") &&
        cause=$({ printf '%s\n' "$picture" >"$plot"; } 2>&1) && return
    echo "run: --plot $plot: cannot draw the results: ${cause##*: }" >&2
    return 1
}
