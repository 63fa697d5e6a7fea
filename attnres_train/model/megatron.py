"""megatron-core's configuration of a run."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from megatron.core.transformer import TransformerConfig

from attnres_train.model.config import ModelConfig
from attnres_train.model.rotary import attention_factor


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
    deterministic: bool = False,
) -> TransformerConfig:
    """megatron-core's configuration for `model` on a grid of these degrees.

    Weights are set by `parameters.initialize`, so megatron-core's initialiser only allocates. Losses are
    sums over tokens; the gradients are divided by the global token count once, after accumulation.
    """
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.query_groups,
        kv_channels=model.head_size,
        softmax_scale=_softmax_scale(model),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_eps,
        qk_layernorm=model.qk_norm,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=model.qkv_bias,
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
        deterministic_mode=deterministic,
    )


def _leave_as_allocated(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _softmax_scale(model: ModelConfig) -> float | None:
    """None leaves the kernel's own, 1/sqrt(K). Cosines and sines times a factor are scores times its square."""
    factor = attention_factor(model.rope_scaling)
    return None if factor == 1 else factor**2 / model.head_size**0.5
