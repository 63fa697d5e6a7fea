#!/usr/bin/env bash
# Relaunch a run that fails, from its newest whole checkpoint, as long as it makes progress.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: launch/supervise.sh [--pause SECONDS] [--dry-run] launch/torchrun.sh CONFIG.toml ...
       launch/supervise.sh [--pause SECONDS] [--dry-run] launch/deepspeed.sh CONFIG.toml ...

Runs the launch script; when it fails (code 1) runs it again, SECONDS later (default 10), and the run goes on from its
newest whole checkpoint (checkpoint.resume = "auto"). It gives up when the same step fails twice, when no rank comes to
a step, or when a launch brings neither a newer checkpoint nor a later step. Codes 0, 2 and 3 end it.
On several nodes run the same line on every one, each with its own launch script.

Exit code: that of the last launch; 3 if it was stopped between two.
TEXT
}

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
options=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage; exit 0 ;;
    --pause) [ $# -ge 2 ] || refuse "--pause needs a number of seconds"; options+=("$1" "$2"); shift 2 ;;
    --pause=* | --dry-run) options+=("$1"); shift ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || { usage >&2; refuse "no command is named"; }
ensure_environment
own_modules_only
exec "$PYTHON" -m attnres_train.supervise ${options[@]+"${options[@]}"} -- "$@"
