"""Batches in order, made ahead of time by threads if there are any.

Which batch has which number is a function of the seed and the epoch, so that neither the number of
threads nor their speed changes what is trained on.
"""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from saccade.data.batches import Batch, Corpus
from saccade.errors import CheckpointError
from saccade.tasks.task import Batches, Task

AHEAD = 4  # batches for each worker


class Loader:
    """The batches of every epoch, by number."""

    def __init__(self, task: Task, corpus: Corpus, workers: int = 0):
        self.task, self.corpus, self.workers = task, corpus, workers
        self.pool = ThreadPoolExecutor(workers, "loader") if workers else None
        self.number, self.current = -1, None  # type: int, Batches | None
        self.coming: Future[Batches] | None = None  # the next epoch's
        self.ahead: deque[tuple[int, int, Future[Batch]]] = deque()

    def epoch(self, number: int) -> Batches:
        """The batches of an epoch."""
        if number != self.number or self.current is None:
            due = self.coming if number == self.number + 1 else None
            self.number = number
            self.current = due.result() if due else self.task.epoch(self.corpus, number)
            if self.pool:
                self.coming = self.pool.submit(self.task.epoch, self.corpus, number + 1)
        return self.current

    def take(self, number: int, start: int, count: int) -> list[Batch]:
        """So many batches of an epoch, or as many as it still has."""
        epoch = self.epoch(number)
        if start >= len(epoch):
            raise CheckpointError(f"the checkpoint is at batch {start} of {len(epoch)}: train anew")
        stop = min(start + count, len(epoch))
        if self.pool is None:
            return [epoch[i] for i in range(start, stop)]
        if self.ahead and self.ahead[0][:2] != (number, start):
            self.ahead.clear()
        first = self.ahead[-1][1] + 1 if self.ahead else start
        last = min(max(stop, start + AHEAD * self.workers), len(epoch))
        for i in range(first, last):
            self.ahead.append((number, i, self.pool.submit(epoch.__getitem__, i)))
        return [self.ahead.popleft()[2].result() for _ in range(start, stop)]

    def close(self) -> None:
        if self.pool:
            self.pool.shutdown(wait=False, cancel_futures=True)
