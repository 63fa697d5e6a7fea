"""The nearest known name of a misspelt or foreign one, and what this version does not have."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

from attnres_train.errors import Problem

FOREIGN_NAMES: Mapping[str, str] = {
    "lr": "optimizer.learning_rate",
    "max_lr": "optimizer.learning_rate",
    "peak_lr": "optimizer.learning_rate",
    "min_lr": "schedule.min_learning_rate",
    "lr_min": "schedule.min_learning_rate",
    "wd": "optimizer.weight_decay",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_eps": "optimizer.eps",
    "betas": "optimizer.beta1",
    "grad_clip": "optimizer.clip_grad_norm",
    "clip_grad": "optimizer.clip_grad_norm",
    "max_grad_norm": "optimizer.clip_grad_norm",
    "max_norm": "optimizer.clip_grad_norm",
    "gradient_clipping": "optimizer.clip_grad_norm",
    "warmup": "schedule.warmup_steps",
    "lr_warmup_iters": "schedule.warmup_steps",
    "warmup_iters": "schedule.warmup_steps",
    "lr_decay_iters": "schedule.decay_steps",
    "lr_decay_style": "schedule.kind",
    "scheduler": "schedule.kind",
    "batch_size": "training.global_batch_size",
    "train_batch_size": "training.global_batch_size",
    "local_batch_size": "training.micro_batch_size",
    "device_batch_size": "training.micro_batch_size",
    "per_device_train_batch_size": "training.micro_batch_size",
    "train_micro_batch_size_per_gpu": "training.micro_batch_size",
    "gradient_accumulation_steps": "training.accumulation",
    "grad_acc_steps": "training.accumulation",
    "num_microbatches": "training.accumulation",
    "seq_length": "training.sequence_length",
    "seq_len": "training.sequence_length",
    "max_seq_len": "training.sequence_length",
    "context_length": "training.sequence_length",
    "block_len": "training.sequence_length",
    "train_iters": "training.steps",
    "max_steps": "training.steps",
    "num_steps": "training.steps",
    "n_steps": "training.steps",
    "dtype": "training.precision",
    "bf16": "training.precision",
    "fp16": "training.precision",
    "output_dir": "training.run_folder",
    "save_dir": "training.run_folder",
    "eval_interval": "training.eval_interval_steps",
    "eval_iters": "training.eval_samples",
    "exit_interval": "training.stop_after_steps",
    "n_layers": "model.num_layers",
    "n_layer": "model.num_layers",
    "num_hidden_layers": "model.num_layers",
    "depth": "model.num_layers",
    "hidden_dim": "model.hidden_size",
    "dim": "model.hidden_size",
    "d_model": "model.hidden_size",
    "n_embd": "model.hidden_size",
    "intermediate_size": "model.ffn_hidden_size",
    "ffn_dim": "model.ffn_hidden_size",
    "d_ff": "model.ffn_hidden_size",
    "n_heads": "model.num_attention_heads",
    "n_head": "model.num_attention_heads",
    "num_heads": "model.num_attention_heads",
    "n_kv_heads": "model.num_query_groups",
    "num_kv_heads": "model.num_query_groups",
    "num_key_value_heads": "model.num_query_groups",
    "tie_word_embeddings": "model.tie_embeddings",
    "qk_layernorm": "model.qk_norm",
    "rms_norm_eps": "model.norm_eps",
    "layernorm_epsilon": "model.norm_eps",
    "rope_theta": "model.rope_base",
    "rotary_base": "model.rope_base",
    "init_method_std": "model.init_std",
    "make_vocab_size_divisible_by": "model.pad_vocabulary_to",
    "attn_res_block_size": "residual.block_size",
    "tensor_parallel": "parallel.tensor",
    "tensor_model_parallel_size": "parallel.tensor",
    "tp": "parallel.tensor",
    "pipeline_parallel": "parallel.pipeline",
    "pipeline_model_parallel_size": "parallel.pipeline",
    "pp": "parallel.pipeline",
    "vpp": "parallel.virtual",
    "virtual_pipeline_model_parallel_size": "parallel.virtual",
    "context_parallel_size": "parallel.context",
    "cp": "parallel.context",
    "expert_model_parallel_size": "parallel.expert",
    "ep": "parallel.expert",
    "overlap_p2p_comm": "parallel.overlap",
    "microbatch_group_size_per_vp_stage": "parallel.micro_batch_group",
    "sequence_parallel": "parallel.sequence",
    "recompute_granularity": "training.recompute",
    "activation_checkpointing": "training.recompute",
    "gradient_checkpointing": "training.recompute",
    "distributed_timeout_minutes": "parallel.timeout_seconds",
    "tokenizer_model": "tokenizer.model",
    "tokenizer_path": "tokenizer.model",
    "vocabulary_size": "tokenizer.vocab_size",
    "train_data_path": "data.train",
    "data_path": "data.train",
    "valid_data_path": "data.valid",
    "save_interval": "checkpoint.interval_steps",
    "save_every": "checkpoint.interval_steps",
    "load": "checkpoint.resume",
    "resume_from": "checkpoint.resume",
    "log_interval": "observe.log_interval_steps",
}
"""Other codebases' names for our keys."""

_LIKENESS = 0.7
_SAME_SECTION_BONUS = 0.15


def nearest_key(dotted: str, known: Iterable[str]) -> str | None:
    """The known dotted key that `dotted` most likely means, or None where nothing is near.

    Compares the last name with every known last name and with other codebases' names; a key of the same
    section wins over an equally near one elsewhere.
    """
    section, _, name = dotted.rpartition(".")
    candidates = [(key.rpartition(".")[2], key) for key in known] + list(FOREIGN_NAMES.items())
    best, best_score = None, _LIKENESS
    for candidate, key in candidates:
        score = _likeness(name, candidate)
        if score >= _LIKENESS:
            score += _SAME_SECTION_BONUS * (key.rpartition(".")[0] == section)
        if score > best_score or (best is None and score == best_score):
            best, best_score = key, score
    return best


def unknown_key(dotted: str, where: str, known: Collection[str], *, flag: bool = False) -> Problem:
    """The problem of a key, or of the flag that names it, which no section declares."""
    shown = f"--{dotted}" if flag else dotted
    nearest = nearest_key(dotted, known)
    if nearest is None:
        remedy = "`configs/reference.toml` lists every key"
    else:
        remedy = f"did you mean {'--' if flag else ''}{nearest}?"
    return Problem(shown, f"unknown {'flag' if flag else 'key'} ({where})", remedy)


def nearest_word(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most likely means, or None."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


def _likeness(one: str, other: str) -> float:
    one, other = (name.lower().replace("-", "_") for name in (one, other))
    return difflib.SequenceMatcher(None, one, other).ratio()
