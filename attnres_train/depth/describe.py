"""Which backend a run will use, in words, for logs and `attnres inspect`."""

from __future__ import annotations

from attnres_train.depth.config import ResidualConfig


def default_device_type() -> str:
    """Where a run on this machine computes: `cuda` if there is a GPU, else `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def why_no_backend(residual: ResidualConfig, device_type: str, precision: str) -> str | None:
    """Why the backend that the configuration names cannot run on such a device; None if it can, or none is named."""
    import torch

    from attnres_train.depth.backends import why_not

    if residual.backend in ("auto", "reference"):
        return None
    return why_not(residual.backend, device_type, {"fp32": torch.float32, "bf16": torch.bfloat16}[precision])


def backend_in_words(residual: ResidualConfig, device_type: str, precision: str) -> str:
    """The implementation that reads the depth on such a device, and why it is not the fastest, if it is not.

    Imports torch, and compiles the native library if it is what runs and is not there yet.
    """
    import torch

    from attnres_train.depth.backends import automatic

    if residual.changes_attention or residual.mode == "denseformer":
        return "plain torch (the published attention alone has faster backends)"
    if residual.backend != "auto":
        return f"{residual.backend} (residual.backend)"
    name, reason = automatic(device_type, {"fp32": torch.float32, "bf16": torch.bfloat16}[precision])
    return name if reason is None else f"{name} ({reason})"
