"""Graceful stop: what SIGTERM and Ctrl-C do in each phase of a run.

A signal is a request. Work that can be repeated (preparing, evaluating) is interrupted at once, a
step between its batches; an update and a save are finished first. If the main thread does not
respond in time (a long computation outside Python), a watchdog thread ends the process: during a
step or an evaluation, which change nothing that is saved, it saves first; else it does not, as a
run can always be resumed from what is on disk. Imports no torch, so that the command line handles
signals from its start.
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

PATIENCE_SECONDS = 3.0  # from a signal to a save by the watchdog, where one is possible
GRACE_SECONDS = 8.0  # from a signal to the end of the process
EXIT_CODE = 75  # stopped, with all saved
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(BaseException):
    """The request to stop, raised in interruptible work."""


class Stop:
    """Whether a stop is requested; `with Stop() as stop` handles signals."""

    def __init__(self) -> None:
        self.requested = False
        self.folder: Path | None = None  # of the run, once it can be resumed
        self._interruptible = False
        self._saving = False
        self._save: Callable[[], object] | None = None
        self._lock = threading.Lock()  # of `_save`
        self._old_handlers: dict[int, Any] = {}
        self._closed = threading.Event()
        self._grace, self._prints = GRACE_SECONDS, True

    def in_job(self, grace: float, prints: bool) -> None:
        """This process is one of a job: its grace period, and whether it prints messages."""
        self._grace, self._prints = grace, prints

    def __call__(self) -> bool:
        return self.requested

    def check(self) -> None:
        """Interrupted, if a stop is requested."""
        if self():
            raise Interrupted

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a request to stop is an Interrupted, raised at once."""
        before = self._interruptible  # they may be nested
        try:
            self._interruptible = True
            self.check()
            yield
        finally:
            self._interruptible = before

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

        If the main thread does not respond to a signal, the watchdog calls it and ends the process;
        the block cannot be left meanwhile.
        """
        self._save = save
        try:
            yield
        finally:
            with self._lock:
                self._save = None

    # --- signals ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._old_handlers = {number: signal.signal(number, self._handle) for number in SIGNALS}
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._old_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        self._closed.set()
        os.close(self._writer)

    def _handle(self, number: int, frame: Any) -> None:
        if self.requested and number == signal.SIGINT:
            os._exit(130)
        first, self.requested = not self.requested, True
        if first and self._interruptible:
            raise Interrupted

    def _watch(self, reader: int) -> None:
        """Read the signals' bytes, which arrive even while a computation delays `_handle`."""
        requested = False
        with suppress(OSError):
            while byte := os.read(reader, 1):
                if requested and byte[0] == signal.SIGINT:
                    os._exit(130)
                if not requested and byte[0] in SIGNALS:
                    requested = True
                    self._print("stopping; a second Ctrl-C ends the process at once")
                    threading.Thread(target=self._end_process, daemon=True).start()
        os.close(reader)

    def _end_process(self) -> None:
        """End the process if it does not respond in time, if possible with all saved."""
        if self._closed.wait(PATIENCE_SECONDS):
            return
        with self._lock:  # held until the process ends, if it can be saved
            if self._save is not None:
                try:
                    self._save()
                except Exception as error:  # such as a full disk
                    _write(f"saccade: {error}")
                    os._exit(2)
                self._exit("all is saved")
        if self._closed.wait(self._grace - PATIENCE_SECONDS):
            return
        while self._saving and not self._closed.wait(0.05):
            pass
        if not self._closed.is_set():
            self._exit("stopped")

    def _exit(self, outcome: str) -> NoReturn:
        hint = f"; go on with: saccade resume {shlex.quote(str(self.folder))}"
        self._print(outcome + hint if self.folder else outcome)
        os._exit(EXIT_CODE)

    def _print(self, text: str) -> None:
        if self._prints:
            _write(text)


def _write(text: str) -> None:
    with suppress(OSError):  # the terminal may be closed
        place = sys.stderr.fileno() if sys.stderr else 2
        clear = "\r\x1b[2K\x1b[?25h" if os.isatty(place) else ""  # clear the bar, show the cursor
        os.write(place, f"{clear}{text}\n".encode())
