"""Which backend a run will use, in words, for logs and `attnres inspect`. Torch is imported only if asked."""

from __future__ import annotations

from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.modes.choose import mode_of


def default_device_type() -> str:
    """Where a run on this machine computes: `cuda` if there is a GPU, else `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def why_no_backend(residual: ResidualConfig, device_type: str, precision: str) -> str | None:
    """Why the backend that the configuration names cannot run on such a device; None if it can, or none is named."""
    from attnres_train.depth.backends import why_not
    from attnres_train.depth.mix import DTYPES

    if residual.backend in ("auto", "reference"):
        return None
    return why_not(residual.backend, device_type, DTYPES[precision])


def backend_in_words(residual: ResidualConfig, device_type: str, precision: str) -> str:
    """The implementation that reads the depth on such a device, and why it is not the fastest, if it is not.

    Compiles the native library if it is what runs and is not there yet.
    """
    from attnres_train.depth.backends import automatic
    from attnres_train.depth.mix import DTYPES

    if not mode_of(residual, eps=0.0).takes_backend:
        return "plain torch (the published attention alone has faster backends)"
    if residual.backend != "auto":
        return f"{residual.backend} (residual.backend)"
    name, reason = automatic(device_type, DTYPES[precision])
    return name if reason is None else f"{name} ({reason})"
