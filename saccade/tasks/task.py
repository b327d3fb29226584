"""The interface of a task: examples to ids, a network, predictions, scores and metrics.

Training, the command line and the server know only this module. A task is its fields; the loss is
the network's own.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from saccade import config as c
from saccade.data.batches import Batch, Batches, collate, epoch_of
from saccade.data.corpora import Corpus, open_corpus
from saccade.data.fields import Field, SourceLabels, Text
from saccade.data.kinds import Counting, Vocabularies, cell_of
from saccade.data.lines import Example, Target
from saccade.data.media import Features, Fitting, MediaField
from saccade.decoding.tree import Tree
from saccade.models.build import Target as TargetSpec
from saccade.models.build import build_meta, materialize
from saccade.models.networks import Network

NO_VOCABULARIES = Vocabularies()
Source = tuple[str, ...]
Item = TypeVar("Item")
Result = TypeVar("Result")
TOO_LONG = "longer than the model's positions: shorten it"
Evaluation = Generator[float, None, dict[str, float]]  # yields the share done, returns the metrics


class Query(NamedTuple):
    """One input: its columns, its number among the inputs, and the prefix of its output."""

    source: Source
    number: int = 0
    prefix: str = ""
    problem: str = ""  # why it cannot be read
    seed: int | None = None  # of sampling; None is that of the request
    stopped: Callable[[], bool] | None = None  # whether the request was cancelled


@dataclass(frozen=True, slots=True)
class Request:
    """The settings of a prediction."""

    decode: c.Decode | c.Exact
    nbest: int = 1
    scored: bool = True  # greedy search is faster without scores
    details: bool = False  # each token's log-probability and alternatives, and the beam's tree
    others: tuple["Member", ...] = ()  # of the ensemble
    model: "Member | None" = None  # a language model for shallow fusion
    permitted: Sequence[list[int]] | None = None  # the outputs in the file decode.only, once read


class Member(NamedTuple):
    """A task and its network: a member of an ensemble, or a fusion model."""

    task: Any
    network: Any


class Token(NamedTuple):
    """A token of an output as text, its log-probability, and the likeliest in its place."""

    text: str
    log_p: float
    alternatives: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The result for one input: the best text, its score, and the runners-up."""

    text: str
    score: float  # log-probability
    others: tuple[tuple[str, float], ...] = ()
    problem: str = ""  # why there is no text
    tokens: tuple[Token, ...] = ()  # where details were asked for
    tree: Tree | None = None
    unknown: int = 0  # characters or words of the input that the model has no token for
    unknown_units: tuple[str, ...] = ()  # the distinct ones


class Task(ABC):
    """A task with its fields; a network is always an argument, never kept."""

    source_name: ClassVar[str] = "source"  # of the files of fields in a run
    target_name: ClassVar[str] = "target"
    higher_is_better: ClassVar[bool] = True
    fills: ClassVar[bool] = False  # whether an input may contain <mask>
    ranks: ClassVar[bool] = False  # whether a task without a search has runners-up
    # keys of the table decode that a task without a search uses, besides those of the computation
    decode_keys: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: c.Config, sources: tuple[Field, ...], target: Field):
        self.config = config
        self.sources = sources
        self.target = target
        self.columns = [source.columns for source in config.task.sources(config.data.source)]
        # sources whose cells may be unreadable: a missing file, an unknown label
        self.fallible = [
            i for i, f in enumerate(sources) if isinstance(f, MediaField | SourceLabels)
        ]

    @property
    def reads_media(self) -> bool:
        """Whether an example may refer to other files."""
        return bool(self.fallible) or isinstance(self.target, MediaField)

    @property
    def fields(self) -> tuple[Field, ...]:
        return (*self.sources, self.target)

    @property
    @abstractmethod
    def metric(self) -> str:
        """The name of the metric that selects the best model."""

    @classmethod
    @abstractmethod
    def fit(
        cls,
        config: c.Config,
        examples: Callable[[], Iterable[Example]],
        given: Vocabularies = NO_VOCABULARIES,
    ) -> "Task":
        """The task with fields fitted to the training examples, which may be read twice.

        A field with a vocabulary in `given` takes it unchanged.
        """

    @classmethod
    @abstractmethod
    def load(cls, config: c.Config, folder: Path) -> "Task":
        """The task with the fields of a run."""

    def save(self, folder: Path) -> None:
        """Write the fields into a run."""
        for name, field in zip(self.files(len(self.sources)), self.fields, strict=True):
            field.save(folder / name)

    @classmethod
    def files(cls, sources: int) -> list[str]:
        """The files of the fields in a run: source.json, source2.json, ..., target.json."""
        numbers = ["", *range(2, sources + 1)][:sources]
        return [*(f"{cls.source_name}{n}.json" for n in numbers), f"{cls.target_name}.json"]

    def read(
        self, examples: Sequence[Source], rows: Sequence[Example] | None = None
    ) -> list[Sequence[Any]]:
        """For each source field the cells of its columns.

        `rows` are the examples themselves, where media are relative to the files they are from.
        """
        cells: list[Sequence[Any]] = [examples] * len(self.sources)
        if len(self.sources) > 1:
            cells = [
                [_columns_of(source, columns) for source in examples] for columns in self.columns
            ]
        for i in self.fallible:
            if isinstance(self.sources[i], MediaField):
                places = [("", "")] * len(examples)
                if rows is not None:
                    places = [(row.file, row.where) for row in rows]
                root = self.config.data.root
                pairs = zip(cells[i], places, strict=True)
                cells[i] = [cell_of(texts, *place, root) for texts, place in pairs]
        return cells

    def unknown_in(self, source: Source) -> list[str]:
        """The characters (or words) of an input that the model has no token for."""
        unknown: list[str] = []
        for field, columns in zip(self.sources, self.columns, strict=False):
            if isinstance(field, Text):
                for text in source if len(self.sources) == 1 else _columns_of(source, columns):
                    unknown += field.tokenizer.unknown(text)
        return unknown

    def encode(self, examples: Sequence[Example]) -> Corpus:
        """Examples as rows of ids: a row for each reference."""
        rows = [(row, target) for row in examples for target in row.references]
        cells = self.read([row.source for row, _ in rows], [row for row, _ in rows])
        sources = tuple(f.encode(some) for f, some in zip(self.sources, cells, strict=True))
        return Corpus(sources, self.target.encode(self.target_cells(rows)))

    def target_cells(self, rows: Sequence[tuple[Example, Target]]) -> Sequence[Any]:
        """The cells of the target field for examples and their targets."""
        return [target for _, target in rows]

    def open_corpus(self, folder: Path, split: str) -> Corpus:
        """The corpus of a run's data."""
        return open_corpus(folder, split, [field.open for field in self.fields])

    def remember(self, corpus: Corpus, examples: Sequence[Example]) -> None:
        """Read the media of these examples from the corpus, not from their files."""
        first = np.cumsum([0, *(len(row.references) for row in examples)])[:-1].tolist()
        for i in self.fallible:
            field, column = self.sources[i], corpus.sources[i]
            if isinstance(field, MediaField) and isinstance(column, Features):
                cells = self.read([row.source for row in examples])[i]
                field.remember([cell.text for cell in cells], column, first)
        if isinstance(self.target, MediaField) and isinstance(corpus.target, Features):
            self.target.remember([str(row.target) for row in examples], corpus.target, first)

    def build_meta(self) -> Network:
        """The network of the configuration on the meta device: shapes alone."""
        sources = [f.vectors if isinstance(f, MediaField) else f.inventory for f in self.sources]
        return build_meta(self.config, sources, self.target_spec)

    @property
    def target_spec(self) -> TargetSpec:
        """What a network has to know about the target."""
        return self.target.inventory

    def build(self) -> Network:
        """The network of the configuration, initialised."""
        return materialize(self.build_meta(), self.config.seed)

    def epoch(self, corpus: Corpus, number: int) -> Batches:
        """The training batches of an epoch."""
        return epoch_of(corpus, self.config.train.batch_tokens, self.config.seed, number)

    def sample(self, examples: Sequence[Example]) -> Batch:
        """Examples as a batch, each in a row of its own: for `verify`."""
        return collate(self.encode(examples), np.arange(len(examples)))

    @abstractmethod
    def evaluating(
        self, network: Any, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> Evaluation:
        """The metrics on these examples; `quick` searches greedily, for use during training."""

    def evaluate(
        self, network: Any, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> dict[str, float]:
        """The same, without its progress."""
        return result_of(self.evaluating(network, corpus, examples, quick))

    def report(self, scores: dict[str, float]) -> list[str]:
        """The metrics as printed lines."""
        return [f"{name}\t{value:.4f}" for name, value in scores.items()]

    @abstractmethod
    def predict(self, network: Any, queries: Sequence[Query], request: Request) -> list[Prediction]:
        """A prediction for each query, in order."""

    def answer(self, network: Any, queries: Sequence[Query], request: Request) -> list[Prediction]:
        """The same; the prediction for an unreadable input is its problem."""
        problems = self.problems(queries)
        if not problems:
            return self.predict(network, queries, request)
        readable = [query for i, query in enumerate(queries) if i not in problems]
        predictions = iter(self.predict(network, readable, request) if readable else ())
        return [
            Prediction("", 0.0, problem=problems[i]) if i in problems else next(predictions)
            for i in range(len(queries))
        ]

    def problems(self, queries: Sequence[Query]) -> dict[int, str]:
        """Why queries cannot be read, by their index."""
        problems: dict[int, str] = {}
        if not self.fallible:
            return problems
        cells = self.read([query.source for query in queries])
        for i in self.fallible:
            field = self.sources[i]
            assert isinstance(field, MediaField | SourceLabels)
            for number, cell in enumerate(cells[i]):
                if number not in problems and (problem := field.problem(cell)):
                    problems[number] = problem
        return problems

    def too_long(self, queries: Sequence[Query]) -> dict[int, str]:
        """The queries that have more tokens than the encoder has learned positions."""
        limit = max_positions(self.config.encoder)
        if limit == sys.maxsize or self.fallible:  # media have no learned positions
            return {}
        cells = self.read([query.source for query in queries])
        columns = [f.encode(some) for f, some in zip(self.sources, cells, strict=True)]
        together = np.sum if self.config.task.early else np.max
        lengths = together([column.lengths for column in columns], 0)
        return dict.fromkeys(np.flatnonzero(lengths > limit).tolist(), TOO_LONG)

    @abstractmethod
    def score(self, network: Any, examples: Sequence[Example]) -> list[tuple[float, int]]:
        """For each example log p(target | source), and its number of tokens."""


def advance(evaluation: Evaluation) -> tuple[float, dict[str, float] | None]:
    """The share of an evaluation that is done after its next part; with the metrics at its end."""
    try:
        return next(evaluation), None
    except StopIteration as end:
        return 1.0, end.value


def result_of(evaluation: Evaluation) -> dict[str, float]:
    """The metrics at the end of an evaluation."""
    scores = None
    while scores is None:
        _, scores = advance(evaluation)
    return scores


# --- evaluations in several processes -------------------------------------------------------------


class Sharing(Protocol):
    """The ranks that divide an evaluation."""

    rank: int
    size: int

    def all_gather(self, value: Any) -> list[Any]: ...


class Abandoned(Exception):  # noqa: N818
    """An evaluation that rank 0 has abandoned."""


# Of the thread that evaluates, not of a task.
_ranks: ContextVar[Sharing | None] = ContextVar("evaluating together", default=None)


@contextmanager
def sharing(ranks: Sharing) -> Iterator[None]:
    """Inside, the work of `shared` is divided among ranks."""
    token = _ranks.set(ranks)
    try:
        yield
    finally:
        _ranks.reset(token)


def sharers() -> int:
    """The number of processes that evaluate together."""
    ranks = _ranks.get()
    return 1 if ranks is None else ranks.size


def shared(items: Iterable[Item], work: Callable[[Item], Result]) -> Iterator[Result]:
    """The results of `work` for each item, in order; each rank computes every n-th."""
    supply = iter(items)
    while True:
        ranks = _ranks.get()  # a generator may be resumed under others
        size, rank = (1, 0) if ranks is None else (ranks.size, ranks.rank)
        chunk = list(islice(supply, size))
        if not chunk:
            return
        if ranks is None:
            yield work(chunk[0])
            continue
        results = ranks.all_gather(work(chunk[rank]) if rank < len(chunk) else None)
        if results[0] is Abandoned:
            raise Abandoned
        yield from results[: len(chunk)]


def count_columns(
    sources: Sequence[c.Source], counts: Sequence[Counting], row: Example, root: str
) -> None:
    """Count the cells of each source of an example; a single source reads all columns."""
    for source, some in zip(sources, counts, strict=True):
        texts = row.source if len(sources) == 1 else _columns_of(row.source, source.columns)
        if isinstance(some, Fitting):
            some.look(cell_of(texts, row.file, row.where, root))
            continue
        for text in texts:
            some.add(text)


def _columns_of(source: Source, columns: Sequence[int]) -> Source:
    """Some columns of a source; missing ones are left out."""
    return tuple(source[i] for i in columns if i < len(source))


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


def max_positions(part: Any) -> int:
    """The most positions of a part of a network; no limit unless they are learned."""
    learned = getattr(part, "positions", "") == "learned"
    return int(part.max_positions) if learned else sys.maxsize
