"""A process for each core, with one thread each.

A step of a small model is too short to be shared by threads; whole batches are not.

A worker ends at once when its engine is closed, collected or interrupted, and within a quarter of a
second when the process that forked it has ended, even by kill -9.
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

SHARES_PER_WORKER = 4  # so that all end at nearly the same time
SLOTS = 4096  # for concurrent requests


class ProcessEngine:
    """Copies of this process, forked at the first request, which share its memory.

    Other models and lists of permitted outputs are shared that way, too: a request with others
    than the one before it needs new copies. A single copy leaves this process free for other work,
    and gets a batch undivided.
    """

    def __init__(self, task: Task, network: torch.nn.Module, count: int):
        self.task, self.network, self.count = task, network, count
        self._workers: _Workers | None = None
        self._forked_with: Request | None = None

    def fork(self, request: Request) -> None:
        """Fork now, for requests with the same other models and permitted outputs."""
        self._workers_for(request)

    def submit(self, queries: Sequence[Query], request: Request) -> Pending:
        """Queries sorted by length, the longest first, in shares that workers take one by one."""
        order = sorted(
            range(len(queries)), key=lambda i: -sum(len(text) for text in queries[i].source)
        )
        each = SHARES_PER_WORKER if self.count > 1 else 1
        size = max(1, -(-len(order) // (self.count * each)))
        shares = [order[i : i + size] for i in range(0, len(order), size)]
        stripped = replace(request, others=(), model=None, permitted=None)
        parts = [[queries[i] for i in some] for some in shares]
        try:
            workers = self._workers_for(request)
            futures, slot = workers.submit(parts, stripped)
        except BrokenProcessPool:  # a process was ended since the last request
            self.close()
            workers = self._workers_for(request)
            futures, slot = workers.submit(parts, stripped)
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
            self.close()  # their results are not needed
            raise
        return [done[i] for i in range(len(done))]

    def _workers_for(self, request: Request) -> "_Workers":
        known = self._forked_with
        if self._workers is not None and known is not None and _same_models(known, request):
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
    """A pool of forked processes, which end when a byte is written into a pipe.

    Abandoned requests are marked in shared memory, as a pool that is ended while it has cancelled
    futures fails noisily before Python 3.12.
    """

    def __init__(self, count: int, task: Task, network: torch.nn.Module, request: Request):
        pipe = os.pipe()
        self.submitted = 0
        self.abandoned = mmap.mmap(-1, SLOTS)
        self.pool = ProcessPoolExecutor(
            count,
            mp_context=multiprocessing.get_context("fork"),
            initializer=_init_worker,
            initargs=(task, network, request, self.abandoned, os.getpid(), pipe[0]),
        )
        self.end = weakref.finalize(self, _end_workers, self.pool, pipe, os.getpid())
        # SIGPIPE ends the command line; in the pool's own threads a broken pipe is an error.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        with warnings.catch_warnings():  # later Pythons warn of forking with threads
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


def _end_workers(pool: ProcessPoolExecutor, pipe: tuple[int, int], owner: int) -> None:
    """End a pool's processes at once; a copy of the owner in another process ends nothing."""
    if os.getpid() != owner:
        return
    pool.shutdown(wait=False, cancel_futures=True)
    os.write(pipe[1], b".")
    for descriptor in pipe:
        os.close(descriptor)


def _same_models(one: Request, other: Request) -> bool:
    """Whether two requests have the same models and permitted outputs, by identity."""
    models = one.others == other.others and one.model == other.model
    return models and one.permitted is other.permitted


_worker_state: tuple[Any, ...] = ()  # of a worker, set by `_init_worker`


def _init_worker(
    task: Task,
    network: torch.nn.Module,
    request: Request,
    abandoned: mmap.mmap,
    parent: int,
    pipe: int,
) -> None:
    global _worker_state
    ended = select.poll()
    ended.register(pipe, select.POLLIN)
    exit_with_parent(parent, lambda seconds: ended.poll(1000 * seconds))
    _worker_state = task, network, request, abandoned
    torch.set_num_threads(1)
    gc.freeze()  # keeps forked memory shared: the collector writes into objects that it visits
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to a whole group: the parent ends workers


def _predict(queries: list[Query], stripped: Request, slot: int) -> list[Prediction]:
    task, network, first, abandoned = _worker_state
    if abandoned[slot]:
        return []
    request = replace(stripped, others=first.others, model=first.model, permitted=first.permitted)
    return list(task.answer(network, queries, request))
