#!/usr/bin/env bash
# Two nodes on one machine: network namespaces with a link between them, and the real launch script in each.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: launch/rehearse.sh [CONFIG.toml] [--launcher torchrun|deepspeed] [--ranks N] [--dry-run] [--section.key value ...]

Runs a training on 2 nodes x N ranks (default 2) of this machine. The nodes, node-0 and node-1, are network namespaces
with a host name and an interface of their own, joined by one link; they share nothing else of the network, but the
file system. Without CONFIG: 20 steps of configs/quickstart.toml, whose corpus is fetched the first time.

Needs Linux, root (for the namespaces) and `ip` (Debian, Ubuntu: apt-get install iproute2).
While it runs, break things and see what is said:
  kill -9 or kill -STOP a rank (ps ax | grep attnres_train.train), a launcher, one of the two launch scripts, or
  ip netns exec attnres-node-1 ip link set eth0 down

Exit code: 0 if both nodes end with 0, else that of the first node that fails; 2 refused.
TEXT
}

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
heed_interrupts "$@"
config='' launcher=torchrun ranks=2 dry_run='' overrides=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage; exit 0 ;;
    --launcher | --ranks) [ $# -ge 2 ] || refuse "$1 needs a value"; set -- "$1=$2" "${@:3}" ;;
    --launcher=torchrun | --launcher=deepspeed) launcher=${1#*=}; shift ;;
    --ranks=[1-9]*) ranks=${1#*=}; shift ;;
    --launcher=* | --ranks=*) usage >&2; refuse "what is '$1'?" ;;
    --dry-run) dry_run=yes; shift ;;
    *.toml) config=$1; shift ;;
    *) overrides+=("$1"); shift ;;
    esac
done
no_ssh=()
[ "$launcher" = torchrun ] || no_ssh=(--no_ssh)
defaults=()
# Adds an override, unless the command line has its own.
default() {
    local given
    for given in ${overrides[@]+"${overrides[@]}"}; do
        [ "${given%%=*}" != "$1" ] || return 0
    done
    defaults+=("$1" "$2")
}
own_config=$config
if [ -z "$config" ]; then
    config=configs/quickstart.toml
    default --training.run_folder runs/rehearsal
    default --training.steps 20
    default --schedule.warmup_steps 2
    default --schedule.decay_steps 8
    default --parallel.timeout_seconds 30
fi
# The command of either node, given its hostfile.
set_command() {
    words=("$ROOT/launch/$launcher.sh" "$config" --hostfile "$1" ${no_ssh[@]+"${no_ssh[@]}"}
        ${defaults[@]+"${defaults[@]}"} ${overrides[@]+"${overrides[@]}"})
}
if [ -n "$dry_run" ]; then
    say "on node-0 and on node-1, with a hostfile of 'node-0 slots=$ranks' and 'node-1 slots=$ranks':"
    set_command HOSTFILE
    printf '%q ' "${words[@]}"
    echo
    exit 0
fi
[ "$(uname)" = Linux ] || refuse "network namespaces need Linux"
[ "$(id -u)" -eq 0 ] || refuse "network namespaces need root; run: sudo $0"
command -v ip >/dev/null || refuse "there is no 'ip'; on Debian and Ubuntu: apt-get install iproute2"

# Before there are nodes: inside there is no network to install from.
ensure_environment
[ "$launcher" = torchrun ] || ensure_deepspeed
if [ -z "$own_config" ]; then
    "$ROOT/launch/quickstart.sh" --prepare-only
    cd "$ROOT"
fi
exec {alone}>"${TMPDIR:-/tmp}/attnres-rehearsal.lock"
flock -n "$alone" || refuse "another rehearsal is running on this machine; wait for it, or end it"

nodes=() codes=()
space() { printf 'attnres-node-%s' "$1"; }
# shellcheck disable=SC2329 # the traps call these two
clean_up() {
    local node
    trap '' TERM INT HUP
    for node in 0 1; do
        ip netns delete "$(space "$node")" 2>/dev/null || true
        rm -rf "/etc/netns/$(space "$node")"
    done
    rm -f "${hostfile:-}"
}
# shellcheck disable=SC2329
stop() {
    local node
    trap '' TERM INT HUP USR1
    for node in ${nodes[@]+"${nodes[@]}"}; do kill -TERM "$node" 2>/dev/null || true; done
}
trap clean_up EXIT
trap stop TERM INT HUP USR1

hostfile=$(mktemp)
for node in 0 1; do
    ip netns delete "$(space "$node")" 2>/dev/null || true # of a rehearsal that was SIGKILLed: none is running
    ip netns add "$(space "$node")" || refuse "namespace $(space $node) cannot be made"
    # `ip netns exec` shows these files as /etc/hosts inside.
    mkdir -p "/etc/netns/$(space "$node")"
    printf '127.0.0.1 localhost\n10.78.0.1 node-0\n10.78.0.2 node-1\n' >"/etc/netns/$(space "$node")/hosts"
    printf 'node-%s slots=%s\n' "$node" "$ranks" >>"$hostfile"
done
ip -n "$(space 0)" link add eth0 type veth peer name eth0 netns "$(space 1)"
for node in 0 1; do
    ip -n "$(space "$node")" link set lo up
    ip -n "$(space "$node")" address add "10.78.0.$((node + 1))/24" dev eth0
    ip -n "$(space "$node")" link set eth0 up
done

set_command "$hostfile"
for node in 0 1; do
    # shellcheck disable=SC2016 # expanded inside
    ip netns exec "$(space "$node")" unshare --uts bash -c 'hostname "$0" && exec "$@"' "node-$node" \
        "${words[@]}" {alone}>&- > >(sed -u "s/^/node-$node | /") 2>&1 &
    nodes+=($!)
done

for node in 0 1; do
    code=0
    wait_out "${nodes[$node]}" || code=$?
    codes+=("$code")
done
sleep 0.2 # the last lines
say "node-0 ended with code ${codes[0]}, node-1 with code ${codes[1]}"
[ "${codes[0]}" -ne 0 ] || exit "${codes[1]}"
exit "${codes[0]}"
