# shellcheck shell=bash
# Sourced by torchrun.sh and deepspeed.sh: reads the options, then runs attnres_train.launch.start for $1.
#
# Signals: the traps stand before anything is started, and start.py runs in a session of its own, so that a signal to
# the group reaches it once, through here. It is tied to this script by the kernel, as the launcher is to it and every
# rank to the launcher: whoever is killed, those below are told to save and end.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

launch() {
    local launcher=$1 config='' options=() overrides=() dry_run=''
    shift
    heed_interrupts "$@"
    own_modules_only
    while [ $# -gt 0 ]; do
        case $1 in
        -h | --help) usage; exit 0 ;;
        --ranks | --nodes | --node-rank | --node_rank | --master | --hostfile | --join-seconds)
            [ $# -ge 2 ] || refuse "$1 needs a value"
            set -- "$1=$2" "${@:3}"
            ;;
        --ranks=* | --nodes=* | --node-rank=* | --node_rank=* | --join-seconds=*)
            [[ ${1#*=} =~ ^[0-9]+$ ]] || refuse "${1%%=*} is '${1#*=}'; give a whole number"
            [[ $1 != --ranks=0 && $1 != --nodes=0 ]] || refuse "${1%%=*} is '0'; give a whole number of at least 1"
            options+=("${1/#--node_rank/--node-rank}")
            shift
            ;;
        --master=* | --hostfile=* | --no_ssh | --no-ssh) options+=("${1/#--no-ssh/--no_ssh}"); shift ;;
        --dry-run) dry_run=yes; shift ;;
        *) if [ -z "$config" ]; then config=$1; else overrides+=("$1"); fi; shift ;;
        esac
    done
    [ -n "$config" ] || { usage >&2; refuse "no CONFIG.toml is named"; }
    [[ $config != -* ]] || refuse "the configuration file comes first, not '$config'"
    local start=(-m attnres_train.launch.start "$launcher" ${options[@]+"${options[@]}"})
    local rest=(-- "$config" ${overrides[@]+"${overrides[@]}"})
    if [ -n "$dry_run" ]; then
        [ -x "$PYTHON" ] || PYTHON=$(find_python)
        exec "$PYTHON" "${start[@]}" --dry-run "${rest[@]}"
    fi
    started='' stopped=''
    trap stop TERM INT USR1 HUP
    ensure_environment
    [ "$launcher" = torchrun ] || ensure_deepspeed
    [ -z "$stopped" ] || end_stopped
    supervise "${start[@]}" --parent $$ "${rest[@]}"
}

# From here on a stop signal ends in code 3, whenever it comes.
stop() {
    trap '' TERM INT USR1 HUP
    stopped=yes
    if [ -n "$started" ]; then kill -TERM "$started" 2>/dev/null || true; fi
}

end_stopped() {
    say "stopped on a signal before a rank began: nothing was trained (exit code 3)" >&2
    exit 3
}

supervise() {
    local code=0
    setsid "$PYTHON" "$@" &
    started=$!
    [ -z "$stopped" ] || kill -TERM "$started" 2>/dev/null || true
    wait_out "$started" || code=$?
    # Killed by our signal before it could listen: nothing had begun.
    if [ -n "$stopped" ] && [ "$code" -eq 143 ]; then end_stopped; fi
    if [ "$code" -eq 137 ]; then
        say "the launch itself (attnres_train.launch.start) was killed by signal 9: most often memory, see dmesg." >&2
        say "  Its ranks save and end by themselves; what they say is in logs/ of the run folder (exit code 1)" >&2
    fi
    [ "$code" -le 3 ] || code=1
    exit "$code"
}
