"""Signals that ask a run to save and end."""

from __future__ import annotations

import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Remembers that a stop signal came to this rank. A second one changes nothing: the save goes on."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def listen(self) -> None:
        """Take over the stop signals; from the main thread."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._remember)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
