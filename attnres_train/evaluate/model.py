"""A checkpoint as the model that its export would be: the one inference code, with weights straight from the files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from attnres_train.checkpoint.reader import CheckpointReader
from attnres_train.errors import refuse
from attnres_train.exchange.hf_config import OWN, Sections, config_json
from attnres_train.exchange.hf_export import described_by
from attnres_train.exchange.hf_tensors import targets
from attnres_train.exchange.safetensors_writer import DTYPES

if TYPE_CHECKING:
    from attnres_train.exchange.huggingface.modeling_attnres import AttnResForCausalLM


def inference_model(checkpoint: Path, dtype: str, device: str) -> AttnResForCausalLM:
    """The model of a checkpoint, tensor by tensor; parameters of depth readers stay fp32, as in training.

    Raises Refused where the checkpoint is damaged, and where transformers is not installed.
    """
    try:
        from attnres_train.exchange.huggingface.configuration_attnres import AttnResConfig
        from attnres_train.exchange.huggingface.modeling_attnres import AttnResForCausalLM
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("transformers"):
            raise
        remedy = "pip install 'attnres-train[generate]'"
        raise refuse("transformers", "is not installed, and the model is run by it", remedy) from error
    reader = CheckpointReader.open(checkpoint)
    sections = Sections.of(reader.manifest.settings, str(checkpoint))
    described = described_by(reader, sections)
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = config_json(sections, described[0].shape[0], dtype, ends, OWN)
    # Nothing is allocated, nor drawn, but what is read.
    with torch.device("meta"):
        model = AttnResForCausalLM(AttnResConfig(**{k: v for k, v in config.items() if k != "auto_map"}))
    state = {}
    for spec in described:
        whole = reader.read("weight", spec.name)
        for target in targets(spec, sections.model):
            wanted = torch.float32 if target.fp32 else DTYPES[dtype]
            state[target.name] = target.cut(whole).to(device, wanted, copy=True)
    if sections.model.tie_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    return model.eval()
