"""A parallel map over many items: results in order, bounded memory.

Worker processes are forked once there is enough to do, and so inherit this process's state. They
exit with their parent, even if it is killed.
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

AHEAD = 2  # items in flight for each process
PARENT_CHECK_SECONDS = 0.25
_work: Callable[[Any], Any] | None = None  # inherited by fork: a closure cannot be pickled


def cores() -> int:
    """The number of cores that this process may use; all, where the system has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_processes(
    work: Callable[[Item], Result], items: Iterable[Item], processes: int, after: int
) -> Iterator[Result]:
    """`work` of each item, in order; the first `after` items are done in this process."""
    remaining = iter(items)
    yield from map(work, islice(remaining, after))
    first = next(remaining, None)
    if first is None:
        return
    if processes < 2 or sys.platform == "win32":
        yield work(first)
        yield from map(work, remaining)
        return
    global _work
    previous, _work = _work, work
    pending: deque[Future[Result]] = deque()
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(processes, context, _init_worker, (os.getpid(),))
    try:
        pending.append(pool.submit(_run, first))
        for item in remaining:
            pending.append(pool.submit(_run, item))
            if len(pending) >= AHEAD * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise DataError(
            "a data worker was killed, possibly out of memory: free some memory and try again"
        ) from None
    finally:
        _work = previous
        workers = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in workers:
            with suppress(OSError, ValueError):
                process.kill()


def _init_worker(parent: int) -> None:
    """Leave Ctrl-C to the parent, and exit when it has exited."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    exit_with_parent(parent)


def exit_with_parent(parent: int, wait: Callable[[float], Any] = time.sleep) -> None:
    """Start a thread that exits this process once its parent is gone.

    `wait` sleeps for so many seconds; if it returns something true, the process exits at once.
    """

    def watch() -> None:
        while os.getppid() == parent and not wait(PARENT_CHECK_SECONDS):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run(item: Any) -> Any:
    assert _work is not None
    return _work(item)
