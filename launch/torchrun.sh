#!/usr/bin/env bash
# Train on the ranks of one machine with torchrun.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: launch/torchrun.sh CONFIG.toml [--ranks N] [--dry-run] [--section.key value ...]

Checks the configuration for N ranks (default 1), then starts N ranks of attnres_train.train with torchrun.
On a machine with GPUs every rank takes one. Everything else is passed on as overrides.

Exit code: 0 done; 2 refused before training; 3 stopped on a signal after saving; 1 anything else.
TEXT
}

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
config='' ranks=1 dry_run='' overrides=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage; exit 0 ;;
    --ranks) [ $# -ge 2 ] || refuse "--ranks needs a number"; ranks=$2; shift 2 ;;
    --ranks=*) ranks=${1#*=}; shift ;;
    --dry-run) dry_run=yes; shift ;;
    *) if [ -z "$config" ]; then config=$1; else overrides+=("$1"); fi; shift ;;
    esac
done
[ -n "$config" ] || { usage >&2; exit 2; }
[[ $ranks =~ ^[1-9][0-9]*$ ]] || refuse "--ranks is '$ranks'; give a whole number of at least 1"

# On a stop signal the ranks finish the step and save; torchrun's own patience is 30 seconds.
command=("$PYTHON" -m torch.distributed.run --standalone --nproc-per-node "$ranks" --shutdown-timeout 600
    --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1
    -m attnres_train.train "$config" ${overrides[@]+"${overrides[@]}"})
if [ -n "$dry_run" ]; then
    printf '%q ' "${command[@]}"
    printf '\n'
    exit 0
fi
ensure_environment

# From here on a stop signal ends in code 3, whenever it comes; torchrun itself listens only after seconds.
launcher='' stopped=''
stop() {
    trap '' TERM INT USR1 HUP
    stopped=yes
    if [ -n "$launcher" ]; then kill -TERM "$launcher" 2>/dev/null || true; fi
}
trap stop TERM INT USR1 HUP
finish() {
    rm -f "${ATTNRES_EXIT_CODE_FILE:-}"
    case $1 in
    2) say "refused; nothing was trained (exit code 2)" >&2 ;;
    3) say "stopped on a signal (exit code 3)" >&2 ;;
    esac
    exit "$1"
}

code=0
"$PYTHON" -m attnres_train.cli check "$config" --world "$ranks" ${overrides[@]+"${overrides[@]}"} >/dev/null || code=$?
[ -z "$stopped" ] || finish 3
[ "$code" -eq 0 ] || exit "$code"

# One thread a rank unless told otherwise: ranks that share cores spin at each other's barriers.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# torchrun turns every code but 0 into 1; the ranks leave theirs here.
ATTNRES_EXIT_CODE_FILE=$(mktemp)
export ATTNRES_EXIT_CODE_FILE

# In a session of its own, so that signals to the group reach torchrun once, through here: a second one would
# make it give up on ranks that are still saving. And tied to this script, so that it stops when the script is killed.
tied='
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
    os.getppid() == int(sys.argv[1]) or sys.exit(143)
os.execv(sys.argv[2], sys.argv[2:])'
setsid "$PYTHON" -c "$tied" $$ "${command[@]}" &
launcher=$!
[ -z "$stopped" ] || kill -TERM "$launcher" 2>/dev/null || true
wait "$launcher" || code=$?
while kill -0 "$launcher" 2>/dev/null; do # a trapped signal ends the first wait early
    code=0
    wait "$launcher" || code=$?
done
if [ "$code" -ne 0 ]; then
    code=$(grep -E '^[0-9]+$' "$ATTNRES_EXIT_CODE_FILE" || true)
    # No rank came as far as the first step: a stop if it was asked for here, or if a signal ended every rank.
    if [ -z "$code" ] && { [ -n "$stopped" ] || [ "$(grep -c '^stopped' "$ATTNRES_EXIT_CODE_FILE")" = "$ranks" ]; }; then
        code=3
    fi
fi
finish "${code:-1}"
