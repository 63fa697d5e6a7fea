"""The part of the transformer that one pipeline stage holds: perhaps the embedding, some layers, perhaps the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.enums import ModelType
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import VocabParallelEmbedding
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from torch import Tensor, nn

from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.history import History
from attnres_train.depth.layout import DepthLayout
from attnres_train.model.config import ModelConfig
from attnres_train.model.describe import describe
from attnres_train.model.documents import Documents
from attnres_train.model.head import Head
from attnres_train.model.layer import Plans, TransformerLayer
from attnres_train.model.recompute import Recompute, run_again
from attnres_train.model.rotary import inverse_frequencies


@dataclass(frozen=True)
class StageRole:
    """Which part of the model a stage is; `stage` counts over all ranks and chunks."""

    stage: int
    layers: range
    first: bool
    last: bool
    chunk: int | None = None
    """Number among the chunks of this rank under the interleaved schedule, else None."""


class StageModel(MegatronModule):
    """tokens -> history -> layers -> history, or per-token losses on the last stage.

    Parameter names are those of the whole model (`layers.17.mlp.norm.weight`), whichever stage holds them.
    """

    model_type = ModelType.encoder_or_decoder

    def __init__(
        self,
        model: ModelConfig,
        residual: ResidualConfig,
        config: TransformerConfig,
        groups: ProcessGroupCollection,
        role: StageRole,
        vocabulary_size: int,
        padded_vocabulary: int,
        recompute: Recompute = "none",
    ):
        super().__init__(config=config)
        self.role = role
        self.vp_stage = role.chunk
        self.pre_process, self.post_process = role.first, role.last
        self.share_embeddings_and_output_weights = model.tie_embeddings
        self.layout = DepthLayout.of(residual, model.num_layers)
        self.received: History | None = None
        self.tensor_group = groups.tp
        vocabulary = (vocabulary_size, padded_vocabulary)
        described = describe(model, residual, *vocabulary)
        self.tensors = described.stage(role.layers, role.first, role.last)
        """In the order of the parameters."""
        self.buffer_tensors = described.buffers(role.layers)
        plans = Plans(model, residual, self.layout, config, groups, recompute)
        self.embedding = None
        if role.first or (role.last and model.tie_embeddings):
            self.embedding = VocabParallelEmbedding(
                padded_vocabulary,
                model.hidden_size,
                init_method=config.init_method,
                reduce_scatter_embeddings=config.sequence_parallel,
                config=config,
                tp_group=groups.tp,
            )
        self.rotary = RotaryEmbedding(
            model.head_size, 1.0, rotary_base=model.rope_base, use_cpu_initialization=True, cp_group=groups.cp
        )
        if model.rope_scaling.kind != "none":  # megatron-core knows only some of the kinds
            self.rotary.inv_freq = torch.tensor(inverse_frequencies(model), dtype=torch.float32)
        self.layers = nn.ModuleDict({str(i): TransformerLayer(plans, i) for i in role.layers})
        self.head = Head(plans, *vocabulary) if role.last else None
        spans = self.layout.spans(role.layers, recompute)
        self.makes_again = bool(spans)
        self.spans = [[self.layers[str(i)] for i in span] for span in spans or ([i] for i in role.layers)]
        self._mark_parameters()

    def _mark_parameters(self) -> None:
        """Tell megatron-core what the description says of each parameter.

        The second copy of a tied embedding: gradients add up, its norm counts once. With sequence shards every tensor
        rank sees its own tokens, so gradients of whole vectors are summed; without them all tensor ranks see all
        tokens and hold the same gradient: a sum would multiply it.
        """
        for (name, parameter), tensor in zip(self.named_parameters(), self.tensors, strict=True):
            here = (name, tuple(parameter.shape))
            assert here == (tensor.name, tensor.sharding.local_shape(self.tensor_group.size())), here
            if tensor.copies > 1:
                parameter.shared_embedding = True
                parameter.shared = not tensor.owned
            if not tensor.divided:
                parameter.sequence_parallel = self.config.sequence_parallel

    def persistent_buffers(self) -> Mapping[str, Tensor]:
        """What of the stage is saved beside its parameters: what is described, by name."""
        found = {
            f"{path}.{name}": buffer
            for path, module in self.named_modules()
            for name, buffer in module.named_buffers(recurse=False)
            if name not in module._non_persistent_buffers_set
        }
        here = {name: (tuple(buffer.shape), buffer.dtype) for name, buffer in found.items()}
        ranks = self.tensor_group.size()
        assert here == {t.name: (t.sharding.local_shape(ranks), torch.float32) for t in self.buffer_tensors}, here
        return found

    def shared_embedding_or_output_weight(self) -> Tensor | None:
        """The tied matrix where this stage holds it; megatron-core reduces its gradient over the two ends."""
        return self.embedding.weight if self.embedding is not None else None

    def set_input_tensor(self, inputs: Sequence[Any]) -> None:
        """Called by megatron-core's schedules with what the previous stage sent, `[None]` on the first."""
        self.received = None if inputs[0] is None else inputs[0].opened()

    def forward(
        self,
        tokens_BT: Tensor,
        labels_BT: Tensor,
        documents: Documents | None = None,
        progress: Callable[[History], None] | None = None,
    ) -> History | Tensor:
        """The history for the next stage, or the loss of every token, `[B, T]`, on the last.

        Only the first stage reads tokens and only the last one labels; of others their shape counts, wherever they are.

        Attention stays inside `documents`; None lets it see the whole window. Positions count through the window
        either way: rotary scores depend on differences of positions alone.

        `progress` is told of the history before each layer, or each span of layers that backward makes again; the
        last is the return value.
        """
        history = self.received if not self.role.first else self._embed(tokens_BT)
        assert history is not None, "a later stage ran without the history of the one before"
        self.received = None
        rotary = self.rotary(tokens_BT.shape[1])
        for layers in self.spans:
            if progress is not None:
                progress(history)
            again = self.makes_again and torch.is_grad_enabled()
            run = partial(run_again, _run) if again else _run
            history = run(history, rotary, documents, layers)
        if self.head is None:
            return history
        tied = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        return self.head(history, labels_BT, tied)

    def _embed(self, tokens_BT: Tensor) -> History:
        assert self.embedding is not None
        embedding = self.embedding(tokens_BT)
        if not self.config.sequence_parallel:
            # With sequence parallelism the embedding already comes out as [T / tensor, B, D].
            embedding = embedding.transpose(0, 1).contiguous()
        return History.start(embedding, self.layout)


def _run(history: History, rotary: Tensor, documents: Documents | None, layers: Sequence[nn.Module]) -> History:
    for layer in layers:
        history = layer(history, rotary, documents)
    return history
