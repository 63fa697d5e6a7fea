"""What four ranks saved opens in transformers, and computes what the training model computes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.reader import CheckpointReader
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.cli.run import main
from attnres_train.config.run_config import RunConfig
from attnres_train.exchange.hf_export import export
from attnres_train.exchange.hf_tokenizer import without_tokenizer
from attnres_train.parallel.grid import build_grid
from attnres_train.progress import TrainState
from tests.cases import CASES
from tests.distributed.ranks import run_ranks
from tests.distributed.state import OptimizerState, import_state
from tests.distributed.tiny import TOKENS, VOCABULARY, tiny_config
from tests.distributed.training import build_tiny, step_tiny

transformers = pytest.importorskip("transformers", reason="the test extra installs transformers")

TOLERANCE = 1e-5
"""Of the largest logit, fp32."""
LAYOUT = {"tensor": 2, "pipeline": 2, "virtual": 2}
QUICK = (
    ("standard", True, False),
    ("standard", False, True),
    ("block", False, False),
    ("full, query from the input, low rank", True, True),
)
"""Case, tied, qk_norm."""
EVERY = tuple((case, tied, not tied) for case in CASES for tied in (True, False))
IDS = torch.randint(0, VOCABULARY, (3, TOKENS), generator=torch.Generator().manual_seed(7))


def named(run: tuple[str, bool, bool]) -> str:
    case, tied, qk_norm = run
    return f"{case}, {'tied' if tied else 'untied'}, {'qk_norm' if qk_norm else 'plain'}"


def config_of(run: tuple[str, bool, bool], **layout: int) -> RunConfig:
    case, tied, qk_norm = run
    return tiny_config(case, tied=tied, qk_norm=qk_norm, **layout)


def settings_of(config: RunConfig) -> dict[str, Any]:
    sections = {"model": config.model, "residual": config.residual, "training": config.training, "data": config.data}
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in asdict(section).items()}


def save_all(runs: tuple[tuple[str, bool, bool], ...], folder: Path) -> None:
    grid = build_grid(config_of(runs[0], **LAYOUT).parallel, seed=1)
    for run in runs:
        config = config_of(run, **LAYOUT)
        parts = build_tiny(config, grid)
        step_tiny(parts, config, grid, 0)
        identity = RunIdentity((1, 1, 1, 1), {}, settings_of(config))
        saving = CheckpointSave.start(folder / named(run), parts.engine, grid, TrainState(step=1), identity)
        saving.wait()
        saving.publish()
        saving.retire(keep=1)


def training_logits(runs: tuple[tuple[str, bool, bool], ...], folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Logits and losses of the training model on one rank, with what was saved."""
    grid = build_grid(config_of(runs[0]).parallel, seed=1)
    found = {}
    for run in runs:
        parts = build_tiny(config_of(run), grid)
        reader = CheckpointReader.open(saved(folder, run), verify=False)
        states = {}
        for logical in parts.engine.parameters():
            weight = logical.sharding.cut(reader.read("weight", logical.name), 0, 1)  # with the padding of one rank
            states[logical.name] = OptimizerState(weight, torch.zeros_like(weight), torch.zeros_like(weight))
        import_state(parts.engine, states, updates=0)
        (stage,) = parts.stages
        logits: list[Tensor] = []
        assert stage.head is not None
        stage.head.projection.register_forward_hook(
            lambda _module, _inputs, output, kept=logits: kept.append(output[0])
        )
        with torch.no_grad():
            losses = stage(IDS[:, :-1], IDS[:, 1:])
        assert isinstance(losses, Tensor)
        found[named(run)] = (logits[0].transpose(0, 1)[..., :VOCABULARY].clone(), losses)
    return found


def saved(folder: Path, run: tuple[str, bool, bool]) -> Path:
    return checkpoints_folder(folder / named(run)) / checkpoint_name(1)


class Exports:
    """The folders of some runs, each exported in fp32."""

    def __init__(self, runs: tuple[tuple[str, bool, bool], ...], folder: Path):
        run_ranks(save_all, 4, runs, folder)
        self.folder = folder
        self.logits: Mapping[str, tuple[Tensor, Tensor]] = run_ranks(training_logits, 1, runs, folder)[0]
        for run in runs:
            self.export(run, "fp32")

    def export(self, run: tuple[str, bool, bool], dtype: str) -> Path:
        target = self.path(run, dtype)
        if not target.exists():
            options: dict[str, Any] = {"tokenizer": without_tokenizer(), "losses": {"loss/train": 1.0}}
            export(saved(self.folder, run), target, dtype=dtype, shard_bytes=20_000, **options)
        return target

    def path(self, run: tuple[str, bool, bool], dtype: str = "fp32") -> Path:
        return self.folder / f"{named(run)}, {dtype}".replace(", ", "-").replace(" ", "_")

    def model(self, run: tuple[str, bool, bool], dtype: str = "fp32", attention: str = "sdpa") -> Any:
        folder = self.export(run, dtype)
        loaded, told = transformers.AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=run[0] != "standard", attn_implementation=attention, output_loading_info=True
        )
        assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
        return loaded.eval()


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Exports:
    return Exports(QUICK, tmp_path_factory.mktemp("exports"))


def agrees(found: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> None:
    assert found.shape == wanted.shape
    error = ((found - wanted).abs().max() / wanted.abs().max()).item()
    assert error <= tolerance, error


def check(exports: Exports, run: tuple[str, bool, bool]) -> None:
    """Everything that is held against the training model, or against the exported one itself."""
    wanted, losses = exports.logits[named(run)]
    model = exports.model(run)
    assert type(model).__name__ == ("AttnResForCausalLM" if run[0] != "standard" else type(model).__name__)
    with torch.no_grad():
        out = model(IDS[:, :-1], labels=IDS[:, :-1])
        agrees(out.logits, wanted)
        agrees(out.loss, losses[:, :-1].mean(), 1e-5)
        step_by_step(model, wanted)
        padded_on_the_left(model)
        agrees(exports.model(run, attention="eager")(IDS[:, :-1]).logits, wanted)
        half = exports.model(run, "bf16")
        agrees(half(IDS[:, :-1]).logits.float(), wanted, 0.1)
    generates_alike(model)
    checkpoints_gradients_alike(model)


def step_by_step(model: Any, wanted: Tensor) -> None:
    """A prefill of five tokens, then three at once, then one at a time."""
    cache, places = None, [0, 5, 8, *range(9, wanted.shape[1] + 1)]
    for start, stop in zip(places, places[1:], strict=False):
        out = model(IDS[:, start:stop], cache=cache, use_cache=True)
        cache = out.cache
        agrees(out.logits, wanted[:, start:stop])


def padded_on_the_left(model: Any) -> None:
    lengths = (15, 9, 4)
    batch, mask = torch.zeros(3, 15, dtype=torch.long), torch.zeros(3, 15, dtype=torch.long)
    for row, length in enumerate(lengths):
        batch[row, 15 - length :], mask[row, 15 - length :] = IDS[row, :length], 1
    out = model(batch, attention_mask=mask, use_cache=True)
    longer = torch.cat((mask, torch.ones(3, 1, dtype=torch.long)), 1)
    after = model(IDS[:, 15:], attention_mask=longer, cache=out.cache, use_cache=True)
    for row, length in enumerate(lengths):
        alone = model(torch.cat((IDS[row : row + 1, :length], IDS[row : row + 1, 15:]), 1)).logits[0]
        agrees(out.logits[row, 15 - length :], alone[:-1])
        agrees(after.logits[row], alone[-1:])


def generates_alike(model: Any) -> None:
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    mask = torch.ones(3, 6, dtype=torch.long)
    mask[1, :2] = 0
    with_cache = model.generate(IDS[:, :6], attention_mask=mask, use_cache=True, **options)
    assert with_cache.shape == (3, 14)
    assert with_cache.equal(model.generate(IDS[:, :6], attention_mask=mask, use_cache=False, **options))


def checkpoints_gradients_alike(model: Any) -> None:
    model.train()
    found = []
    for again in (False, True):
        if again:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(IDS, labels=IDS).loss.backward()
        found.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    model.gradient_checkpointing_disable()
    model.eval()
    assert all(gradient.equal(found[1][name]) for name, gradient in found[0].items())


@pytest.mark.parametrize("run", QUICK, ids=named)
def test_an_export_computes_what_was_trained(exports: Exports, run: tuple[str, bool, bool]) -> None:
    check(exports, run)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_case_computes_what_was_trained(tmp_path: Path) -> None:
    every = Exports(EVERY, tmp_path)
    for run in EVERY:
        check(every, run)


@pytest.mark.parametrize(
    ("run", "name"), [(QUICK[0], "LlamaForCausalLM"), (QUICK[1], "Qwen3ForCausalLM"), (QUICK[2], "AttnResForCausalLM")]
)
def test_the_architecture_is_the_plainest(exports: Exports, run: tuple[str, bool, bool], name: str) -> None:
    assert type(exports.model(run)).__name__ == name


def test_weights_over_depth_are_shares_of_each_source(exports: Exports) -> None:
    run = ("full, query from the input, low rank", True, True)
    model = exports.model(run)
    with torch.no_grad():
        weights = model(IDS, output_depth_weights=True).depth_weights
    assert [each.shape for each in weights] == [(3, 2, TOKENS, 1 + reader) for reader in range(9)]
    assert all(torch.allclose(each.sum(-1), torch.ones(())) for each in weights)
    assert model(IDS[:, :4]).depth_weights is None


def test_the_command_tells_and_publishes_once(exports: Exports, tmp_path: Path) -> None:
    """Of a run its newest checkpoint; a folder that is there is refused and stays."""
    folder = tmp_path / "model"
    arguments = ["export", str(exports.folder / named(QUICK[2])), str(folder), "--dtype", "fp16"]
    assert main(arguments) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    card = (folder / "README.md").read_text()
    assert "| step | 1 |" in card and "trust_remote_code=True" in card and "fp16" in card
    before = (folder / "config.json").stat()
    assert main(arguments) == 2
    assert (folder / "config.json").stat() == before


def test_a_damaged_checkpoint_leaves_nothing(exports: Exports, tmp_path: Path) -> None:
    """One flipped bit anywhere, the moments included, which are not exported."""
    checkpoint = tmp_path / checkpoint_name(1)
    shutil.copytree(saved(exports.folder, QUICK[0]), checkpoint)
    file = max(checkpoint.glob("*.distcp"))
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole)
    assert main(["export", str(checkpoint), str(tmp_path / "model")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [checkpoint.name]


def test_a_write_that_fails_leaves_nothing(exports: Exports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attnres_train.exchange.publish.flush_folder", full)
    assert main(["export", str(saved(exports.folder, QUICK[0])), str(tmp_path / "model")]) == 2
    assert not list(tmp_path.iterdir())
