"""Signals that ask a run to save and end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from attnres_train.launch.process import STOP_SIGNALS, end_with_parent, parent_has_ended


class StopRequest:
    """Remembers that a stop signal came to this rank. A second one changes nothing: the save goes on.

    Until `training_begins` there is nothing to save, and the rank may be waiting for one that will never come: then
    `give_up` is called at once, from a thread, since Python answers signals only between two of its own steps.
    """

    def __init__(self, give_up: Callable[[], None]) -> None:
        self.received: signal.Signals | None = None
        self._give_up: Callable[[], None] | None = give_up
        self._parent = os.getppid()

    def listen(self) -> None:
        """Take over the stop signals; from the main thread. The end of the launcher is one of them.

        A launcher that has ended before this rank could ask to be told is one, too: it would train on unseen.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reader,), name="signals", daemon=True).start()
        for number in STOP_SIGNALS:
            signal.signal(number, self._remember)
        end_with_parent()
        if parent_has_ended(self._parent):
            os.kill(os.getpid(), signal.SIGTERM)

    def training_begins(self) -> None:
        """From now on a stop signal is answered after the step, by a save."""
        self._give_up = None

    def asked(self) -> bool:
        """Whether a stop signal has come."""
        return self.received is not None

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)

    def _watch(self, reader: int) -> None:
        while numbers := os.read(reader, 1):
            if self._give_up is not None and numbers[0] in STOP_SIGNALS:
                self._give_up()
