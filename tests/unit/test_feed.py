"""What of a micro-batch goes to the device, and how."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnres_train.model.stage import StageRole
from attnres_train.parallel import feed as module
from attnres_train.parallel.feed import feed
from tests.distributed.tiny import step_batches


def role(stage: int, stages: int) -> StageRole:
    return StageRole(stage=stage, layers=range(0), first=stage == 0, last=stage == stages - 1, chunk=None)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    found: list[Tensor] = []

    def on_device(tensor: Tensor, _device: torch.device) -> Tensor:
        found.append(tensor)
        return tensor

    monkeypatch.setattr(module, "on_device", on_device)
    return found


@pytest.mark.parametrize(
    ("stages", "names"),
    [
        ([0], {"tokens_BT"}),
        ([1], set()),
        ([2], {"labels_BT", "loss_mask_BT"}),
        ([0, 2], {"tokens_BT", "labels_BT", "loss_mask_BT"}),
    ],
)
def test_a_stage_is_given_what_it_reads(stages: list[int], names: set[str], copied: list[Tensor]) -> None:
    batches = step_batches(0)
    fed = feed(batches, [role(stage, 3) for stage in stages], torch.device("cpu"))
    wanted = [id(getattr(batch, name)) for batch in batches for name in ("tokens_BT", "labels_BT", "loss_mask_BT")
              if name in names]  # fmt: skip
    assert sorted(map(id, copied)) == sorted(wanted)
    assert all(one.tokens_BT.shape == batch.tokens_BT.shape for one, batch in zip(fed, batches, strict=True))


def test_copies_to_a_gpu_are_from_pinned_memory_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, object]] = []

    class Asked(Tensor):
        def pin_memory(self, *_: object) -> Tensor:  # type: ignore[override]
            told.append(("pin", None))
            return self

        def to(self, device: torch.device, non_blocking: bool = False) -> Tensor:  # type: ignore[override]
            told.append((device.type, non_blocking))
            return self

    module.on_device(torch.zeros(1).as_subclass(Asked), torch.device("cuda"))
    assert told == [("pin", None), ("cuda", True)]
