"""What each tag holds, unit first: the words that TensorBoard shows beside a curve; and the name it has there.

No torch here, so that who reads a run's metrics need not import it.
"""

from __future__ import annotations

from collections.abc import Mapping

PHASES = ("data", "forward", "backward", "waiting", "reduction", "optimizer")
"""Of a step, in the order they begin. `waiting` is for the neighbours in the pipeline, its bubble included."""
DESCRIPTIONS: Mapping[str, str] = {
    "loss/train": "nats a token: mean over all tokens that count since the last record, across a resume, too.",
    "loss/valid": "nats a token: mean over the tokens of the validation samples, of all sets where there are several.",
    "loss/valid_bits_per_byte": "bits a byte: the validation loss over the bytes of its text, whatever the tokenizer.",
    "optim/lr": "learning rate of this step, no unit.",
    "optim/grad_norm": "L2 norm of the gradient of the whole model, before it is clipped; no unit.",
    "optim/skipped_steps": "steps: skipped since the run began, for their gradient was not finite.",
    "throughput/tokens_per_second": "tokens a second: all devices together, since the last logged step.",
    "throughput/tokens_per_second_per_device": "tokens a second and device, since the last logged step.",
    "throughput/model_tflops_per_device": "TFLOP/s a device: FLOPs of the model; recomputing does not count.",
    "throughput/mfu": "share, 0 to 1: model FLOP/s over the dense peak that the device's data sheet states.",
    "time/step_seconds": "seconds a step, since the last logged step, without evaluation and saving.",
    "time/data_seconds": "seconds a step, mean over ranks: waiting for samples.",
    "time/forward_seconds": "seconds a step, mean over ranks: forward of all micro-batches.",
    "time/backward_seconds": "seconds a step, mean over ranks: backward of all micro-batches.",
    "time/waiting_seconds": "seconds a step, mean over ranks: waiting for neighbours in the pipeline, bubble included.",
    "time/reduction_seconds": "seconds a step, mean over ranks: adding up gradients over ranks.",
    "time/optimizer_seconds": "seconds a step, mean over ranks: the optimizer's update.",
    "time/checkpoint_seconds": "seconds: for how long the start of a checkpoint kept the training.",
    "time/checkpoint_durable_seconds": "seconds: from the start of a checkpoint until it was published.",
    "memory/peak_gib": "GiB: peak of the fullest rank so far; of the device, or of the process where there is none.",
    "pipeline/forward_bytes": "bytes: sent forward between pipeline stages in one step, all ranks.",
    "pipeline/backward_bytes": "bytes: sent backward between pipeline stages in one step, all ranks.",
    "pipeline/kept_bytes": "bytes: the most depth history that the fullest rank kept at once.",
    "depth/weights": "Mean weight, 0 to 1: sublayers and head (down) over sources (across). Grey is not read.",
}
"""By whole tag."""

PART_DESCRIPTIONS: Mapping[str, str] = {
    "loss/train": "nats a token: as loss/train, of the samples from one source of the blend.",
    "loss/valid": "nats a token: mean over the tokens of one validation set.",
    "loss/valid_bits_per_byte": "bits a byte: the loss on one validation set over the bytes of its text.",
}
"""Of `TAG/NAME`, by tag: the same of one source or of one set."""

DEPTH_DESCRIPTIONS: Mapping[str, str] = {
    "weight": "share, 0 to 1: mean weight of one source in what this reader reads.",
    "weight_on_embedding": "share, 0 to 1: mean weight of the embedding in what this reader reads.",
    "weight_on_newest": "share, 0 to 1: mean weight of the newest complete source in what this reader reads.",
    "weight_on_partial": "share, 0 to 1: mean weight of the unfinished block's sum in what this reader reads.",
    "entropy": "nats: mean entropy of a token's weights; 0 is one source alone, log(n) all n alike.",
    "query_norm": "L2 norm of the learned query; 0, where it begins, weighs all sources alike.",
    "input_rms": "root mean square of what the sublayer reads, before its norm.",
    "output_rms": "root mean square of what the sublayer puts out.",
    "partial_rms": "root mean square of the running sum after the sublayer.",
    "gradient_rms": "root mean square of the output's gradient, of the tokens' summed losses.",
}
"""Of `depth/KIND/READER`, by kind; those of weights name their source too."""


def in_tensorboard(tag: str) -> str:
    """The name of `tag` in event files: `z-depth/...` for `depth/...`, every other as it is.

    TensorBoard shows groups by their names and opens the first two. The depth has some hundred curves: behind all
    others they do not hide the loss.
    """
    return f"z-{tag}" if tag.startswith("depth/") else tag


def describe_tag(tag: str) -> str:
    """The words for `tag`; none for a tag that is none of ours."""
    group, _, rest = tag.partition("/")
    kind = rest.partition("/")[0]
    of_parts = DEPTH_DESCRIPTIONS.get(kind, "") if group == "depth" else PART_DESCRIPTIONS.get(f"{group}/{kind}", "")
    return DESCRIPTIONS.get(tag, of_parts)
