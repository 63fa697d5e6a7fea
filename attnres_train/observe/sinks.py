"""Where records go: `metrics.jsonl` and TensorBoard, each step once however often a run is resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Sink(Protocol):
    def write(self, step: int, values: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class JsonlSink:
    """One JSON object a record, flushed as it is written.

    Opening it at `step` drops the records of later steps: a resumed run writes them anew.
    """

    def __init__(self, path: Path, step: int):
        drop_records_after(path, step)
        self._file = open(path, "a", encoding="utf-8")

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardSink:
    """Event files; opening at `step` makes readers drop what an earlier run wrote for later steps."""

    def __init__(self, folder: Path, step: int):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        for tag, value in values.items():
            if "/" in tag:  # the positions (tokens, samples) are no curves
                self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def picture(self, step: int, tag: str, png: bytes) -> None:
        """A picture for the image tab."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))  # of PNG's IHDR
        image = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=png)
        self._writer._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def drop_records_after(path: Path, step: int) -> None:
    """Rewrite the JSON lines of `path` without records of later steps and without a line cut by a kill."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the process died while writing this line
        if record["step"] <= step:
            kept.append(line + "\n")
    replacement = path.with_suffix(".rewrite")
    with open(replacement, "w", encoding="utf-8") as file:
        file.writelines(kept)
        file.flush()
        os.fsync(file.fileno())
    replacement.rename(path)
