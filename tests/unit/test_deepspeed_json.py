"""A user's own DeepSpeed JSON: every key is taken, or refused with the reason."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from attnres_train.config.load import load_checked
from attnres_train.engine.config import DeepSpeedSection
from attnres_train.engine.deepspeed_json import FIXED, NOT_HERE, OURS, TABLES, TAKEN, check_json
from attnres_train.engine.deepspeed_patches import import_deepspeed
from attnres_train.engine.deepspeed_settings import deepspeed_settings
from attnres_train.errors import Refused
from tests.unit.config_files import SMALL, write


def problems(folder: Path, settings: Any) -> dict[str, tuple[str, str]]:
    path = folder / "own.json"
    path.write_text(settings if isinstance(settings, str) else json.dumps(settings), encoding="utf-8")
    return {p.key.removeprefix(f"{path}: "): (p.message, p.remedy) for p in check_json(str(path))}


@pytest.mark.parametrize(
    ("settings", "key", "said"),
    [
        ({"train_batch_size": 8}, "train_batch_size", "comes from training.global_batch_size alone"),
        ({"gradient_clipping": 1.0}, "gradient_clipping", "comes from optimizer.clip_grad_norm alone"),
        ({"optimizer": {"type": "Adam"}}, "optimizer", "comes from [optimizer] alone"),
        ({"bf16": {"enabled": True}}, "bf16", "comes from training.precision alone"),
        ({"gradient_acumulation_steps": 4}, "gradient_acumulation_steps", "did you mean gradient_accumulation_steps?"),
        ({"zero_optimization": {"stage": 2}}, "zero_optimization.stage", "engine.deepspeed.zero_stage"),
        (
            {"zero_optimization": {"sub_grop_size": 2}},
            "zero_optimization.sub_grop_size",
            "did you mean sub_group_size?",
        ),
        ({"zero_optimization": {"zero_hpz_partition_size": 2}}, "zero_optimization.zero_hpz_partition_size", "nothing"),
        ({"zero_optimization": {"sub_group_size": -1}}, "zero_optimization.sub_group_size", "greater than or equal"),
        ({"zero_optimization": {"reduce_scatter": "x"}}, "zero_optimization.reduce_scatter", "valid boolean"),
        ({"zero_optimization": {"overlap_comm": True}}, "zero_optimization.overlap_comm", "the engine sets it"),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}},
            "zero_optimization.offload_optimizer.device",
            "engine.deepspeed.offload_optimizer",
        ),
        ({"comms_logger": {"enabeld": True}}, "comms_logger.enabeld", "did you mean enabled?"),
        ({"flops_profiler": {"profile_stp": 1}}, "flops_profiler.profile_stp", "did you mean profile_step?"),
        ({"wall_clock_breakdown": 1}, "wall_clock_breakdown", "1: Input should be a valid boolean"),
        ({"elasticity": {}}, "elasticity", "nothing that this engine does"),
        ({"zzzz": 1}, "zzzz", "unknown to DeepSpeed"),
        ("{", "engine.deepspeed.config", "is not JSON"),
        ('{"dump_state": true,\n "dump_state": false}', "dump_state", "stands twice"),
        ({"log_level": "loudly"}, "log_level", "\"loudly\": Input should be 'debug', 'info'"),
        ({"flops_profiler": {"enabled": "sure"}}, "flops_profiler.enabled", '"sure": Input should be a valid boolean'),
        (
            {"flops_profiler": {"profile_step": "x"}},
            "flops_profiler.profile_step",
            '"x": Input should be a valid integer',
        ),
        (
            {"flops_profiler": {"profile_step": True}},
            "flops_profiler.profile_step",
            "true: Input should be a valid integer",
        ),
        ({"flops_profiler": {"output_file": 1}}, "flops_profiler.output_file", "1: Input should be a valid string"),
        ({"comet": {"enabled": True}}, "comet", "needs comet_ml, which is not installed"),
        ("[1]", "engine.deepspeed.config", "holds no table"),
    ],
)
def test_what_is_not_taken_is_refused_with_the_reason(tmp_path: Path, settings: Any, key: str, said: str) -> None:
    found = problems(tmp_path, settings)
    assert list(found) == [key]
    assert said in " ".join(found[key])


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    text = '{"zzzz": 1,\n"comms_logger": {"debug": true,\n"debug": false},\n"zzzz": 2}'
    assert {key: message for key, (message, _) in problems(tmp_path, text).items()} == {
        "debug": "stands twice",
        "zzzz": "unknown to DeepSpeed",
    }
    assert [p.message for p in check_json(str(tmp_path / "own.json"))].count("stands twice") == 2


def test_numbers_of_the_profiler_may_be_whole(tmp_path: Path) -> None:
    assert problems(tmp_path, {"flops_profiler": {"recompute_fwd_factor": 1, "output_file": "flops.txt"}}) == {}


def test_what_is_taken_reaches_deepspeed_beside_ours(tmp_path: Path) -> None:
    own = {
        "wall_clock_breakdown": True,
        "comms_logger": {"enabled": False},
        "zero_optimization": {"allgather_bucket_size": 1000, "offload_optimizer": {"pin_memory": True}},
    }
    assert problems(tmp_path, own) == {}
    section = DeepSpeedSection(zero_stage=2, offload_optimizer=True, config=str(tmp_path / "own.json"))
    made = deepspeed_settings(section, micro_batch_size=4, persistent=0)
    assert made["wall_clock_breakdown"] is True and made["train_micro_batch_size_per_gpu"] == 4
    zero = made["zero_optimization"]
    assert (zero["stage"], zero["allgather_bucket_size"]) == (2, 1000)
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": True}


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    (problem,) = check_json(str(tmp_path / "none.json"))
    assert "cannot be read" in problem.message


def test_the_configuration_is_refused_with_its_json(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text('{"train_batch_size": 8}')
    path = write(tmp_path, SMALL + f'[engine]\nkind = "deepspeed"\n[engine.deepspeed]\nconfig = "{own}"\n')
    with pytest.raises(Refused) as caught:
        load_checked(path, purpose="check")
    assert [problem.key for problem in caught.value.problems] == [f"{own}: train_batch_size"]


def test_deepspeed_still_reads_every_name() -> None:
    """As a text among its constants or as a field of its models."""
    package = Path(import_deepspeed().__file__).parent
    paths = [path for word in ("config", "constants", "offload_config") for path in package.rglob(f"{word}.py")]
    sources = [path.read_text(encoding="utf-8") for path in paths]
    names = set(re.findall(r"""["'](\w+)["']|^    (\w+):""", "\n".join(sources), re.MULTILINE))
    known = {name for pair in names for name in pair}
    listed = [
        *OURS,
        *FIXED,
        *TAKEN,
        *NOT_HERE,
        *TABLES,
        *(name for _, taken in TABLES.values() for name in taken or ()),
    ]
    assert [name for name in listed if name.rpartition(".")[2] not in known] == []
