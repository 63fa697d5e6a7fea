# shellcheck shell=bash
# Sourced by the scripts: makes the repository's .venv once and keeps it up to date.
#
#   ensure_environment [EXTRAS]     e.g. "test"; afterwards $PYTHON is the interpreter of .venv
#
# ATTNRES_VENV=/path names an environment that is complete, such as a container's: then nothing is made or installed.
# ATTNRES_PYTHON=/path names the Python that .venv is made with.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P) # one name, by whatever link it was reached
VENV=${ATTNRES_VENV:-$ROOT/.venv}
PYTHON=$VENV/bin/python
if [ -n "${ATTNRES_VENV:-}" ]; then export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"; fi
unset PYTHONHOME # another Python's library, with which that of .venv does not start

say() { printf '%s\n' "$*"; }
refuse() { printf 'refused: %s\n' "$*" >&2; exit 2; }

# A random.py or wandb/ in the working directory is the user's own: from here on it is no module of ours.
own_modules_only() { export PYTHONSAFEPATH=1 PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"; }

# What keeps a Python from carrying .venv, in words; nothing where nothing does.
objection() {
    "$1" - 2>/dev/null <<'PYTHON' || echo "does not run"
import sys, sysconfig
from importlib.util import find_spec

version = "%d.%d" % sys.version_info[:2]
if sys.version_info < (3, 11):
    print("is Python %s, older than 3.11" % version)
elif sys.implementation.name != "cpython" or sys.maxsize < 2**32 or sysconfig.get_config_var("Py_GIL_DISABLED"):
    print("is not the ordinary 64-bit CPython, which the packages are built for")
elif find_spec("venv") is None or find_spec("ensurepip") is None:
    print("lacks venv; on Debian and Ubuntu: apt-get install python%s-venv" % version)
PYTHON
}

# What another script starts with `&` ignores SIGINT, and bash can never trap what was ignored when it began: so begin
# again. To be called with the script's own arguments.
heed_interrupts() {
    [ "$(trap -p INT)" = "trap -- '' SIGINT" ] && env --default-signal=INT true 2>/dev/null || return 0
    exec env --default-signal=INT bash "$0" "$@"
}

# The exit code of process $1, a child; a trapped signal ends a `wait` early. How a signal ended the child is for the
# caller to say: bash would tell it in a line of its own.
wait_out() {
    local code=0
    wait "$1" 2>/dev/null || code=$?
    while kill -0 "$1" 2>/dev/null; do
        code=0
        wait "$1" 2>/dev/null || code=$?
    done
    return "$code"
}

# The Python to make .venv with: the one that is named, else of those that constraints.txt speaks of, else any.
find_python() {
    local candidate against objections=''
    if [ -n "${ATTNRES_PYTHON:-}" ]; then
        candidate=$(type -P -- "$ATTNRES_PYTHON") || refuse "ATTNRES_PYTHON is '$ATTNRES_PYTHON': there is no such program"
        against=$(objection "$candidate")
        [ -z "$against" ] || refuse "ATTNRES_PYTHON is '$ATTNRES_PYTHON', which $against"
        realpath -s -- "$candidate"
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3 python3.14 python; do
        candidate=$(type -P "$candidate") || continue
        against=$(objection "$candidate")
        if [ -z "$against" ]; then
            say "$candidate"
            return
        fi
        objections+=$'\n'"  $candidate $against"
    done
    refuse "Python 3.11 to 3.13 is needed. Install one, or name it: ATTNRES_PYTHON=/path/to/python3.11 $0${objections:-
  there is no Python on the PATH}"
}

ensure_environment() {
    local extras=${1:-} stamp wanted lock
    if [ -n "${ATTNRES_VENV:-}" ]; then
        [ -x "$PYTHON" ] || refuse "ATTNRES_VENV is '$ATTNRES_VENV', but there is no $PYTHON"
        return
    fi
    stamp="$VENV/installed-${extras:-base}"
    # The place too: what pip installed names it.
    wanted=$(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" - <<<"$VENV" | cksum)
    if is_installed "$stamp" "$wanted"; then
        is_the_named_python
        tell_of_torch_without_cuda
        return
    fi
    { mkdir -p "$VENV" && [ -w "$VENV" ]; } 2>/dev/null ||
        refuse "'$VENV' cannot be written. Take a copy of this folder that can, or name a complete environment: ATTNRES_VENV=/path/to/venv $0"
    # Several scripts may share the folder, also from several machines: one installs, the others wait for it.
    if command -v flock >/dev/null; then
        exec {lock}>"$VENV/.lock"
        flock -n "$lock" || { say "another script installs into $VENV; waiting for it"; flock "$lock" || true; }
        is_installed "$stamp" "$wanted" || install_environment "$extras" "$stamp" "$wanted"
        exec {lock}>&-
    else
        install_environment "$extras" "$stamp" "$wanted"
    fi
}

is_installed() { [ "$(cat "$1" 2>/dev/null)" = "$2" ] && has torch; }

has() { "$PYTHON" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)" 2>/dev/null; }

is_the_named_python() {
    local which='import sys; print("%d.%d" % sys.version_info[:2])' named here
    [ -n "${ATTNRES_PYTHON:-}" ] || return 0
    named=$("$ATTNRES_PYTHON" -c "$which" 2>/dev/null) here=$("$PYTHON" -c "$which")
    [ "$named" = "$here" ] ||
        refuse "ATTNRES_PYTHON is '$ATTNRES_PYTHON' (Python ${named:-none}), but $VENV is of Python $here. Remove that folder, or unset ATTNRES_PYTHON"
}

install_environment() {
    local extras=$1 stamp=$2 wanted=$3 python log torch=()
    log="$VENV/install.log"
    # Made by half, or by a Python that has been removed or replaced since: venv itself keeps what is broken.
    if ! has pip && ! { "$PYTHON" -m ensurepip >/dev/null 2>&1 && has pip; }; then
        ! has torch || refuse "$VENV has torch but no pip: another tool made it. Put pip there, or remove it"
        python=$(find_python) || exit 2
        find -H "$VENV" -mindepth 1 -maxdepth 1 ! -name .lock -exec rm -rf {} +
        say "making $VENV with $("$python" --version)"
        if ! (cd "$ROOT" && "$python" -m venv "$VENV" >"$log" 2>&1 && has pip); then
            cat "$log" >&2
            refuse "'$python -m venv $VENV' failed"
        fi
    fi
    is_the_named_python
    has torch || choose_torch
    say "installing attnres_train${extras:+[$extras]} into $VENV"
    pip_install -e ".${extras:+[$extras]}" ${torch[@]+"${torch[@]}"} >"$log" 2>&1 || explain_failure "$log"
    "$PYTHON" -c 'import attnres_train.train' >"$log" 2>&1 || {
        tail -n 5 "$log" >&2
        refuse "everything was installed, but does not load (log: $log). Remove $VENV and run this again"
    }
    printf '%s\n' "$wanted" >"$stamp"
}

# pip, deaf to what sends packages elsewhere or takes another Python's for installed; the registries stay the user's.
pip_install() {
    (cd "$ROOT" && env -u PYTHONPATH -u PIP_PREFIX -u PIP_ROOT "$PYTHON" -m pip install --disable-pip-version-check \
        --no-user --target= -c constraints.txt "$@")
}

# Where no GPU is: torch's build for CPUs, if the registry has it. Sets `torch`; tells of gigabytes before they come.
choose_torch() {
    local pinned
    pinned=$(grep -o '^torch==[0-9.]*' "$ROOT/constraints.txt")
    if has_gpu; then
        say "torch comes with CUDA: some 2 GB to fetch, 5.3 GB on the disk; minutes"
    elif pip_install --dry-run --no-deps --quiet "$pinned+cpu" >/dev/null 2>&1; then
        torch=("$pinned+cpu")
        say "no GPU here: torch comes in its build for CPUs, 0.2 GB to fetch"
    else
        say "torch comes with CUDA: some 2 GB to fetch, 5.3 GB on the disk; minutes. No GPU is seen here, but the registry"
        say "  has no $pinned+cpu, which is a tenth; docker/Dockerfile names an index that has: PIP_EXTRA_INDEX_URL"
    fi
}

has_gpu() { [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; } # the driver's own, and that of Windows' Linux

# As where .venv was made on a login node: there the build for CPUs is right, on the nodes with GPUs it is not.
tell_of_torch_without_cuda() {
    if has_gpu && compgen -G "$VENV/lib/python*/site-packages/torch-*+cpu.dist-info" >/dev/null; then
        say "this machine has a GPU, but torch in $VENV is the build for CPUs: remove that folder, and it is made for GPUs here" >&2
    fi
}

registry_is_away() { grep -qiE 'retrying|connection (broken|refused|reset|timed out)|name resolution|proxy|certificate_verify' "$1"; }

explain_failure() {
    local log=$1 package python
    python=$("$PYTHON" --version)
    tail -n 5 "$log" >&2
    if grep -q 'No space left on device\|Disk quota exceeded' "$log"; then
        refuse "the disk is full (log: $log). $VENV wants up to 5.3 GB, and ${TMPDIR:-/tmp} 2 GB meanwhile; TMPDIR=/other/folder moves that"
    elif registry_is_away "$log"; then
        refuse "the package registry could not be reached (log: $log); check the network, the proxy and 'pip config list'"
    fi
    package=$(sed -nE 's/.*No matching distribution found for ([A-Za-z0-9._-]+).*/\1/p' "$log" | head -n 1)
    if [ -n "$package" ]; then
        refuse "the registry has no $package for $python (log: $log). Take Python 3.11 to 3.13: rm -r $VENV; ATTNRES_PYTHON=/path/to/python3.11 $0; or another registry, see 'pip config list'"
    fi
    package=$(sed -nE "s/.*Failed (building wheel for|to build) '?([A-Za-z0-9._-]+).*/\2/p" "$log" | head -n 1)
    if [ -n "$package" ]; then
        refuse "there is no wheel of $package for $python, and compiling it failed (log: $log). Take Python 3.11 to 3.13: rm -r $VENV; ATTNRES_PYTHON=/path/to/python3.11 $0; or install a C++ compiler and Python's headers (g++, python3-dev)"
    fi
    refuse "installing failed (log: $log)"
}

# DeepSpeed, where it is not installed by whatever means.
ensure_deepspeed() { has deepspeed || ensure_environment deepspeed; }
