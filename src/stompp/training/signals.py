"""Being asked to stop, without stopping in the middle of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether the process has been asked to stop."""

    signal: int | None = None


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request; a second SIGINT interrupts at once.

    A second SIGTERM does not: those who end a process group and then each process send two, and mean one.
    """
    request = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        if request.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = request.signal or number

    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals; whoever runs us in another one stops us otherwise
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
