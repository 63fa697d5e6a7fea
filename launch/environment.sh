# shellcheck shell=bash
# Sourced by the scripts: makes the repository's .venv once and keeps it up to date.
#
#   ensure_environment [EXTRAS]     e.g. "test"; afterwards $PYTHON is the interpreter of .venv
#
# ATTNRES_VENV=/path names an environment that is complete, such as a container's: then nothing is made or installed.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHON="${ATTNRES_VENV:-$ROOT/.venv}/bin/python"
if [ -n "${ATTNRES_VENV:-}" ]; then export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"; fi

say() { printf '%s\n' "$*"; }
refuse() { printf 'refused: %s\n' "$*" >&2; exit 2; }

# A random.py or wandb/ in the working directory is the user's own: from here on it is no module of ours.
own_modules_only() { export PYTHONSAFEPATH=1 PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"; }

# What another script starts with `&` ignores SIGINT, and bash can never trap what was ignored when it began: so begin
# again. To be called with the script's own arguments.
heed_interrupts() {
    [ "$(trap -p INT)" = "trap -- '' SIGINT" ] && env --default-signal=INT true 2>/dev/null || return 0
    exec env --default-signal=INT bash "$0" "$@"
}

# The exit code of process $1, a child; a trapped signal ends a `wait` early.
wait_out() {
    local code=0
    wait "$1" || code=$?
    while kill -0 "$1" 2>/dev/null; do
        code=0
        wait "$1" || code=$?
    done
    return "$code"
}

find_python() {
    local candidate
    for candidate in "${ATTNRES_PYTHON:-}" python3.11 python3.12 python3.13 python3 python; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    local found
    found=$(python3 --version 2>&1 || echo "no python3")
    refuse "Python 3.11 or newer is needed, found $found. Install one, or name it: ATTNRES_PYTHON=/path/to/python3.11 $0"
}

ensure_environment() {
    local extras=${1:-} stamp wanted lock
    if [ -n "${ATTNRES_VENV:-}" ]; then
        [ -x "$PYTHON" ] || refuse "ATTNRES_VENV is '$ATTNRES_VENV', but there is no $PYTHON"
        return
    fi
    stamp="$ROOT/.venv/installed-${extras:-base}"
    wanted=$(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | cksum)
    if is_installed "$stamp" "$wanted"; then return; fi
    # Several scripts may share the folder, also from several machines: one installs, the others wait for it.
    if command -v flock >/dev/null; then
        mkdir -p "$ROOT/.venv"
        exec {lock}>"$ROOT/.venv/.lock"
        flock -n "$lock" || { say "another script installs into .venv; waiting for it"; flock "$lock" || true; }
        is_installed "$stamp" "$wanted" || install_environment "$extras" "$stamp" "$wanted"
        exec {lock}>&-
    else
        install_environment "$extras" "$stamp" "$wanted"
    fi
}

is_installed() { [ -x "$PYTHON" ] && [ "$(cat "$1" 2>/dev/null)" = "$2" ]; }

install_environment() {
    local extras=$1 stamp=$2 wanted=$3 python log
    python=$(find_python) || exit 2
    if [ ! -x "$PYTHON" ]; then
        say "making .venv with $("$python" --version)"
        "$python" -m venv "$ROOT/.venv" ||
            refuse "'$python -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv"
    fi
    say "installing attnres_train${extras:+[$extras]} into .venv (torch is large; minutes the first time)"
    log="$ROOT/.venv/install.log"
    if ! (cd "$ROOT" && "$PYTHON" -m pip install --disable-pip-version-check -c constraints.txt \
        -e ".${extras:+[$extras]}") >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        if grep -qiE 'connection|name resolution|retrying|timed out|no matching distribution' "$log"; then
            refuse "the package registry could not be reached or lacks a package (log: $log); check the network, proxy and 'pip config list'"
        fi
        refuse "installing failed (log: $log)"
    fi
    printf '%s\n' "$wanted" >"$stamp"
}

# DeepSpeed, where it is not installed by whatever means.
ensure_deepspeed() {
    "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("deepspeed") is None)' ||
        ensure_environment deepspeed
}
