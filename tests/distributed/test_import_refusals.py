"""What `attnres import` refuses, each before anything is written: doctored copies of a checkpoint of DeepSpeed's."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnres_train.engine.deepspeed_patches import import_deepspeed
from attnres_train.errors import Problem, Refused
from attnres_train.exchange.checkpoint import read_checkpoint
from attnres_train.exchange.plain_load import STAND_INS
from attnres_train.optim.schedule import learning_rate
from tests.distributed.ranks import run_ranks
from tests.distributed.stock import SAVED_AT, StockRun, attnres, train_stock, write_toml

RUN = StockRun(1, look=False, further=0)
TAG = f"global_step{SAVED_AT}"
MODEL = "mp_rank_00_model_states.pt"
SHARDS = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2)]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a stock run saved."""
    import_deepspeed()
    folder = tmp_path_factory.mktemp("original") / "deepspeed"
    run_ranks(train_stock, 2, RUN, folder)
    return folder


@pytest.fixture
def saved(original: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(original, tmp_path / "deepspeed"))


def problems(folder: Path, tag: str | None = None) -> list[Problem]:
    """What is refused, each with a remedy."""
    with pytest.raises(Refused) as refusal:
        read_checkpoint(folder, tag)
    assert all(problem.message and problem.remedy for problem in refusal.value.problems)
    return list(refusal.value.problems)


def only(folder: Path, tag: str | None = None) -> Problem:
    (problem,) = problems(folder, tag)
    return problem


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    loaded = torch.load(path, weights_only=False)
    change(loaded)
    torch.save(loaded, path)


def state(loaded: dict[str, Any]) -> dict[str, Any]:
    return loaded["optimizer_state_dict"]


def slot(loaded: dict[str, Any], group: int = 0) -> dict[str, Any]:
    return state(loaded)["base_optimizer_state"]["state"][group]


def test_deepspeed_pickles_the_three_classes_that_are_stood_in_for_and_nothing_else(original: Path) -> None:
    foreign = {
        name
        for path in (original / TAG).glob("*.pt")
        for name in torch.serialization.get_unsafe_globals_in_checkpoint(path)
    }
    assert foreign == set(STAND_INS)


def test_a_folder_or_tag_that_is_not_there(saved: Path) -> None:
    assert "there is no folder" in only(saved / "elsewhere").message
    problem = only(saved, "global_step99")
    assert problem.key == "--tag" and TAG in problem.remedy
    (saved / "latest").write_text("global_step99")
    problem = only(saved)
    assert problem.key == str(saved / "latest") and "'global_step99'" in problem.message and TAG in problem.remedy
    (saved / "latest").write_text("\n")
    assert "empty" in only(saved).message
    (saved / "latest").unlink()
    assert "is missing" in only(saved).message
    assert f"--tag {TAG}" in only(saved / TAG).remedy
    assert read_checkpoint(saved, TAG).position.steps == SAVED_AT
    (saved / "other").mkdir()
    assert "no *_model_states.pt" in only(saved, "other").message


def test_files_that_are_missing_or_damaged_are_all_named_at_once(saved: Path) -> None:
    (saved / TAG / SHARDS[0]).write_bytes(b"")
    path = saved / TAG / SHARDS[1]
    path.write_bytes(path.read_bytes()[:-1000])
    found = {Path(problem.key).name: problem.message for problem in problems(saved)}
    assert found.keys() == set(SHARDS)
    assert found[SHARDS[0]] == "has no bytes" and "cut short" in found[SHARDS[1]]


@pytest.mark.parametrize("name", [MODEL, SHARDS[1]])
def test_one_flipped_bit_is_found(name: str, saved: Path) -> None:
    path = saved / TAG / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    problem = only(saved)
    assert problem.key == str(path) and "checksum" in problem.message


def test_fewer_or_more_shards_than_ranks(saved: Path) -> None:
    tagged = saved / TAG
    shutil.copy(tagged / SHARDS[1], tagged / "zero_pp_rank_2_mp_rank_00_optim_states.pt")
    assert "one too many" in only(saved).message and "2 data ranks" in only(saved).message
    (tagged / "zero_pp_rank_2_mp_rank_00_optim_states.pt").unlink()
    shutil.copy(tagged / SHARDS[1], tagged / f"bf16_{SHARDS[1]}")
    assert "two saves" in only(saved).message
    (tagged / f"bf16_{SHARDS[1]}").unlink()
    (tagged / SHARDS[1]).unlink()
    problem = only(saved)
    assert problem.key == str(tagged / SHARDS[1]) and "1 of 2 optimizer files" in problem.message
    (tagged / SHARDS[0]).unlink()
    assert "ZeRO stage 0" in only(saved).message
    (tagged / MODEL).unlink()
    assert "no *_model_states.pt and no *_optim_states.pt" in only(saved).message


def test_the_file_of_the_model_is_needed(saved: Path) -> None:
    (saved / TAG / MODEL).unlink()
    assert "the shapes and the position" in only(saved).message


@pytest.mark.parametrize(("stage", "told"), [(0, "stage 0"), (7, "stage 7")])
def test_another_stage(stage: int, told: str, saved: Path) -> None:
    for name in SHARDS:
        rewrite(saved / TAG / name, lambda loaded: state(loaded).update(zero_stage=stage))
    assert all(told in problem.message for problem in problems(saved))


def test_pipelines_and_experts(saved: Path) -> None:
    rewrite(saved / TAG / MODEL, lambda loaded: loaded["checkpoint_parallel_dimensions"].update(pp_degree=2))
    assert "2 pipeline stages" in only(saved).message
    (saved / TAG / "layer_00-model_states.pt").touch()
    (saved / TAG / "layer_0_expert_0_mp_rank_00_model_states.pt").touch()
    assert [("PipelineModule" in p.message, "experts" in p.message) for p in problems(saved)] == [
        (True, False),
        (False, True),
    ]


def test_an_optimizer_that_is_not_adam(saved: Path) -> None:
    def momentum(loaded: dict[str, Any]) -> None:
        for its in state(loaded)["base_optimizer_state"]["state"].values():
            its["momentum_buffer"] = its.pop("exp_avg")
            its.pop("exp_avg_sq")

    def amsgrad(loaded: dict[str, Any]) -> None:
        slot(loaded)["max_exp_avg_sq"] = slot(loaded)["exp_avg_sq"].clone()

    rewrite(saved / TAG / SHARDS[0], momentum)
    rewrite(saved / TAG / SHARDS[1], amsgrad)
    first, second = problems(saved)
    assert "not of Adam" in first.message and "momentum_buffer" in first.message
    assert "not of Adam" in second.message and "max_exp_avg_sq" in second.message


def test_moments_that_are_not_there(saved: Path) -> None:
    for name in SHARDS:
        rewrite(saved / TAG / name, lambda loaded: state(loaded)["base_optimizer_state"]["state"].clear())
    assert all("had made no update" in problem.message for problem in problems(saved))


def test_shards_of_different_saves(saved: Path) -> None:
    path = saved / TAG / SHARDS[1]
    rewrite(path, lambda loaded: slot(loaded, 1).update(step=torch.tensor(9.0)))
    assert "different numbers of updates: [3, 9]" in only(saved).message
    rewrite(path, lambda loaded: slot(loaded, 0).update(step=torch.tensor(9.0)))
    assert "after 9 updates" in only(saved).message and "after 3" in only(saved).message
    rewrite(path, lambda loaded: state(loaded).update(partition_count=[4, 4]))
    assert any("of 4 data ranks" in problem.message for problem in problems(saved))


def test_counts_of_updates_wherever_an_optimizer_keeps_them(saved: Path) -> None:
    def as_fused_adam(loaded: dict[str, Any]) -> None:
        base = state(loaded)["base_optimizer_state"]
        for group, its in zip(base["param_groups"], base["state"].values(), strict=True):
            group["step"] = 0  # left there by its first step
            its["step"] = SAVED_AT

    def by_group(loaded: dict[str, Any]) -> None:
        base = state(loaded)["base_optimizer_state"]
        for group, its in zip(base["param_groups"], base["state"].values(), strict=True):
            group["step"] = its.pop("step")

    for change in (as_fused_adam, by_group):
        for name in SHARDS:
            rewrite(saved / TAG / name, change)
        assert read_checkpoint(saved, None).updates == SAVED_AT
    rewrite(
        saved / TAG / SHARDS[0], lambda loaded: state(loaded)["base_optimizer_state"]["param_groups"][0].pop("step")
    )
    assert "does not say how many updates" in only(saved).message


def test_tensor_ranks_that_left_nothing(saved: Path) -> None:
    rewrite(saved / TAG / MODEL, lambda loaded: loaded.update(mp_world_size=2))
    keys = [Path(problem.key).name for problem in problems(saved)]
    assert keys == [name.replace("mp_rank_00", "mp_rank_01") for name in [*SHARDS, f"*{MODEL}"]]


def write_zero_3(folder: Path, lengths: list[int]) -> None:
    """A checkpoint of one parameter of 3 elements; `lengths` are the partitions' of the two data ranks."""
    (folder / "tag").mkdir(parents=True, exist_ok=True)
    counts = {"dp_world_size": 2, "mp_world_size": 1, "global_steps": 1, "skipped_steps": 0, "global_samples": 8}
    for rank, length in enumerate(lengths):
        prefix = folder / f"tag/zero_pp_rank_{rank}_mp_rank_00_"
        torch.save({"param_shapes": [{"a": torch.Size([3])}], **counts}, f"{prefix}model_states.pt")
        flats = [torch.full((length,), float(rank)) for _ in range(3)]
        slot = {"step": 1, "exp_avg": flats[1], "exp_avg_sq": flats[2]}
        base = {"state": {0: slot}, "param_groups": [{"params": [0]}]}
        zero = {"zero_stage": 3, "partition_count": 2, "fp32_flat_groups": flats[:1], "optimizer_state_dict": base}
        torch.save({"optimizer_state_dict": zero}, f"{prefix}optim_states.pt")


def test_partitions_of_zero_3_that_are_elsewhere(tmp_path: Path) -> None:
    write_zero_3(tmp_path, [2, 2])
    assert read_checkpoint(tmp_path, "tag").ranks[0].tensor("a", 0).tolist() == [0, 0, 1]
    write_zero_3(tmp_path, [2, 0])
    assert "has 0 elements of group 0, the shapes make 2" in only(tmp_path, "tag").message


def test_partitions_that_do_not_hold_what_they_should(saved: Path) -> None:
    path = saved / TAG / SHARDS[0]
    rewrite(path, lambda loaded: slot(loaded).update(exp_avg=slot(loaded)["exp_avg"][:-1].clone()))
    problem = only(saved)
    assert problem.key == str(path) and "ends before the first moment of" in problem.message


def test_shapes_that_are_not_those_of_the_partitions(saved: Path) -> None:
    path = saved / TAG / MODEL
    rewrite(path, lambda loaded: loaded["param_shapes"][0].update({"head.projection.weight": torch.Size([99, 30])}))
    assert "elements of head.projection.weight" in only(saved).message
    rewrite(path, lambda loaded: loaded["param_shapes"][0].update({"head.projection.weight": torch.Size([77, 30])}))
    assert "the shapes end at" in only(saved).message
    rewrite(path, lambda loaded: loaded["param_shapes"][0].pop("head.projection.weight"))
    assert all("other numbers of parameters" in problem.message for problem in problems(saved))
    rewrite(path, lambda loaded: loaded["param_shapes"].pop())
    assert all("2 groups of parameters, the model's file 1" in problem.message for problem in problems(saved))


def test_parameters_that_were_frozen(saved: Path) -> None:
    rewrite(saved / TAG / MODEL, lambda loaded: loaded.update(frozen_param_shapes={"head.norm.weight": (30,)}))
    assert "head.norm.weight was not trained" in only(saved).message


class RunsCode:
    """Makes a file when it is unpickled."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("name", [MODEL, SHARDS[0]])
def test_a_file_that_would_run_code_is_refused_and_does_not(name: str, saved: Path, tmp_path: Path) -> None:
    rewrite(saved / TAG / name, lambda loaded: loaded.update(arguments=RunsCode(tmp_path / "trace")))
    problem = only(saved)
    assert problem.key == str(saved / TAG / name)
    assert "posix.mkdir" in problem.message and "could run code" in problem.message
    assert not (tmp_path / "trace").exists()


def test_values_that_are_not_finite(saved: Path) -> None:
    def damage(loaded: dict[str, Any]) -> None:
        state(loaded)["single_partition_of_fp32_groups"][1].data[0] = float("nan")
        slot(loaded, 0)["exp_avg_sq"][0] = float("inf")
        slot(loaded, 0)["exp_avg"][0] = float("-inf")

    rewrite(saved / TAG / SHARDS[1], damage)
    found = read_checkpoint(saved, None).not_finite()
    told = sorted(problem.message.split(" is ")[0] for problem in found)
    assert told == ["its first moment", "its master", "its second moment"]
    assert all(SHARDS[1] in problem.message for problem in found)


def test_updates_are_the_optimizer_s_and_steps_the_engine_s(saved: Path) -> None:
    """Of a run that skipped two steps: bias correction goes on by the updates, the schedule by the steps."""
    rewrite(saved / TAG / MODEL, lambda loaded: loaded.update(global_steps=SAVED_AT + 2, skipped_steps=2))
    found = read_checkpoint(saved, None)
    assert (found.updates, found.position.steps, found.position.skipped_steps) == (SAVED_AT, SAVED_AT + 2, 2)


def test_another_model_is_told_with_every_difference_and_nothing_is_written(saved: Path, tmp_path: Path) -> None:
    rewrite(saved / TAG / SHARDS[0], lambda loaded: slot(loaded)["exp_avg"].fill_(float("nan")))
    toml = write_toml(RUN.config, tmp_path)
    options = ["--model.num_layers", 3, "--model.ffn_hidden_size", 64, "--json"]
    status, out, _ = attnres("import", saved, toml, *options)
    assert status == 2 and not (tmp_path / "run").exists()
    found = [(problem["key"], problem["message"]) for problem in json.loads(out)["problems"]]
    assert ("layers.3.mlp.norm.weight", "the checkpoint has it, the model does not know it") in found
    shapes = "has shape (96, 30) in the checkpoint, (128, 30) in the model"
    assert ("layers.0.mlp.branch.linear_fc1.weight", shapes) in found
    assert any(key == "embedding.weight" and "first moment is not finite" in message for key, message in found)
    status, out, _ = attnres("import", saved, toml, "--model.num_layers", 5, "--json")
    lacking = [p for p in json.loads(out)["problems"] if "the checkpoint lacks it" in p["message"]]
    assert status == 2 and len(lacking) == sum("layers.2." in name for name in read_checkpoint(saved, None).names)


def test_where_to_go_on_and_a_folder_that_has_come_as_far(saved: Path, tmp_path: Path) -> None:
    rewrite(saved / TAG / MODEL, lambda loaded: loaded.update(global_samples=None, skipped_steps=2))
    toml = write_toml(RUN.config, tmp_path)
    status, _, err = attnres("import", saved, toml)
    assert status == 2 and "--samples N" in err and not (tmp_path / "run").exists()
    status, out, _ = attnres("import", saved, toml, "--samples", 40, "--optimizer.beta2", 0.9, "--json")
    done = json.loads(out)
    assert status == 0 and (done["samples"], done["samples_from"], done["step"]) == (40, "--samples", SAVED_AT)
    assert "optimizer.beta2: was 0.95, is 0.9 from now on" in done["notes"]
    assert done["skipped_steps"] == 2
    config = RUN.config
    rates = [learning_rate(config.optimizer, config.schedule, config.training.steps, SAVED_AT + n) for n in (0, 1)]
    assert rates[0] != rates[1]
    assert any(note.startswith(f"learning rate of step {SAVED_AT + 1}: {rates[1]:.6g}") for note in done["notes"])
    status, _, err = attnres("import", saved, toml, "--samples", 40)
    assert status == 2 and f"step-{SAVED_AT:08d} already" in err
    earlier = tmp_path / "run/checkpoints/step-00000003"
    earlier.rename(earlier.with_name("step-00000002"))
    rewrite(saved / TAG / MODEL, lambda loaded: loaded.update(global_samples=24))
    status, out, _ = attnres("import", saved, toml, "--samples", 40, "--json")
    assert status == 0 and json.loads(out)["samples"] == 40, "what is said outweighs what was counted"
    assert len(list((tmp_path / "run/checkpoints").glob("step-*"))) == 2, "older ones stay"


def test_the_command_line(saved: Path, tmp_path: Path) -> None:
    toml = write_toml(RUN.config, tmp_path)
    for arguments, told in (
        ([saved], "CONFIG.toml"),
        ([saved, toml, "--samples", "many"], "not a number of samples"),
        ([saved, toml, "--model.num_layer", "3"], "model.num_layers"),
        ([tmp_path / "elsewhere", toml], "there is no folder"),
    ):
        status, _, err = attnres("import", *arguments)
        assert status == 2 and told in err, arguments
