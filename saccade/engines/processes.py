"""Who does the predicting: this process, or one for each core with one thread each.

A step of a small model is too short to be shared by threads; whole batches are not.
"""

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

import torch

from saccade import config as c
from saccade.errors import SaccadeError
from saccade.nn.watch import watched
from saccade.tasks.task import Prediction, Query, Request, Task, device_of

PIECES = 4  # for each worker, so that none waits long for the others at the end
FEW = 32  # queries that are not worth other processes


class Pending(Protocol):
    """Predictions that are being made."""

    def result(self) -> list[Prediction]: ...


class Predictor(Protocol):
    """What makes predictions of queries, at once or in the background."""

    def submit(self, queries: Sequence[Query]) -> Pending: ...
    def close(self) -> None: ...


class Ready:
    """Predictions that have been made."""

    def __init__(self, predictions: list[Prediction]):
        self.predictions = predictions

    def result(self) -> list[Prediction]:
        return self.predictions


class Here:
    """This process, with all its threads."""

    def __init__(self, task: Task, network: torch.nn.Module, request: Request):
        self.task, self.network, self.request = task, network, request

    def submit(self, queries: Sequence[Query]) -> Ready:
        return Ready(self.task.predict(self.network, queries, self.request))

    def close(self) -> None:
        pass


class Workers:
    """Copies of this process, of one thread each; what they were made with, they share."""

    def __init__(self, task: Task, network: torch.nn.Module, request: Request, count: int):
        self.count = count
        self.pool = ProcessPoolExecutor(
            count,
            mp_context=multiprocessing.get_context("fork"),
            initializer=_begin,
            initargs=(task, network, request),
        )
        with warnings.catch_warnings():  # later Pythons warn of threads that a copy does not have
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pool.submit(int)  # copies this process now

    def submit(self, queries: Sequence[Query]) -> "Pieces":
        """Like lengths together, the longest first, in pieces that are shared out one by one."""
        order = sorted(
            range(len(queries)), key=lambda i: -sum(len(text) for text in queries[i].source)
        )
        size = max(1, -(-len(order) // (self.count * PIECES)))
        parts = [order[i : i + size] for i in range(0, len(order), size)]
        return Pieces(
            [(part, self.pool.submit(_predict, [queries[i] for i in part])) for part in parts]
        )

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


class Pieces:
    """Predictions that workers are making: each piece with its places."""

    def __init__(self, parts: list[tuple[list[int], "Future[list[Prediction]]"]]):
        self.parts = parts

    def result(self) -> list[Prediction]:
        done: dict[int, Prediction] = {}
        try:
            for places, future in self.parts:
                done.update(zip(places, future.result(), strict=True))
        except BrokenProcessPool:
            raise SaccadeError(
                "a worker process was ended from outside, perhaps for want of memory; "
                "try again with --set decode.workers=1 or a smaller decode.batch_tokens"
            ) from None
        return [done[i] for i in range(len(done))]


def count_workers(decode: c.Decode, network: torch.nn.Module, queries: int) -> int:
    """How many processes predict fastest: one for each core of a CPU, if there is enough to do."""
    if decode.workers:
        return decode.workers
    fork = sys.platform == "linux" and device_of(network).type == "cpu" and not watched()
    return cores() if fork and queries >= FEW else 1


def cores() -> int:
    """The cores that this process may use; where the system does not tell, all there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_mine: tuple[Any, ...] = ()  # of a worker: the task, the network and the request


def _begin(task: Task, network: torch.nn.Module, request: Request) -> None:
    global _mine
    _mine = task, network, request
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asked
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _predict(queries: list[Query]) -> list[Prediction]:
    task, network, request = _mine
    return list(task.predict(network, queries, request))
