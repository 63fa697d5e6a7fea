"""A stock run of DeepSpeed's goes on here: masters and moments bit for bit, and the losses that it would have had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attnres_train.engine.deepspeed_patches import import_deepspeed
from attnres_train.progress import TrainState
from tests.distributed.ranks import run_ranks
from tests.distributed.stock import MORE, SAVED_AT, StockRun, attnres, go_on, train_stock, write_toml
from tests.distributed.tiny import MICRO_BATCH, MICRO_BATCHES, TOKENS

SAMPLES = MICRO_BATCHES * MICRO_BATCH
OFFLOADED = (("offload_optimizer", {"device": "cpu"}),)
FP32_SUMS = (("data_types", {"grad_accum_dtype": "fp32"}),)
RUNS = {
    "ZeRO-1": StockRun(1),
    "ZeRO-2, bf16": StockRun(2, bf16=True),
    "ZeRO-3, odd sizes": StockRun(3, case="denseformer", zero=(("sub_group_size", 5000),)),
}
MORE_RUNS = {
    "ZeRO-1, odd sizes": StockRun(1, case="denseformer"),
    "ZeRO-1, bf16": StockRun(1, bf16=True),
    "ZeRO-1, bf16, sums in fp32": StockRun(1, bf16=True, more=FP32_SUMS),
    "ZeRO-1, elastic, in a wrapper": StockRun(1, wrapped=True, zero=(("elastic_checkpoint", True),)),
    "ZeRO-2, tied": StockRun(2, tied=True),
    "ZeRO-2, offloaded": StockRun(2, zero=OFFLOADED),
    "ZeRO-2, round robin": StockRun(2, zero=(("round_robin_gradients", True),), look=False),
    "ZeRO-1, aligned": StockRun(1, case="denseformer", zero=(("parameter_alignment", True),)),
    "ZeRO-3": StockRun(3),
    "ZeRO-3, bf16": StockRun(3, bf16=True),
    "ZeRO-3, tied, offloaded": StockRun(3, tied=True, zero=OFFLOADED),
    "ZeRO-1, tensor 2": StockRun(1, tensor=2),
    "ZeRO-3, tensor 2": StockRun(3, tensor=2),
}


@pytest.fixture(autouse=True)
def deepspeed() -> None:
    """Imports it once for all ranks, which are forked."""
    import_deepspeed()


def assert_goes_on(run: StockRun, folder: Path) -> None:
    ranks = 2 * run.tensor
    stock = run_ranks(train_stock, ranks, run, folder / "deepspeed")[0]
    config = replace(run.config, parallel=replace(run.config.parallel, tensor=1))
    status, out, err = attnres("import", folder / "deepspeed", write_toml(config, folder))
    assert status == 0, err
    assert f"step {SAVED_AT} after {SAVED_AT} updates" in out
    assert f"behind sample {SAVED_AT * SAMPLES} in the order of this configuration (DeepSpeed's global_samples)" in out
    state, updates, here = run_ranks(go_on, 2, config, folder / "run", MORE)[0]
    assert state == TrainState(SAVED_AT, SAVED_AT * SAMPLES, SAVED_AT * SAMPLES * TOKENS)
    assert updates == SAVED_AT
    if run.tensor == 1 and run.more != FP32_SUMS:  # of which that function knows nothing
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        masters = get_fp32_state_dict_from_zero_checkpoint(str(folder / "deepspeed"))
        for name, tensor in here.tensors["master"].items():
            assert masters["module." * run.wrapped + name][: len(tensor)].equal(tensor), name
    for kind, by_name in stock.tensors.items():
        assert by_name.keys() == here.tensors[kind].keys() and len(by_name) > 20
        for name, tensor in by_name.items():
            assert here.tensors[kind][name].equal(tensor.float()), f"{kind} of {name}"
    moved = [bool(tensor.any()) for tensor in here.tensors["second_moment"].values()]
    assert sum(moved) > len(moved) // 2, "moments that would not be missed"
    if run.tensor == 1:
        # In bf16 the depth readers stay fp32 here, and DeepSpeed's are cast.
        assert here.losses == pytest.approx(stock.losses, rel=1e-2 if run.bf16 else 1e-5)


@pytest.mark.parametrize("name", RUNS)
def test_a_stock_run_goes_on_as_it_would_have(name: str, tmp_path: Path) -> None:
    assert_goes_on(RUNS[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_RUNS)
def test_any_stock_run_goes_on_as_it_would_have(name: str, tmp_path: Path) -> None:
    assert_goes_on(MORE_RUNS[name], tmp_path)
