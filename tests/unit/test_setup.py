"""What follows from a configuration and a world, each once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from attnres_train.setup import Setup
from tests.distributed.tiny import tiny_config


def test_numbers_of_a_grid_on_which_no_two_degrees_coincide() -> None:
    config = tiny_config(pipeline=3, tensor=2, sequence=True)
    setup = Setup.of(config, world=12, vocabulary=300)
    training = config.training
    assert setup.data == 2 and setup.micro_batches == training.global_batch_size // (2 * training.micro_batch_size)
    assert setup.padded_vocabulary % (2 * config.model.pad_vocabulary_to) == 0 and setup.padded_vocabulary >= 300
    assert sum(setup.layers_per_stage) == config.model.num_layers and len(setup.layers_per_stage) == 3
    assert setup.wire.layers_per_stage == setup.layers_per_stage
    tokens, samples, width = setup.slice_shape
    assert (tokens * 2, samples, width) == (
        training.sequence_length,
        training.micro_batch_size,
        config.model.hidden_size,
    )
    assert setup.slice_bytes == tokens * samples * width * {"fp32": 4, "bf16": 2}[training.precision]
    assert setup.schedule.micro_batches == setup.micro_batches


def test_a_slice_of_a_large_run_is_112_mib() -> None:
    tiny = tiny_config(tensor=8, sequence=True)
    model = replace(tiny.model, hidden_size=7168)
    training = replace(tiny.training, sequence_length=8192, micro_batch_size=1, precision="bf16")
    large = replace(tiny, model=model, training=training)
    assert Setup.of(large, vocabulary=300).slice_bytes == 14 * 2**20
    whole = replace(large, parallel=replace(large.parallel, sequence=False))
    assert Setup.of(whole, vocabulary=300).slice_bytes == 112 * 2**20


def test_a_setup_needs_no_torch() -> None:
    program = "import sys; import attnres_train.setup; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
