"""What every task does: text to ids, a network, a loss, predictions, scores and metrics.

The tasks stand side by side in this room; training, the command line and the server know only this
page.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from saccade import config as c
from saccade.data.batches import Batch, Corpus
from saccade.decoding.tree import Tree
from saccade.models.build import Network, materialize
from saccade.nn.dropout import uniform
from saccade.nn.loss import Loss
from saccade.text.vocab import UNK

Source = tuple[str, ...]
Target = str | tuple[str, ...] | None
Pair = tuple[Source, Target]
Columns = tuple[list[list[int]], list[list[int]], list[list[int]]]  # source, target, words
Item = TypeVar("Item")
Result = TypeVar("Result")


class Query(NamedTuple):
    """One input: its columns, its number among the inputs, and how its output has to begin."""

    source: Source
    number: int = 0
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted of a prediction."""

    decode: c.Decode | c.Exact
    nbest: int = 1
    scored: bool = True  # where only the text is wanted, greedy search is faster without
    details: bool = False  # each token's log-probability and alternatives, and the beam's tree
    others: tuple["Member", ...] = ()  # to decide together with
    model: "Member | None" = None  # a language model for shallow fusion
    permitted: Sequence[list[int]] | None = None  # the outputs in the file decode.only, once read


class Member(NamedTuple):
    """A task and its network, where several speak together."""

    task: Any
    network: Any


class Token(NamedTuple):
    """A token of an output as it is written, its log-probability, and what it was preferred to."""

    text: str
    log_p: float
    alternatives: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model makes of one input: the best text, its score, and the runners-up."""

    text: str
    score: float  # log-probability
    others: tuple[tuple[str, float], ...] = ()
    problem: str = ""  # why there is no text
    tokens: tuple[Token, ...] = ()  # where details were asked for
    tree: Tree | None = None


class Batches(Protocol):
    """The batches of an epoch, by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> Batch: ...
    def __iter__(self) -> Iterator[Batch]: ...


class Task(ABC):
    """A task with its vocabularies; a network is always an argument, never kept."""

    higher_is_better: ClassVar[bool] = True

    def __init__(self, config: c.Config):
        self.config = config

    @property
    @abstractmethod
    def metric(self) -> str:
        """The name of the metric by which the best model is chosen."""

    @classmethod
    @abstractmethod
    def fit(cls, config: c.Config, pairs: Callable[[], Iterable[Pair]]) -> "Task":
        """The task with vocabularies made from the training examples, which may be read twice."""

    @classmethod
    @abstractmethod
    def load(cls, config: c.Config, folder: Path) -> "Task":
        """The task with the vocabularies of a run."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the vocabularies into a run."""

    @abstractmethod
    def encode(self, pairs: Sequence[Pair]) -> Columns:
        """Examples as rows of ids."""

    @abstractmethod
    def build_meta(self) -> Network:
        """The network of the configuration, without memory: shapes alone."""

    def build(self) -> Network:
        """The network of the configuration, with its first weights."""
        return materialize(self.build_meta(), self.config.seed)

    @abstractmethod
    def epoch(self, corpus: Corpus, number: int) -> Batches:
        """The training batches of an epoch."""

    @abstractmethod
    def loss(self, network: Any, batch: Batch, carry: Any, progress: float) -> tuple[Loss, Any]:
        """The loss of a batch, and what to carry to the next; `progress` goes from 0 to 1."""

    def carry(self, network: Any, rows: int) -> Any:
        """The form of what `loss` carries from batch to batch, for so many rows; None for most."""
        return None

    @abstractmethod
    def evaluate(
        self, network: Any, corpus: Corpus, pairs: Sequence[Pair], quick: bool
    ) -> dict[str, float]:
        """The metrics on these examples; `quick` searches greedily, as is enough while training."""

    @abstractmethod
    def predict(self, network: Any, queries: Sequence[Query], request: Request) -> list[Prediction]:
        """A prediction for each query, in order."""

    @abstractmethod
    def score(self, network: Any, pairs: Sequence[Pair]) -> list[tuple[float, int]]:
        """For each example log p(target | source), and of how many tokens."""


def device_of(network: torch.nn.Module) -> torch.device:
    return next(network.parameters()).device


def in_batches(
    items: Sequence[Item],
    lengths: Sequence[int],
    budget: int,
    work: Callable[[list[Item]], Sequence[Result]],
    *,
    equal: bool = False,
) -> list[Result]:
    """The results of `work` in the items' order, done in batches of like lengths within a budget.

    The budget is in tokens. With `equal` all lengths in a batch are the same.
    """
    results: dict[int, Result] = {}
    for rows in cut(lengths, budget, equal=equal):
        results.update(zip(rows, work([items[i] for i in rows]), strict=True))
    return [results[i] for i in range(len(items))]


def cut(
    lengths: Sequence[int], budget: int, most: int = sys.maxsize, *, equal: bool = False
) -> Iterator[list[int]]:
    """Batches of like lengths, the shortest first, of at most so many tokens and rows each."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < min(len(order), start + most):
            longest = lengths[order[stop]]
            if longest * (stop - start + 1) > budget or (equal and longest > lengths[order[start]]):
                break
            stop += 1
        yield order[start:stop]
        start = stop


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of `size`."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def drop_words(tokens: Tensor, share: float, first_word: int = UNK + 4) -> Tensor:
    """The ids with a share of the words, but no special token, replaced by <unk>."""
    if share == 0.0:
        return tokens
    dropped = (uniform(tokens.shape, tokens.device) < share) & (tokens >= first_word)
    return tokens.masked_fill(dropped, UNK)
