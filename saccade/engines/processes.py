"""A process for each core, with one thread each.

A step of a small model is too short to be shared by threads; whole batches are not.

A worker ends with what made it: at once when its engine is closed, collected or interrupted, and
within a quarter of a second when the process that forked it has gone, even by kill -9.
"""

import gc
import mmap
import multiprocessing
import os
import select
import signal
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from saccade.data.parallel import exit_with_parent
from saccade.engines.local import Pending
from saccade.errors import SaccadeError
from saccade.tasks.task import Prediction, Query, Request, Task

SHARES_PER_WORKER = 4  # so that none waits long for the others at the end
SLOTS = 4096  # of requests that are under way


class ProcessEngine:
    """Copies of this process, forked at the first request, which share what they were forked with.

    Other models and lists of permitted outputs are shared that way, too: a request with others
    than the one before it needs new copies. A single copy leaves this process free for other work:
    it answers a batch whole.
    """

    def __init__(self, task: Task, network: torch.nn.Module, count: int):
        self.task, self.network, self.count = task, network, count
        self._workers: _Workers | None = None
        self._forked_with: Request | None = None

    def begin(self, request: Request) -> None:
        """Fork now, for requests with the same other models and permitted outputs."""
        self._workers_for(request)

    def submit(self, queries: Sequence[Query], request: Request) -> Pending:
        """Like lengths together, the longest first, in shares that are handed out one by one."""
        order = sorted(
            range(len(queries)), key=lambda i: -sum(len(text) for text in queries[i].source)
        )
        each = SHARES_PER_WORKER if self.count > 1 else 1
        size = max(1, -(-len(order) // (self.count * each)))
        shares = [order[i : i + size] for i in range(0, len(order), size)]
        light = replace(request, others=(), model=None, permitted=None)
        parts = [[queries[i] for i in some] for some in shares]
        try:
            workers = self._workers_for(request)
            futures, slot = workers.submit(parts, light)
        except BrokenProcessPool:  # a process was ended since the last request
            self.close()
            workers = self._workers_for(request)
            futures, slot = workers.submit(parts, light)
        return Pending(lambda: self._collect(shares, futures), partial(workers.abandon, slot))

    def _collect(
        self, shares: list[list[int]], futures: list["Future[list[Prediction]]"]
    ) -> list[Prediction]:
        done: dict[int, Prediction] = {}
        try:
            for places, future in zip(shares, futures, strict=True):
                done.update(zip(places, future.result(), strict=True))
        except BrokenProcessPool:
            self.close()  # the next request gets new processes
            raise SaccadeError(
                "a worker process was killed, possibly out of memory; "
                "retry with decode.workers = 1, or with a smaller decode.batch_tokens"
            ) from None
        except KeyboardInterrupt:
            self.close()  # nobody waits for what they are doing
            raise
        return [done[i] for i in range(len(done))]

    def _workers_for(self, request: Request) -> "_Workers":
        known = self._forked_with
        if self._workers is not None and known is not None and _share_heavy_parts(known, request):
            return self._workers
        if self._workers is not None:
            self._workers.pool.shutdown()  # after what it is still doing
            self._workers.end()
        self._forked_with = request
        self._workers = _Workers(self.count, self.task, self.network, request)
        return self._workers

    def close(self) -> None:
        """End the processes at once, whatever they are doing."""
        if self._workers is not None:
            self._workers.end()
        self._workers = self._forked_with = None


class _Workers:
    """A pool of forked processes, and the pipe that tells them to end: once it holds a byte.

    Abandoned requests are marked in memory that all of them share, for a pool that is ended while
    it has cancelled futures fails noisily before Python 3.12.
    """

    def __init__(self, count: int, task: Task, network: torch.nn.Module, request: Request):
        pipe = os.pipe()
        self.submitted = 0
        self.abandoned = mmap.mmap(-1, SLOTS)
        self.pool = ProcessPoolExecutor(
            count,
            mp_context=multiprocessing.get_context("fork"),
            initializer=_begin,
            initargs=(task, network, request, self.abandoned, os.getpid(), pipe[0]),
        )
        self.end = weakref.finalize(self, _end, self.pool, pipe, os.getpid())
        # The command line lets SIGPIPE end it; in the pool's own threads a broken pipe is an error.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        with warnings.catch_warnings():  # later Pythons warn of threads that a copy does not have
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pool.submit(int)  # forks now, and starts the threads
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def submit(
        self, parts: list[list[Query]], request: Request
    ) -> tuple[list["Future[list[Prediction]]"], int]:
        """The results of each part, and the request's slot among those that can be abandoned."""
        slot = self.submitted % SLOTS
        self.submitted, self.abandoned[slot] = self.submitted + 1, 0
        return [self.pool.submit(_predict, some, request, slot) for some in parts], slot

    def abandon(self, slot: int) -> None:
        self.abandoned[slot] = 1


def _end(pool: ProcessPoolExecutor, pipe: tuple[int, int], owner: int) -> None:
    """End a pool's processes at once; a copy of the owner in another process ends nothing."""
    if os.getpid() != owner:
        return
    pool.shutdown(wait=False, cancel_futures=True)
    os.write(pipe[1], b".")
    for descriptor in pipe:
        os.close(descriptor)


def _share_heavy_parts(one: Request, other: Request) -> bool:
    """Whether two requests have the very same models and permitted outputs."""
    models = one.others == other.others and one.model == other.model
    return models and one.permitted is other.permitted


_mine: tuple[Any, ...] = ()  # of a worker: what `_begin` was given, which it was forked with


def _begin(
    task: Task,
    network: torch.nn.Module,
    request: Request,
    abandoned: mmap.mmap,
    parent: int,
    pipe: int,
) -> None:
    global _mine
    ended = select.poll()
    ended.register(pipe, select.POLLIN)
    exit_with_parent(parent, lambda seconds: ended.poll(1000 * seconds))
    _mine = task, network, request, abandoned
    torch.set_num_threads(1)
    gc.freeze()  # what was forked stays shared: the collector writes into what it looks at
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asked
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to a whole group: the asker ends us


def _predict(queries: list[Query], light: Request, slot: int) -> list[Prediction]:
    task, network, first, abandoned = _mine
    if abandoned[slot]:
        return []
    request = replace(light, others=first.others, model=first.model, permitted=first.permitted)
    return list(task.answer(network, queries, request))
