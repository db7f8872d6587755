#!/bin/bash
# First program of the guest: sets up the devices and executes the task on the
# kernel command line. The image contains only packages; this script and all
# other files of the project are on the disk of the run (/lab).
#
#   lab=serve   runs scenarios, by commands on the second serial port
#   lab=exec    runs /lab/script, its output goes to the second serial port
#   lab=shell   a shell on the first serial port
#
# Lines on the second serial port are tab-separated and begin with a word; see
# src/event.rs for the words.
export PATH=/lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LANG=C.UTF-8 TERM=${TERM:-linux}
cd /root || exit
hostname lab
ulimit -l unlimited
# Links that udev creates elsewhere.
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
stty -F /dev/ttyS1 raw -echo
exec 3<>/dev/ttyS1

# tell WORD FIELD... : a line for the runner.
tell() {
    local IFS=$'\t'
    printf '%s\n' "$*" >&3
}

power_off() {
    sync
    echo o >/proc/sysrq-trigger
    sleep 60
}

# Wrappers log the use of programs whose use is a result of a scenario. They exec
# the program, so that the process id is the same.
stand_ins() {
    local name real
    mkdir -p /run/lab/bin
    for name in nvme nvmeof nvmeof-target fio rping mkfs.ext4 mkfs.xfs e2fsck \
        xfs_repair mount fstrim blkdiscard blkpr; do
        real=$(command -v "$name") || continue
        printf '#!/bin/busybox sh\necho "%s $*" >>/run/lab/commands\nexec %s "$@"\n' \
            "$name" "$real" >"/run/lab/bin/$name"
        chmod 755 "/run/lab/bin/$name"
    done
    export PATH=/run/lab/bin:$PATH
}

# run NAME PROVIDER SECONDS TURN LONG : one scenario, and cleaning up after it.
run() {
    local name=$1 provider=$2 limit=$3 turn=$4 long=$5 status=0 began=$EPOCHREALTIME
    local out=/out/$name@$provider
    mkdir -p "$out" /work/now
    : >/run/lab/commands
    echo "<6>lab: begin $name@$provider" >/dev/kmsg
    LONG=$long TURN=$turn PROVIDER=$provider OUT=$out WORK=/work/now timeout -k 5 "$limit" \
        bash /lab/guest/scenario.sh "/lab/scenarios/$name.sh" >"$out/log" 2>&1 </dev/null || status=$?
    local ended=$EPOCHREALTIME
    local reason=
    [ ! -s /run/lab/reason ] || reason=$(head -n 1 /run/lab/reason)
    if [ "$status" = 124 ] || [ "$status" = 137 ]; then
        reason="timeout after $limit s: ${reason:-$(sed -E 's/^(\++)[0-9.]+ /\1 /; /^\++ (set|blame|finish) /d' "$out/trace" | tail -n 1)}"
    fi
    [ -z "$reason" ] || tell reason "$reason"
    rm -f /run/lab/reason /run/lab/failed
    [ "$status" = 0 ] || blocked "$out"
    if [ -s /run/lab/records ]; then
        while IFS=$'\t' read -r key value; do tell record "$key" "$value"; done </run/lab/records
        rm -f /run/lab/records
    fi
    sort -u /run/lab/commands | cut -c 1-200 | while IFS= read -r line; do tell ran "$line"; done
    clean "$out"
    tell end "$status" $(((${ended/./} - ${began/./}) / 1000)) "$(head -n 1 /run/lab/dirt)"
}

# clean FOLDER : cleans up; /run/lab/dirt lists what is left. A program that is blocked in
# the kernel cannot be killed, so it is not waited for.
clean() {
    local cleaner until=$((SECONDS + 70))
    timeout -k 5 60 bash /lab/guest/clean.sh >/run/lab/dirt 2>>"$1/log" ||
        echo "cleanup failed with status $?" >>/run/lab/dirt &
    cleaner=$!
    while [ -d "/proc/$cleaner" ]; do
        if [ $SECONDS -ge $until ]; then
            blocked "$1"
            echo "cleanup is blocked in the kernel" >>/run/lab/dirt
            return
        fi
        sleep 0.1
    done
}

# blocked FOLDER : saves the kernel log, with the stacks of blocked tasks.
blocked() {
    echo w >/proc/sysrq-trigger
    dmesg >"$1/dmesg"
}

# clock_is_right : whether the clock has the right rate. The kernel measures the rate of the
# TSC during a few milliseconds of its boot, which is wrong, sometimes by a factor of ten, if
# the emulator is not scheduled in that time. It measures again for a second, and logs this if
# both agree; otherwise it keeps the first result.
clock_is_right() {
    dmesg | grep 'tsc: Refined TSC clocksource calibration' >/dev/null
}

serve() {
    local word name provider limit turn long
    if ! clock_is_right; then
        tell clock
        power_off
    fi
    stand_ins
    cat /proc/mounts >/run/lab/mounts
    tell ready "$(uname -r)" "$(</proc/uptime)"
    # A guest must end if its runner has.
    while read -r -t 900 word name provider limit turn long <&3; do
        [ "$word" = run ] && run "$name" "$provider" "$limit" "$turn" "$long"
    done
}

mkdir -p /run/lab
if ! bash /lab/guest/devices.sh >/run/lab/devices.log 2>&1; then
    tell broken "devices: $(tail -n 1 /run/lab/devices.log)"
fi
case $(</proc/cmdline) in
*lab=serve*) serve ;;
*lab=exec*)
    bash /lab/script </dev/null >&3 2>&1
    echo $? >/out/status
    ;;
*lab=shell*)
    echo "A guest of the lab. Programs: /lab/bin. Functions of scenarios (the first failure ends"
    echo "the shell): PROVIDER=iwarp; source /lab/guest/lib.sh. To end: exit"
    cd /root && setsid --ctty --wait bash -i </dev/ttyS0 >/dev/ttyS0 2>&1
    ;;
esac
power_off
