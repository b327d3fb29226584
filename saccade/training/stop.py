"""Stopping a run from outside: what SIGTERM and Ctrl-C do, in every phase of it.

A signal is a request. Work that can be done again (preparing, evaluating) is left at once, a step
between its parts; an update and a save are finished first. Whoever does not answer in time (a long
computation outside Python) is ended by a thread: a step or an evaluation, which change nothing that
is saved, with all saved; the rest without, for a run can always go on from what is on the disk.
Imports no torch, so that the command line listens from its first moment.
"""

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Self

PATIENCE_SECONDS = 3.0  # seconds between a signal and a thread's save, where one is possible
GRACE_SECONDS = 8.0  # ... and the end, whatever the process is doing then
EXIT_CODE = 75  # stopped, with all saved
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(BaseException):
    """The request to stop, in the midst of work that is left at once."""


class Stop:
    """Whether somebody has asked the run to stop; `with Stop() as stop` listens to signals."""

    def __init__(self) -> None:
        self.asked = False
        self.folder: Path | None = None  # of the run, once there is something to go on from
        self._leave = False  # whether the work at hand may be left
        self._saving = False
        self._save: Callable[[], object] | None = None
        self._lock = threading.Lock()  # of `_save`
        self._before: dict[int, Any] = {}
        self._over = threading.Event()
        self._grace, self._speaks = GRACE_SECONDS, True

    def with_others(self, grace: float, speaks: bool) -> None:
        """This process is one of several: all have so many seconds, and one speaks for them."""
        self._grace, self._speaks = grace, speaks

    def __call__(self) -> bool:
        return self.asked

    def answer(self) -> None:
        """Interrupted, if somebody has asked: for work that is left only between its parts."""
        if self():
            raise Interrupted

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a request to stop is an Interrupted, raised at once."""
        before = self._leave  # one may be inside another
        try:
            self._leave = True
            self.answer()
            yield
        finally:
            self._leave = before

    @contextmanager
    def saving(self) -> Iterator[None]:
        """While saving, the watchdog does not kill the process."""
        self._saving = True
        try:
            yield
        finally:
            self._saving = False

    @contextmanager
    def unchanged(self, save: Callable[[], object]) -> Iterator[None]:
        """Inside, nothing changes that `save` writes.

        A thread calls it if a signal is not answered, and ends the process; nobody leaves then.
        """
        self._save = save
        try:
            yield
        finally:
            with self._lock:
                self._save = None

    # --- signals ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._waked = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._waked)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._over.set()
        os.close(self._writer)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked and number == signal.SIGINT:
            os._exit(130)
        first, self.asked = not self.asked, True
        if first and self._leave:
            raise Interrupted

    def _watch(self, reader: int) -> None:
        """Read the signals' bytes, which arrive even while a computation keeps `_ask` waiting."""
        asked = False
        with suppress(OSError):
            while byte := os.read(reader, 1):
                if asked and byte[0] == signal.SIGINT:
                    os._exit(130)
                if not asked and byte[0] in SIGNALS:
                    asked = True
                    self._tell("stopping; a second Ctrl-C ends the process at once")
                    threading.Thread(target=self._end, daemon=True).start()
        os.close(reader)

    def _end(self) -> None:
        """End the process if it does not answer in time, if possible with all saved."""
        if self._over.wait(PATIENCE_SECONDS):
            return
        with self._lock:  # to the end, if there is something to save
            if self._save is not None:
                try:
                    self._save()
                except Exception as error:  # such as a full disk
                    _say(f"saccade: {error}")
                    os._exit(2)
                self._exit("all is saved")
        if self._over.wait(self._grace - PATIENCE_SECONDS):
            return
        while self._saving and not self._over.wait(0.05):
            pass
        if not self._over.is_set():
            self._exit("stopped")

    def _exit(self, how: str) -> NoReturn:
        again = f"; go on with: saccade resume {shlex.quote(str(self.folder))}"
        self._tell(how + again if self.folder else how)
        os._exit(EXIT_CODE)

    def _tell(self, text: str) -> None:
        if self._speaks:
            _say(text)


def _say(text: str) -> None:
    with suppress(OSError):  # a terminal that is gone is no reason to fail
        place = sys.stderr.fileno() if sys.stderr else 2
        clear = "\r\x1b[2K\x1b[?25h" if os.isatty(place) else ""  # no bar; a cursor
        os.write(place, f"{clear}{text}\n".encode())
