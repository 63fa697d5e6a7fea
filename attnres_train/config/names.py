"""The nearest known name of a misspelt or foreign one."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

from attnres_train.errors import Problem

FOREIGN_NAMES: Mapping[str, str] = {
    "optimizer.learning_rate": "lr max_lr peak_lr",
    "schedule.min_learning_rate": "min_lr lr_min",
    "optimizer.weight_decay": "wd",
    "optimizer.beta1": "adam_beta1 betas",
    "optimizer.beta2": "adam_beta2",
    "optimizer.eps": "adam_eps",
    "optimizer.clip_grad_norm": "grad_clip clip_grad max_grad_norm max_norm gradient_clipping",
    "schedule.warmup_steps": "warmup lr_warmup_iters warmup_iters",
    "schedule.decay_steps": "lr_decay_iters",
    "schedule.kind": "lr_decay_style scheduler",
    "training.global_batch_size": "batch_size train_batch_size",
    "training.micro_batch_size": "local_batch_size device_batch_size per_device_train_batch_size "
    "train_micro_batch_size_per_gpu",
    "training.accumulation": "gradient_accumulation_steps grad_acc_steps num_microbatches",
    "training.sequence_length": "seq_length seq_len max_seq_len context_length block_len",
    "training.steps": "train_iters max_steps num_steps n_steps",
    "training.precision": "dtype bf16 fp16",
    "training.run_folder": "output_dir save_dir",
    "training.eval_interval_steps": "eval_interval",
    "training.eval_samples": "eval_iters",
    "training.stop_after_steps": "exit_interval",
    "model.num_layers": "n_layers n_layer num_hidden_layers depth",
    "model.hidden_size": "hidden_dim dim d_model n_embd",
    "model.ffn_hidden_size": "intermediate_size ffn_dim d_ff",
    "model.num_attention_heads": "n_heads n_head num_heads",
    "model.num_query_groups": "n_kv_heads num_kv_heads num_key_value_heads",
    "model.tie_embeddings": "tie_word_embeddings",
    "model.qk_norm": "qk_layernorm",
    "model.norm_eps": "rms_norm_eps layernorm_epsilon",
    "model.rope_base": "rope_theta rotary_base",
    "model.init_std": "init_method_std",
    "model.pad_vocabulary_to": "make_vocab_size_divisible_by",
    "residual.block_size": "attn_res_block_size",
    "parallel.tensor": "tensor_parallel tensor_model_parallel_size tp",
    "parallel.pipeline": "pipeline_parallel pipeline_model_parallel_size pp",
    "parallel.virtual": "vpp virtual_pipeline_model_parallel_size",
    "parallel.context": "context_parallel_size cp",
    "parallel.expert": "expert_model_parallel_size ep",
    "parallel.overlap": "overlap_p2p_comm",
    "parallel.micro_batch_group": "microbatch_group_size_per_vp_stage",
    "parallel.sequence": "sequence_parallel",
    "training.recompute": "recompute_granularity activation_checkpointing gradient_checkpointing",
    "parallel.timeout_seconds": "distributed_timeout_minutes",
    "tokenizer.model": "tokenizer_model tokenizer_path",
    "tokenizer.vocab_size": "vocabulary_size",
    "data.train": "train_data_path data_path",
    "data.valid": "valid_data_path",
    "checkpoint.interval_steps": "save_interval save_every",
    "checkpoint.resume": "load resume_from",
    "observe.log_interval_steps": "log_interval",
}
"""What other codebases call our keys."""

_LIKENESS = 0.7
_SAME_SECTION_BONUS = 0.15


def nearest_key(dotted: str, known: Iterable[str]) -> str | None:
    """The known dotted key that `dotted` most likely means, or None where nothing is near.

    Compares the last name with every known last name and with other codebases' names; a key of the same
    section wins over an equally near one elsewhere.
    """
    section, _, name = dotted.rpartition(".")
    candidates = [(key.rpartition(".")[2], key) for key in known]
    candidates += [(foreign, key) for key, names in FOREIGN_NAMES.items() for foreign in names.split()]
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
