"""The branches of a layer as megatron-core module specs, and the megatron-core configuration of a run."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from torch import nn

from attnres_train.model.attention_core import CausalAttentionCore
from attnres_train.model.config import ModelConfig
from attnres_train.model.norm import RMSNorm


def attention_spec(qk_norm: bool) -> ModuleSpec:
    """Grouped-query self-attention with rotary positions, and RMSNorm on queries and keys if asked for."""
    head_norm = RMSNorm if qk_norm else None
    return ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear,
            core_attention=CausalAttentionCore,
            linear_proj=RowParallelLinear,
            q_layernorm=head_norm,
            k_layernorm=head_norm,
        ),
    )


def mlp_spec() -> ModuleSpec:
    """SwiGLU MLP."""
    return ModuleSpec(
        module=MLP, submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    )


def state_decay(module: nn.Module) -> None:
    """Write which parameters of megatron-core's layers decay: matrices do, biases do not."""
    for layer in module.modules():
        if isinstance(layer, ColumnParallelLinear | RowParallelLinear | VocabParallelEmbedding):
            for name, parameter in layer.named_parameters(recurse=False):
                parameter.decays = name == "weight"  # type: ignore[attr-defined]


def output_init_std(model: ModelConfig) -> float:
    """Initial standard deviation of the projections back into the residual: init_std / sqrt(2 num_layers)."""
    return model.init_std / math.sqrt(2 * model.num_layers)


def transformer_config(
    model: ModelConfig,
    *,
    dtype: torch.dtype,
    tensor: int = 1,
    pipeline: int = 1,
    virtual: int = 1,
    sequence: bool = False,
    overlap: bool = True,
    micro_batch_group: int | None = None,
) -> TransformerConfig:
    """megatron-core's configuration for `model` on a grid of these degrees.

    Weights are set by `model.parameters.initialize`, so megatron-core's initialiser only allocates. Losses are
    sums over tokens; the gradients are divided by the global token count once, after accumulation.
    """
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.query_groups,
        kv_channels=model.head_size,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_eps,
        qk_layernorm=model.qk_norm,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        bias_activation_fusion=False,
        init_method=_leave_as_allocated,
        output_layer_init_method=_leave_as_allocated,
        use_cpu_initialization=True,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None,
        sequence_parallel=sequence,
        calculate_per_token_loss=True,
        # The schedule's tensor is a bundle of sources here; freeing its data would free live sources.
        deallocate_pipeline_outputs=False,
        batch_p2p_comm=False,
        overlap_p2p_comm=overlap and virtual > 1,
        # With larger groups than the pipeline is long there is work to hide messages behind here, too.
        overlap_p2p_comm_warmup_flush=overlap and virtual > 1 and (micro_batch_group or 0) > pipeline,
        microbatch_group_size_per_vp_stage=micro_batch_group,
    )


def _leave_as_allocated(weight: torch.Tensor) -> torch.Tensor:
    return weight
