"""Work on a long supply of items by several processes: results in order, bounded memory.

The processes are copies of this one, made when there is enough to do, so that they have what it
has. They end with it, however it ends.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from saccade.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 2  # items under way for each process
PARENT_CHECK_SECONDS = 0.25
_work: Callable[[Any], Any] | None = None  # of the copies, which cannot be sent a function


def cores() -> int:
    """The cores that this process may use; where the system does not tell, all there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_processes(
    work: Callable[[Item], Result], items: Iterable[Item], processes: int, after: int
) -> Iterator[Result]:
    """What `work` makes of each item, in order; the first `after` of them are done here."""
    supply = iter(items)
    yield from map(work, islice(supply, after))
    first = next(supply, None)
    if first is None:
        return
    if processes < 2 or sys.platform == "win32":
        yield work(first)
        yield from map(work, supply)
        return
    global _work
    before, _work = _work, work
    waiting: deque[Future[Result]] = deque()
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(processes, context, _start, (os.getpid(),))
    try:
        waiting.append(pool.submit(_do, first))
        for item in supply:
            waiting.append(pool.submit(_do, item))
            if len(waiting) >= AHEAD * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise DataError(
            "a data worker was killed, possibly out of memory: free some memory and try again"
        ) from None
    finally:
        _work = before
        running = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            with suppress(OSError, ValueError):
                process.kill()


def _start(parent: int) -> None:
    """Answer no signal that is for the parent, and end when it has ended."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    exit_with_parent(parent)


def exit_with_parent(parent: int, wait: Callable[[float], Any] = time.sleep) -> None:
    """From now on, end this process when its parent has ended, however that was.

    `wait` waits so many seconds; where it returns something true, the process ends at once.
    """

    def watch() -> None:
        while os.getppid() == parent and not wait(PARENT_CHECK_SECONDS):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _do(item: Any) -> Any:
    assert _work is not None
    return _work(item)
