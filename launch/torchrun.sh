#!/usr/bin/env bash
# Train on one or many nodes with torchrun; on many, run it on every one.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: launch/torchrun.sh CONFIG.toml [--ranks N] [--dry-run] [--section.key value ...]
       launch/torchrun.sh CONFIG.toml --nodes M --node-rank R --master HOST:PORT [--ranks N] ...
       launch/torchrun.sh CONFIG.toml --hostfile FILE [--node-rank R] [--master HOST:PORT] ...

Checks the configuration, then starts N ranks of attnres_train.train on this node (default 1; with a hostfile its
slots). On a machine with GPUs every rank takes one. Everything else is passed on as overrides.

Several nodes: run the same line on each of them. Node 0 is the one that --master names (default: the hostfile's
first host, port 29500); with a hostfile a node finds its own rank by name or address.
  --join-seconds S   how long nodes wait for each other before they say who is missing (default 300)
  --dry-run          print the exact command and start nothing

Environment: the ranks inherit this script's on their node. Added where unset: GLOO_SOCKET_IFNAME and, with GPUs,
NCCL_SOCKET_IFNAME (unless nccl.conf has it), the interface that leads to the master (lo for one machine);
OMP_NUM_THREADS, 1, with GPUs the node's cores by its ranks. Nothing is restarted in place: launch/supervise.sh. What torchrun itself says is in logs/launcher-0000.log of the run folder (a node's first rank).

Exit code: 0 done; 2 refused before training; 3 stopped on a signal after saving; 1 anything else.
TEXT
}

source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"
launch torchrun "$@"
