"""The interface of engines, and the one that computes in this process with all its threads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from saccade.tasks.task import Prediction, Query, Request, Task


@dataclass(frozen=True, slots=True)
class Pending:
    """Predictions in progress; `finish` waits for them, in the order of their queries."""

    finish: Callable[[], list[Prediction]]
    abandon: Callable[[], object] = tuple

    def result(self) -> list[Prediction]:
        return self.finish()

    def cancel(self) -> None:
        """Drop the work that has not started."""
        self.abandon()


class Engine(Protocol):
    """Computes predictions, for one request after the other."""

    def submit(self, queries: Sequence[Query], request: Request) -> Pending: ...
    def close(self) -> None: ...


class LocalEngine:
    """This process: every model and every request."""

    def __init__(self, task: Task, network: torch.nn.Module):
        self.task, self.network = task, network

    def submit(self, queries: Sequence[Query], request: Request) -> Pending:
        predictions = self.task.answer(self.network, queries, request)
        return Pending(lambda: predictions)

    def close(self) -> None:
        pass
