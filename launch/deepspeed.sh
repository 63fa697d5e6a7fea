#!/usr/bin/env bash
# Train on one or many nodes with DeepSpeed's launcher.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: launch/deepspeed.sh CONFIG.toml [--ranks N] [--dry-run] [--section.key value ...]
       launch/deepspeed.sh CONFIG.toml --hostfile FILE [--master HOST:PORT] ...
       launch/deepspeed.sh CONFIG.toml --hostfile FILE --no_ssh [--node-rank R] [--master HOST:PORT] ...

Checks the configuration, then starts ranks of attnres_train.train with the `deepspeed` command: N on this machine
(default 1), or the hostfile's slots on its hosts. Either engine may be launched so.

With a hostfile this script runs once, and pdsh starts the ranks of every host over ssh (needs pdsh, ssh without a
password, and the same paths everywhere). With --no_ssh run it on every host; a host finds its rank by name or address.
  --master           where ranks meet (default: the hostfile's first host, port 29500)
  --join-seconds S   with --no_ssh: how long nodes wait for each other before they say who is missing (default 300)
  --dry-run          print the exact command and start nothing

Environment: without pdsh the ranks inherit this script's on their node. pdsh forwards variables that begin with
ATTNRES_ CUDA_ DS_ GLOO_ MASTER_ MLFLOW MV2 NCCL OMP_ PYTHON TORCH TRITON_ UCX, their values and the overrides to the
letter, and the lines of ~/.deepspeed_env and ./.deepspeed_env, which every host's shell expands.
Added where unset: DS_ACCELERATOR=cpu without a GPU, and without pdsh OMP_NUM_THREADS (1, with GPUs the node's cores by
its ranks), GLOO_SOCKET_IFNAME and, with GPUs, NCCL_SOCKET_IFNAME, the interface that leads to the master; with pdsh set
that yourself where host names resolve to 127.0.1.1.

Exit code: 0 done; 2 refused before training; 3 stopped on a signal after saving; 1 anything else.
TEXT
}

source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"
launch deepspeed "$@"
