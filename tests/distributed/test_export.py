"""What four ranks saved opens in transformers, and computes what the training model computes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.reader import CheckpointReader
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.cli.run import main
from attnres_train.config.keys import all_keys
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values
from attnres_train.errors import Refused
from attnres_train.evaluate.generate import Asked, Text, generate
from attnres_train.evaluate.model import inference_model
from attnres_train.evaluate.picture import depth_weights, draw, summaries
from attnres_train.evaluate.sampling import Sampling
from attnres_train.exchange.hf_config import Sections, config_json
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


class Run(NamedTuple):
    """A case of tests/cases.py, with options of `[model]` that have a name below."""

    case: str
    tied: bool
    qk_norm: bool
    attention: str = "plain"

    @property
    def folder(self) -> str:
        words = [self.case, "tied" if self.tied else "untied", "qk_norm" if self.qk_norm else "no", self.attention]
        return "-".join(words).replace(", ", "-").replace(" ", "_")


_YARN = {"kind": "yarn", "factor": 4.0, "original_window_tokens": 8, "beta_fast": 2.0}
_LLAMA3 = {
    "kind": "llama3",
    "factor": 8.0,
    "original_window_tokens": 8,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_BIASES = {"qkv_bias": True, "attention_output_bias": True}
ATTENTION: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "llama3": {"head_dim": 12, "rope_scaling": _LLAMA3},
    "linear": {"rope_scaling": {"kind": "linear", "factor": 2.0}},
    "biases": {**_BIASES, "rope_scaling": _YARN},
    "query biases": {"qkv_bias": True, "sliding_window": 6, "sliding_layers": (2, 3)},
    "window": {"sliding_window": 5},
    "odd window": {"sliding_window": 6, "sliding_layers": (1,), "head_dim": 10},
    "odd bias": {"attention_output_bias": True},
    "all": {**_BIASES, "head_dim": 12, "sliding_window": 5, "sliding_layers": (0, 2), "rope_scaling": _YARN},
}
QUICK = (
    Run("standard", True, False),
    Run("standard", False, True),
    Run("standard", False, False, "llama3"),
    Run("standard", True, False, "query biases"),
    Run("standard", False, False, "window"),
    Run("block", False, False),
    Run("block, norm of the sum", False, True, "all"),
    Run("full, query from the input, low rank", True, True),
)
EVERY = (
    *(Run(case, tied, not tied) for case in CASES for tied in (True, False)),
    *(Run("standard", False, norm, kind) for kind in ATTENTION for norm in (True, False)),
)
CLASSES = {
    Run("standard", True, False): "LlamaForCausalLM",
    Run("standard", False, True): "Qwen3ForCausalLM",
    Run("standard", False, False, "llama3"): "LlamaForCausalLM",
    Run("standard", False, False, "biases"): "LlamaForCausalLM",
    Run("standard", True, False, "query biases"): "Qwen2ForCausalLM",
    Run("standard", False, False, "window"): "MistralForCausalLM",
    Run("standard", False, True, "odd window"): "Qwen3ForCausalLM",
    Run("standard", False, False, "odd window"): "AttnResForCausalLM",
    Run("standard", False, False, "odd bias"): "AttnResForCausalLM",
    Run("block", False, False): "AttnResForCausalLM",
}
IDS = torch.randint(0, VOCABULARY, (3, TOKENS), generator=torch.Generator().manual_seed(7))


def config_of(run: Run, **layout: int) -> RunConfig:
    model = dict(ATTENTION[run.attention])
    return tiny_config(run.case, tied=run.tied, qk_norm=run.qk_norm, model=model, **layout)


def save_all(runs: tuple[Run, ...], folder: Path) -> None:
    grid = build_grid(config_of(runs[0], **LAYOUT).parallel, seed=1)
    for run in runs:
        config = config_of(run, **LAYOUT)
        parts = build_tiny(config, grid)
        step_tiny(parts, config, grid, 0)
        identity = RunIdentity((1, 1, 1, 1), {}, config_values(config, all_keys()))
        saving = CheckpointSave.start(folder / run.folder, parts.engine, grid, TrainState(step=1), identity)
        saving.wait()
        saving.publish()
        saving.retire(keep=1)


def training_logits(runs: tuple[Run, ...], folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
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
        found[run.folder] = (logits[0].transpose(0, 1)[..., :VOCABULARY].clone(), losses)
    return found


def saved(folder: Path, run: Run) -> Path:
    return checkpoints_folder(folder / run.folder) / checkpoint_name(1)


class Exports:
    """The folders of some runs, each exported in fp32."""

    def __init__(self, runs: tuple[Run, ...], folder: Path):
        run_ranks(save_all, 4, runs, folder)
        self.folder = folder
        self.logits: Mapping[str, tuple[Tensor, Tensor]] = run_ranks(training_logits, 1, runs, folder)[0]
        for run in runs:
            self.export(run, "fp32")

    def export(self, run: Run, dtype: str) -> Path:
        target = self.path(run, dtype)
        if not target.exists():
            options: dict[str, Any] = {"tokenizer": without_tokenizer(), "losses": {"loss/train": 1.0}}
            export(saved(self.folder, run), target, dtype=dtype, shard_bytes=20_000, **options)
        return target

    def path(self, run: Run, dtype: str = "fp32") -> Path:
        return self.folder / f"{run.folder}-{dtype}"

    def model(self, run: Run, dtype: str = "fp32", attention: str = "sdpa") -> Any:
        folder = self.export(run, dtype)
        ours = (folder / "modeling_attnres.py").exists()
        loaded, told = transformers.AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=ours, attn_implementation=attention, output_loading_info=True
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


def check(exports: Exports, run: Run) -> None:
    """Everything that is held against the training model, or against the exported one itself."""
    wanted, losses = exports.logits[run.folder]
    model = exports.model(run)
    assert type(model).__name__ == CLASSES.get(run, type(model).__name__)
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


@pytest.mark.parametrize("run", QUICK, ids=lambda run: run.folder)
def test_an_export_computes_what_was_trained(exports: Exports, run: Run) -> None:
    check(exports, run)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_case_computes_what_was_trained(tmp_path: Path) -> None:
    every = Exports(EVERY, tmp_path)
    for run in EVERY:
        check(every, run)


@pytest.mark.parametrize("run", CLASSES, ids=lambda run: run.folder)
def test_the_architecture_is_the_plainest(run: Run) -> None:
    config = config_of(run)
    sections = Sections(config.model, config.residual, TOKENS)
    found = config_json(sections, VOCABULARY, "fp32", {})
    assert found["architectures"] == [CLASSES[run]]
    assert found["model_type"] in CLASSES[run].lower()


def test_weights_over_depth_are_shares_of_each_source(exports: Exports) -> None:
    run = Run("full, query from the input, low rank", True, True)
    model = exports.model(run)
    with torch.no_grad():
        weights = model(IDS, output_depth_weights=True).depth_weights
    assert [each.shape for each in weights] == [(3, 2, TOKENS, 1 + reader) for reader in range(9)]
    assert all(torch.allclose(each.sum(-1), torch.ones(())) for each in weights)
    assert model(IDS[:, :4]).depth_weights is None


def test_the_command_tells_and_publishes_once(exports: Exports, tmp_path: Path) -> None:
    """Of a run its newest checkpoint; a folder that is there is refused and stays."""
    folder = tmp_path / "model"
    arguments = ["export", str(exports.folder / QUICK[5].folder), str(folder), "--dtype", "fp16"]
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


@pytest.mark.parametrize("run", [QUICK[0], QUICK[6]], ids=lambda run: run.folder)
def test_the_package_generates_what_the_export_does(exports: Exports, run: Run) -> None:
    """By the same code, with the weights straight from the checkpoint; a batch as each prompt alone."""
    model = inference_model(saved(exports.folder, run), "fp32", "cpu")
    exported = exports.model(run)
    with torch.no_grad():
        agrees(model(IDS).logits, exported(IDS).logits)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    wanted = exported.generate(IDS[:, :6], attention_mask=torch.ones(3, 6, dtype=torch.long), **options)
    asked = Asked(Sampling(temperature=0), 8, seed=0)
    prompts = [row.tolist()[: 6 - cut] for cut, row in enumerate(IDS)]
    texts = [Text("", list(ids), len(ids), torch.Generator()) for ids in prompts]
    list(generate(model, Numbers(), texts, asked))  # type: ignore[arg-type]
    assert texts[0].ids == wanted[0].tolist()
    for text, prompt in zip(texts, prompts, strict=True):
        alone = Text("", list(prompt), len(prompt), torch.Generator())
        list(generate(model, Numbers(), [alone], asked))  # type: ignore[arg-type]
        assert text.ids == alone.ids and len(text.new_ids) == 8


class Numbers:
    """A tokenizer whose text is the ids."""

    eod_id = None

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f"{token} " for token in ids)


def test_weights_over_depth_are_drawn(exports: Exports, tmp_path: Path) -> None:
    model = inference_model(saved(exports.folder, QUICK[7]), "bf16", "cpu")
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert model.model.head_depth.query_projection.dtype == torch.float32
    weights = depth_weights(model, IDS[0].tolist())
    assert [each.shape for each in weights] == [(TOKENS, 1 + reader) for reader in range(9)]
    embedding, newest, evenness = summaries(weights)
    assert embedding[0].allclose(torch.ones(())) and evenness[0].abs().max() < 1e-6
    assert embedding.equal(torch.stack([each[:, 0] for each in weights]))
    assert newest.equal(torch.stack([each[:, -1] for each in weights])) and evenness.max() <= 1.0001
    draw(weights, IDS[0].tolist(), Numbers(), tmp_path / "depth.png")  # type: ignore[arg-type]
    assert (tmp_path / "depth.png").read_bytes().startswith(b"\x89PNG")
    plain = inference_model(saved(exports.folder, QUICK[0]), "fp32", "cpu")
    with pytest.raises(Refused, match="weighs no sources"):
        depth_weights(plain, [1, 2])
