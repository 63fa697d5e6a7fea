"""Signals that ask a run to save and end."""

from __future__ import annotations

import ctypes
import signal
import sys
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
PR_SET_PDEATHSIG = 1
"""prctl's request that the kernel signals this process when its parent ends (linux/prctl.h): a launcher that is
killed would otherwise leave ranks that train on unseen."""


class StopRequest:
    """Remembers that a stop signal came to this rank. A second one changes nothing: the save goes on."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def listen(self) -> None:
        """Take over the stop signals; from the main thread. The end of the launcher is one of them."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._remember)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
