#!/usr/bin/env bash
# The suite on every Python of this machine that the packages are built for, each in an environment of its own.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: tests/versions.sh [--only 3.12] [pytest arguments]    the quick suite on every Python from 3.11 on
       tests/versions.sh --smoke [--only 3.12]               a smoke, by default on one that .venv is not of
       tests/versions.sh --clean [--only 3.12]               what a newcomer does: a clone in an empty folder, and in it
                                                             both commands of the README

Finds Pythons on the PATH and among pyenv's, says which there are and which not, and makes build/versions/3.12 and so
on, which stay for the next time: up to 5.3 GB each where torch comes with CUDA. The smoke: what is leaned on in
megatron-core and DeepSpeed, one layout of each axis, checkpoints, and five steps of the quickstart under both
launchers; at most 30 minutes for the environment and 30 for the rest.

Exit code: 0 passed; 1 something failed; 2 refused. The smoke also ends with 0, and says so, where there is no other
Python or the registry cannot be reached.
TEXT
}

unset ATTNRES_VENV # what makes an environment of its own does not take the caller's
source "$(dirname "${BASH_SOURCE[0]}")/../launch/environment.sh"
VERSIONS=(3.14 3.11 3.12 3.13) # the smoke takes the last there is; 3.14 was never tried
LAYOUTS=tests/distributed/test_layouts.py::test_layout_trains_to_the_numbers_of_one_process
SMOKE=(
    tests/unit/test_megatron_seams.py tests/unit/test_deepspeed_seams.py tests/distributed/test_grid.py
    "${LAYOUTS}[data 2]" "${LAYOUTS}[tensor 2 sequence x pipeline 2 x virtual 2]" tests/distributed/test_optimizer.py
    tests/distributed/test_deepspeed.py::test_either_engine_goes_on_from_what_the_other_saved
    tests/distributed/test_checkpoints.py::test_a_run_equals_its_half_and_a_new_process_and_its_other_half
)

# The first interpreter of version $1 that an environment can be made with.
interpreter() {
    local candidate
    while read -r candidate; do
        if [ -x "$candidate" ] && [ -z "$(objection "$candidate")" ]; then
            "$candidate" -c 'import sys; print(sys.executable)' # not pyenv's stand-in for it
            return
        fi
    done < <(type -aP "python$1"; printf '%s\n' "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$1".*/bin/python)
}

# The environment of the Python $1, in a process of its own: what is refused there is not the end here.
make_environment() {
    # shellcheck disable=SC2016 # the inner shell's own arguments
    ATTNRES_PYTHON=$1 timeout -k 30 "$limit" bash -c \
        'source "$1"; VENV=$2 PYTHON=$2/bin/python; ensure_environment test' - "$ROOT/launch/environment.sh" "$VENV"
}

smoke() {
    local launcher runs="$VENV/runs"
    rm -rf "$runs"
    timeout -k 30 15m tests/run.sh "${SMOKE[@]}" && timeout -k 30 5m launch/quickstart.sh --prepare-only || return 1
    for launcher in torchrun deepspeed; do
        timeout -k 30 5m "launch/$launcher.sh" configs/quickstart.toml --ranks 2 --training.run_folder "$runs/$launcher" \
            --training.steps 5 --schedule.warmup_steps 1 --schedule.decay_steps 2 || return 1
    done
    rm -rf "$runs"
}

newcomer() {
    local clone="$ROOT/build/versions/clone-$1"
    say "--- Python $1 in $clone"
    rm -rf "$clone"
    git clone -q "$ROOT" "$clone" && cd "$clone" &&
        ATTNRES_PYTHON=${python[$1]} ./launch/quickstart.sh && ./tests/run.sh
}

check() {
    local version=$1 code=0
    if [ -n "$clean" ]; then
        (newcomer "$version")
        return
    fi
    VENV="$ROOT/build/versions/$version"
    say "--- Python $version in $VENV"
    make_environment "${python[$version]}" || code=$?
    if [ "$code" -ne 0 ]; then
        [ -n "$smoke" ] && { [ "$code" -eq 124 ] || registry_is_away "$VENV/install.log"; } || return 1
        say "not tried on Python $version: its packages could not be had in time"
        return 0
    fi
    local -x ATTNRES_VENV=$VENV
    if [ -n "$smoke" ]; then smoke; else tests/run.sh ${arguments[@]+"${arguments[@]}"}; fi
}

smoke='' clean='' only='' limit=0 arguments=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage; exit 0 ;;
    --smoke) smoke=yes limit=30m; shift ;;
    --clean) clean=yes; shift ;;
    --only) [ $# -ge 2 ] || refuse "--only needs a version, such as 3.12"; only=$2; shift 2 ;;
    *) arguments+=("$1"); shift ;;
    esac
done

cd "$ROOT"
declare -A python
here=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || here=none
wanted=()
for version in "${VERSIONS[@]}"; do
    python[$version]=$(interpreter "$version")
    say "Python $version: ${python[$version]:-not on this machine}"
    [ -n "${python[$version]}" ] || continue
    if [ "$version" = "$only" ] || [ -z "$only$smoke" ]; then
        wanted+=("$version")
    elif [ -z "$only" ] && [ "$version" != "$here" ]; then
        wanted=("$version") # the last there is
    fi
done
if [ "${#wanted[@]}" -eq 0 ]; then
    if [ -z "$smoke" ] || [ -n "$only" ]; then refuse "there is no Python ${only:-3.11 to 3.14} on this machine"; fi
    say "no smoke: there is no Python beside that of .venv ($here)"
    exit 0
fi

failed=()
for version in "${wanted[@]}"; do check "$version" || failed+=("$version"); done
[ "${#failed[@]}" -eq 0 ] || { say "failed on Python ${failed[*]}" >&2; exit 1; }
say "passed on Python ${wanted[*]}"
