# The part of `run` for a namespace instead of a device: fio uses the engine of
# this project, and the program `nvmeof` reads the properties of the namespace.
# Sourced by `run`, whose variables and functions it uses.
# shellcheck shell=bash disable=SC2154

# Checks the options of the engine; sets `device`, the name in the table.
namespace_options() {
    [ "$engine" = nvmeof ] ||
        refuse "--engine $engine: must be nvmeof (engines of fio require a device: ENGINE=$engine)"
    [ -z "$device" ] || refuse "--engine nvmeof: conflicts with the device $device"
    [ -n "$address" ] || refuse "no target given: add --address IP[:PORT] or unix:/path"
    [ -n "$subsystem" ] || refuse "no subsystem given: add --subsystem NQN"
    [[ $namespace =~ ^[1-9][0-9]{0,9}$ ]] || refuse "--namespace $namespace: must be a number, 1 or more"
    [[ $queues =~ ^[1-9][0-9]{0,4}$ ]] || refuse "--queues $queues: must be a number, 1 or more"
    # These become lines of a job file and words of a command.
    [[ $address =~ ^[][[:alnum:]/._:,-]+$ && $subsystem$provider =~ ^[[:alnum:]/._:-]+$ ]] ||
        refuse "--address, --subsystem, --provider: must be letters, digits and ][/._:,-"
    if [ -n "$shm_folder" ]; then shm_folder=$(realpath -m -- "$shm_folder"); fi
    [[ $shm_folder =~ ^[[:alnum:]/._:,@+-]*$ ]] ||
        refuse "--shm-folder $shm_folder: must be letters, digits and /._:,@+-"
    engine_path=${NVMEOF_FIO_ENGINE:-$(dirname "$here")/build/release/libnvmeof_fio.so}
    [ -f "$engine_path" ] ||
        refuse "$engine_path is missing: cargo xtask fio-engine (or set NVMEOF_FIO_ENGINE)"
    engine_path=$(realpath "$engine_path")
    device="namespace $namespace of $subsystem at $address"

    at=(-t rdma -n "$subsystem" --provider "$provider" ${crc:+--crc})
    if [ -n "$shm_folder" ]; then at+=(--shm-folder "$shm_folder"); fi
    # The program `nvmeof` uses the first path. The path is all of the address of a
    # Unix socket.
    local first=${address%%,*}
    if [[ $first == unix:* ]]; then
        at+=(-a "$first")
        return
    fi
    local host=$first port=4420
    case $first in
    \[*]:* | [!:]*:*)
        # Two colons without brackets are an IPv6 address alone.
        if [[ $first == \[* || $first != *:*:* ]]; then
            host=${first%:*} port=${first##*:}
        fi
        ;;
    esac
    at+=(-a "$host" -s "$port")
}

# The program `nvmeof`: in the folder of the engine, or from PATH.
nvmeof() {
    local command=$1 program
    shift
    program=$(dirname "$engine_path")/nvmeof
    if [ ! -x "$program" ]; then program=$(type -P nvmeof) || return; fi
    "$program" "$command" "${at[@]}" "$@"
}

# Sets the properties of the namespace: capacity, sector, can_trim.
look_at_namespace() {
    local identify controller
    identify=$(nvmeof id-ns --namespace-id "$namespace" -o json) ||
        refuse "cannot identify $device with the program nvmeof (cargo build --release)"
    controller=$(nvmeof id-ctrl -o json) || refuse "cannot identify the controller"
    capacity=$(jq '.nsze * .block_size' <<<"$identify")
    sector=$(jq .block_size <<<"$identify")
    # ONCS bit 2: Dataset Management.
    can_trim=$(jq -r 'if (.oncs / 4 | floor) % 2 == 1 then 1 else "" end' <<<"$controller")
}

# Refuses to write to a namespace that may hold data. Other hosts that use it
# cannot be detected.
allow_writing_namespace() {
    local head found blocks=$((1048576 / sector))
    head=$(mktemp "${TMPDIR:-/tmp}/fio-head-XXXXXX")
    if [ "$capacity" -lt 1048576 ]; then blocks=$((capacity / sector)); fi
    if nvmeof read --namespace-id "$namespace" --start-block 0 --block-count "$blocks" \
        --data - >"$head"; then
        found=$(wipefs --no-act --noheadings --output TYPE "$head") || found=unknown
    else
        found=unreadable
    fi
    rm -f "$head"
    [ "$found" != unreadable ] || refuse "$device: cannot read its first MiB"
    [ "$found" != unknown ] || refuse "$device: cannot determine what it contains"
    if [ -n "$found" ] && [ -z "$yes" ]; then
        refuse "$device contains ${found//$'\n'/, }: --yes overwrites it"
    fi
}

# Copies of the job files, with the options of the engine.
namespace_job_files() {
    local setup
    job_files=$keep/job-files
    rm -rf "$job_files"
    mkdir -p "$job_files/setup"
    cp "$here"/*.fio "$job_files"
    for setup in measure verify; do
        {
            cat "$here/setup/$setup.fio"
            printf '%s\n' "address=$address" "subsystem=$subsystem" \
                "namespace=$namespace" "provider=$provider" "queues=$queues" \
                "crc=${crc:-0}" ${shm_folder:+"shm_folder=$shm_folder"}
        } >"$job_files/setup/$setup.fio"
    done
}
