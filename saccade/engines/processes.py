"""A process for each core, with one thread each.

A step of a small model is too short to be shared by threads; whole batches are not.
"""

import multiprocessing
import os
import signal
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from saccade.engines.local import Pending
from saccade.errors import SaccadeError
from saccade.tasks.task import Prediction, Query, Request, Task

SHARES_PER_WORKER = 4  # so that none waits long for the others at the end


class ProcessEngine:
    """Copies of this process, forked at the first request, which share what they were forked with.

    Other models and lists of permitted outputs are shared that way, too: a request with others
    than the one before it needs new copies.
    """

    def __init__(self, task: Task, network: torch.nn.Module, count: int):
        self.task, self.network, self.count = task, network, count
        self._pool: ProcessPoolExecutor | None = None
        self._forked_with: Request | None = None

    def submit(self, queries: Sequence[Query], request: Request) -> Pending:
        """Like lengths together, the longest first, in shares that are handed out one by one."""
        order = sorted(
            range(len(queries)), key=lambda i: -sum(len(text) for text in queries[i].source)
        )
        size = max(1, -(-len(order) // (self.count * SHARES_PER_WORKER)))
        shares = [order[i : i + size] for i in range(0, len(order), size)]
        light = replace(request, others=(), model=None, permitted=None)
        work = [partial(_predict, [queries[i] for i in some], light) for some in shares]
        try:
            pool = self._pool_for(request)
            futures = [pool.submit(one) for one in work]
        except BrokenProcessPool:  # a process was ended since the last request
            self.close()
            pool = self._pool_for(request)
            futures = [pool.submit(one) for one in work]
        return Pending(lambda: self._collect(shares, futures), futures)

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
                "a worker process was ended from outside, perhaps for want of memory; "
                "try again with --set decode.workers=1 or a smaller decode.batch_tokens"
            ) from None
        return [done[i] for i in range(len(done))]

    def _pool_for(self, request: Request) -> ProcessPoolExecutor:
        known = self._forked_with
        if self._pool is not None and known is not None and _share_heavy_parts(known, request):
            return self._pool
        if self._pool is not None:
            self._pool.shutdown(wait=False)  # after what it is still doing
        self._forked_with = request
        self._pool = ProcessPoolExecutor(
            self.count,
            mp_context=multiprocessing.get_context("fork"),
            initializer=_begin,
            initargs=(self.task, self.network, request),
        )
        with warnings.catch_warnings():  # later Pythons warn of threads that a copy does not have
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pool.submit(int)  # forks now
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._forked_with = None


def _share_heavy_parts(one: Request, other: Request) -> bool:
    """Whether two requests have the very same models and permitted outputs."""
    models = one.others == other.others and one.model == other.model
    return models and one.permitted is other.permitted


def cores() -> int:
    """The cores that this process may use; where the system does not tell, all there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_mine: tuple[Any, ...] = ()  # of a worker: the task, the network, and the request it began with


def _begin(task: Task, network: torch.nn.Module, request: Request) -> None:
    global _mine
    _mine = task, network, request
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asked
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _predict(queries: list[Query], light: Request) -> list[Prediction]:
    task, network, first = _mine
    request = replace(light, others=first.others, model=first.model, permitted=first.permitted)
    return list(task.predict(network, queries, request))
