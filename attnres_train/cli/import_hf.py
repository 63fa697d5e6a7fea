"""`attnres import` of a Hugging Face folder: its weights are where a run begins, and the configuration that fits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnres_train.cli.command import Answer
from attnres_train.config.load import Loaded, load_checked
from attnres_train.config.resolve import run_folder, vocabulary_size
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values, toml_value
from attnres_train.errors import Refused, refuse
from attnres_train.model.describe import describe
from attnres_train.observe.claim import claim_run_folder
from attnres_train.progress import TrainState
from attnres_train.words import counted

if TYPE_CHECKING:
    from attnres_train.exchange.hf_folder import Folder
    from attnres_train.exchange.hf_read_config import Described
    from attnres_train.exchange.hf_state import NewState

_TOKENIZER = "tokenizer.json"
_WINDOW, _STEPS = 1024, 1000


@dataclass(frozen=True)
class Imported:
    """What was written, and what is worth saying of it."""

    path: Path
    source: Path
    family: str
    parameters: int
    notes: Sequence[str]


def import_folder(folder: Path, config: Path, overrides: Sequence[str]) -> Answer:
    """Write the checkpoint of step 0. Raises Refused before anything is written."""
    done = _import(folder, load_checked(config, overrides, None, "check"))
    found = {
        "checkpoint": str(done.path),
        "source": str(done.source),
        "family": done.family,
        "parameters": done.parameters,
        "step": 0,
        "notes": list(done.notes),
        "problems": [],
    }
    lines = [
        f"{done.path}: written and read back, {counted(done.parameters, 'parameter')} of a {done.family} model",
        f"  from {done.source}; the optimizer, the schedule and the data begin at step 0",
        *(f"  note: {note}" for note in done.notes),
    ]
    return Answer(found, "\n".join(lines))


def _import(path: Path, loaded: Loaded) -> Imported:
    from attnres_train.exchange.hf_fit import misfits
    from attnres_train.exchange.hf_read_config import read_config
    from attnres_train.parallel.light_imports import light_imports

    with light_imports():
        from attnres_train.checkpoint.save import RunIdentity
        from attnres_train.exchange.hf_folder import CONFIG, open_folder
        from attnres_train.exchange.write import refuse_a_later_one, write_imported

    config, run = loaded.config, run_folder(loaded.config, loaded.path)
    folder = open_folder(path)
    described = read_config(folder.config, str(path / CONFIG))
    vocabulary = vocabulary_size(config)
    if problems := list(misfits(described, config, vocabulary, str(path / CONFIG))):
        raise Refused(problems)
    refuse_a_later_one(run, 0)
    state = _read_weights(folder, described, config, vocabulary)
    identity = RunIdentity((config.model.num_layers,), _fingerprints(config), config_values(config, loaded.origins))
    run.mkdir(parents=True, exist_ok=True)
    with claim_run_folder(run):
        refuse_a_later_one(run, 0)  # once more: now nobody else writes here
        written = write_imported(run, state, config, TrainState(), identity)
    parameters = sum(tensor.numel() for _, tensor in state.weights)
    return Imported(written, path, described.family, parameters, list(_notes(described, config)))


def _read_weights(folder: Folder, described: Described, config: RunConfig, vocabulary: int) -> NewState:
    from attnres_train.exchange.hf_state import NewState
    from attnres_train.exchange.hf_weights import check_tensors, logical_tensor, plan_of

    plan = plan_of(describe(config.model, config.residual, vocabulary, vocabulary).all, config.model)
    check_tensors(folder, plan, config.model, depth_too=not described.plain)
    seed = config.training.seed
    weights = [(spec, logical_tensor(folder, spec, made, seed)) for spec, made in plan]
    return NewState(weights, averages=config.optimizer.average_decay is not None)


def _fingerprints(config: RunConfig) -> dict[str, str]:
    from attnres_train.tokenizer.load import load_tokenizer

    path = config.tokenizer.model
    return {} if path is None or not Path(path).is_file() else {"tokenizer": load_tokenizer(path).fingerprint}


def _notes(described: Described, config: RunConfig) -> Iterator[str]:
    from attnres_train.exchange.hf_fit import how_alike

    yield how_alike(config.residual) if described.plain else "it computes what the imported model computes"
    window, longest = config.training.sequence_length, described.window_tokens
    if longest is not None and window > longest:
        yield f"training.sequence_length = {window}: the model was made for {longest} tokens"
    if described.unread:
        yield f"not read of config.json, since it says nothing of such a model: {', '.join(described.unread)}"
    if config.data.train is None:
        yield "the configuration names no data.train: it must before a launch"


def write_config(folder: Path, target: Path) -> Answer:
    """Write the configuration that fits the folder. Raises Refused where there is a file already."""
    from attnres_train.exchange.hf_fit import starting_values
    from attnres_train.exchange.hf_folder import CONFIG, read_json
    from attnres_train.exchange.hf_read_config import read_config

    described = read_config(read_json(folder / CONFIG), str(folder / CONFIG))
    values = dict(starting_values(described))
    tokenizer = folder / _TOKENIZER
    if tokenizer.exists():
        from attnres_train.tokenizer.load import load_tokenizer

        values["tokenizer.model"] = str(tokenizer.absolute())
        if load_tokenizer(tokenizer).vocab_size < described.vocabulary:
            values["model.vocabulary_rows"] = described.vocabulary
    else:
        values["model.vocabulary_rows"] = described.vocabulary
    text = _toml(values, folder, described)
    try:
        with open(target, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise refuse(str(target), "exists already", "name a file that does not") from error
    except OSError as error:
        raise refuse(str(target), f"cannot be written: {error.strerror}", "name another file") from error
    load_checked(target, [], None, "check")
    told = f"{target}: fits the {described.family} model of {folder}; edit [data] and [training], then\n"
    return Answer(
        {"config": str(target), "values": values, "problems": []}, f"{told}  attnres import {folder} {target}"
    )


def _toml(values: dict[str, Any], folder: Path, described: Described) -> str:
    """By section; what nobody can know of a run is a guess to edit."""
    window = min(_WINDOW, described.window_tokens or _WINDOW)
    guesses: dict[str, Any] = {
        "residual.mode": described.values.get("residual.mode", "standard"),
        "optimizer.learning_rate": 1e-4,
        "schedule.kind": "wsd",
        "schedule.warmup_steps": _STEPS // 20,
        "schedule.decay_steps": _STEPS // 5,
        "training.global_batch_size": 16,
        "training.micro_batch_size": 1,
        "training.sequence_length": window,
        "training.steps": _STEPS,
        "training.precision": "bf16",
        "checkpoint.interval_steps": _STEPS // 5,
    }
    sections: dict[str, list[str]] = {"model": [], "residual": [], "tokenizer": [], "data": []}
    for dotted, value in {**guesses, **values}.items():
        section, _, name = dotted.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {toml_value(value)}")
    sections["data"].append('# train = "corpora/mine"  # made by data_tools.preprocess with the tokenizer above')
    if described.plain:
        exact = 'for attention over depth that begins as the same function: mode = "block", block_size = N,'
        sections["residual"].insert(0, f'# {exact} norm_of = "sum"')
    head = "# Made by `attnres import --config-only`: [model] is that of config.json, what is below it a guess to edit."
    return "\n".join([head, *(f"\n[{name}]\n" + "\n".join(rows) for name, rows in sections.items() if rows)]) + "\n"
