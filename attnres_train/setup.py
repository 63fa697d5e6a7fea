"""A configuration on a number of ranks: everything that follows from the two, computed once, without torch.

Checks, plan, advice, trainer, doctor and reports read it here; nobody derives any of it again.

Legend: T tokens of a window, B samples of a micro-batch, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from attnres_train.config.resolve import vocabulary_size
from attnres_train.config.run_config import RunConfig
from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.layout import DepthLayout
from attnres_train.model.config import ModelConfig
from attnres_train.model.describe import Description, describe
from attnres_train.model.size import Costs, costs_of, training_flops_per_token
from attnres_train.model.tensors import TensorSpec
from attnres_train.parallel.config import ParallelConfig
from attnres_train.parallel.schedule import Schedule
from attnres_train.parallel.split import balanced_split, head_cost_in_layers, stage_layers
from attnres_train.parallel.wire import WirePlan

FACTS = "facts.json"
"""Of a run folder: `Setup.facts`."""
FP32_BYTES = 4
_GROUPS_TO_PEAK = 4
ELEMENT_BYTES = {"fp32": FP32_BYTES, "bf16": 2}


class StageTensors:
    """The tensors of one pipeline stage, in the order in which its module holds them, and their sizes."""

    def __init__(self, tensors: tuple[TensorSpec, ...]):
        self.tensors = tensors
        self.counted = sum(tensor.size for tensor in tensors if tensor.owned)
        """Elements, each tensor of the model once: over all stages these sum to the model's total."""
        self._divided = sum(tensor.size for tensor in tensors if tensor.divided)
        self._whole = sum(tensor.size for tensor in tensors if not tensor.divided)

    def held(self, tensor: int) -> int:
        """Elements on one of `tensor` ranks, copies included."""
        return self._divided // tensor + self._whole


@dataclass(frozen=True, eq=False)
class Setup:
    """A checked `config` on `world` ranks, for a tokenizer of `vocabulary` entries."""

    config: RunConfig
    world: int
    vocabulary: int

    @classmethod
    def of(cls, config: RunConfig, world: int | None = None, vocabulary: int | None = None) -> Setup:
        """None stands for the ranks of one replica, and for what the tokenizer of `config` says.

        Raises Refused where the vocabulary cannot be known.
        """
        entries = vocabulary_size(config) if vocabulary is None else vocabulary
        return cls(config, config.parallel.model_ranks if world is None else world, entries)

    def changed(self, config: RunConfig) -> Setup:
        """Another configuration on the same ranks, with the same tokenizer."""
        return replace(self, config=config)

    @cached_property
    def padded_vocabulary(self) -> int:
        """Rows of the embedding."""
        return self.config.model.padded_vocabulary(self.vocabulary, self.config.parallel.tensor)

    @cached_property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Of every stage: as stated, else as `parallel.balance` says."""
        parallel, model = self.config.parallel, self.config.model
        if parallel.layers_per_stage is not None:
            return parallel.layers_per_stage
        if parallel.balance == "layers":
            return balanced_split(model.num_layers, parallel.num_stages)
        head_cost = head_cost_in_layers(model, self.padded_vocabulary, self.config.training.sequence_length)
        return balanced_split(model.num_layers, parallel.num_stages, head_cost)

    @property
    def layout(self) -> DepthLayout:
        return self.wire.layout

    @cached_property
    def wire(self) -> WirePlan:
        """What crosses the stages."""
        return _wire(self.config.residual, self.config.model.num_layers, self.layers_per_stage, self.config.parallel)

    @cached_property
    def description(self) -> Description:
        """Every tensor of the model."""
        config = self.config
        return describe(config.model, config.residual, self.vocabulary, self.padded_vocabulary)

    @cached_property
    def costs(self) -> Costs:
        """What the parts of the model ask of a machine."""
        return costs_of(self.config.model, self.padded_vocabulary)

    @cached_property
    def stages(self) -> tuple[StageTensors, ...]:
        """What every global stage holds."""
        config = self.config
        return _stages(config.model, config.residual, self.vocabulary, self.padded_vocabulary, self.layers_per_stage)

    def layers_of(self, stage: int) -> range:
        """The transformer layers of a global stage, numbered over the whole model from 0."""
        return stage_layers(self.layers_per_stage, stage)

    def is_last(self, stage: int) -> bool:
        """Whether it is the stage that holds the head."""
        return stage == len(self.layers_per_stage) - 1

    def held_by(self, pipeline_rank: int) -> int:
        """Elements of the parameters on a tensor rank of the pipeline rank, copies included."""
        tensor = self.config.parallel.tensor
        return sum(self.stages[stage].held(tensor) for stage in self.wire.stages_of(pipeline_rank))

    @cached_property
    def data(self) -> int:
        """Data-parallel replicas."""
        return self.config.parallel.data(self.world)

    @property
    def degrees(self) -> dict[str, int | bool]:
        """Of the process grid, by name; `world` is their product without `virtual`, `sequence` a yes or no."""
        parallel = self.config.parallel
        named = {name: getattr(parallel, name) for name in ("tensor", "pipeline", "virtual")}
        return {"world": self.world, **named, "data": self.data, "sequence": parallel.sequence}

    @cached_property
    def micro_batches(self) -> int:
        """That every rank runs a step."""
        training = self.config.training
        return training.global_batch_size // (training.micro_batch_size * self.data)

    @cached_property
    def schedule(self) -> Schedule:
        """Of a whole step."""
        return self.schedule_of(self.micro_batches)

    @cached_property
    def schedule_to_peak(self) -> Schedule:
        """It repeats after every group, so a few groups show the peak of any number of micro-batches."""
        return self.schedule_of(min(self.micro_batches, _GROUPS_TO_PEAK * self.schedule.group_size))

    def schedule_of(self, micro_batches: int) -> Schedule:
        """Of a step of so many."""
        parallel = self.config.parallel
        group = parallel.micro_batch_group or parallel.pipeline
        return Schedule(parallel.pipeline, parallel.virtual, micro_batches, group)

    @property
    def shards(self) -> int:
        """Tensor ranks that share the tokens outside the tensor-parallel layers: 1 without sequence parallelism."""
        return self.config.parallel.tensor if self.config.parallel.sequence else 1

    @property
    def element_bytes(self) -> int:
        """Of a weight or an activation."""
        return ELEMENT_BYTES[self.config.training.precision]

    @property
    def micro_batch_tokens(self) -> int:
        return self.config.training.sequence_length * self.config.training.micro_batch_size

    @property
    def step_tokens(self) -> int:
        return self.config.training.global_batch_size * self.config.training.sequence_length

    @property
    def flops_per_token(self) -> int:
        """Model FLOPs of forward and backward, attention over whole windows."""
        config = self.config
        return training_flops_per_token(config.model, self.padded_vocabulary, config.training.sequence_length)

    @property
    def step_flops(self) -> int:
        """Model FLOPs of a step."""
        return self.step_tokens * self.flops_per_token

    @property
    def facts(self) -> dict[str, Any]:
        """What a run says of its model beside its configuration, for who reads its folder."""
        names = ("parameters", "flops_per_token", "vocabulary", "padded_vocabulary", "layers_per_stage")
        return {name: getattr(self, name) for name in names}

    @property
    def parameters(self) -> int:
        """Elements of the whole model's."""
        return self.description.parameters

    @property
    def slice_shape(self) -> tuple[int, int, int]:
        """`[T / shards, B, D]`: a source of the depth history, of one micro-batch on one rank."""
        training = self.config.training
        return training.sequence_length // self.shards, training.micro_batch_size, self.config.model.hidden_size

    @property
    def slice_bytes(self) -> int:
        tokens, samples, width = self.slice_shape
        return tokens * samples * width * self.element_bytes


@lru_cache(maxsize=1024)
def _wire(
    residual: ResidualConfig, num_layers: int, layers_per_stage: tuple[int, ...], parallel: ParallelConfig
) -> WirePlan:
    """Kept, since advice asks for the same plan of many setups."""
    return WirePlan(
        DepthLayout.of(residual, num_layers),
        layers_per_stage,
        parallel.pipeline,
        parallel.virtual,
        cache=parallel.caches_history,
        exact_gradients=parallel.caches_history and parallel.exact_gradients,
    )


@lru_cache(maxsize=256)
def _stages(
    model: ModelConfig, residual: ResidualConfig, vocabulary: int, padded_vocabulary: int, split: tuple[int, ...]
) -> tuple[StageTensors, ...]:
    """Kept for the same reason."""
    whole, last = describe(model, residual, vocabulary, padded_vocabulary), len(split) - 1
    return tuple(
        StageTensors(whole.stage(stage_layers(split, stage), stage == 0, stage == last)) for stage in range(len(split))
    )
