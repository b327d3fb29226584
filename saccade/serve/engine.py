"""The model worker: one thread that takes what clients ask for, in batches, in order.

What waits is bounded by requests and by tokens. A batch is made of what waits and is alike (one
run, one way to search), up to a budget of tokens; nothing waits for a batch to fill. A request
with many inputs takes its turn again for every batch. Texts that come piece by piece go on by one
token after each batch. What nobody waits for any more is dropped before it begins, and ends at the
next token if it has begun.
"""

import itertools
import mmap
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol, TypeAlias

from saccade.errors import SaccadeError
from saccade.serve.refusals import RequestError, refusal_of
from saccade.tasks.pieces import Piece
from saccade.tasks.task import Prediction, Query, Request

SLOTS = 1 << 20  # of works: far more than begin within the longest deadline
MAX_STREAMS = 16  # batches of texts that come piece by piece, at once
FINISHED_KEPT = 64  # times of the last works, for an estimate of how long to wait

TOO_LATE = "there was no answer within {:g} seconds: ask for less at once, or later"


class Model(Protocol):
    """A run as the worker needs it."""

    def answer(self, queries: list[Query], request: Request) -> list[Prediction]: ...
    def pieces(
        self, queries: list[Query], request: Request, alternatives: int
    ) -> Iterator[list[Piece]]: ...
    def budget(self, request: Request) -> int: ...


_gone = mmap.mmap(-1, SLOTS)  # a byte for each work; processes that are forked see them, too
_slots = itertools.count()


@dataclass(frozen=True, slots=True)
class Over:
    """Whether nobody waits for a work any more: it is past its deadline, or its client has gone."""

    deadline: float
    slot: int

    def __call__(self) -> bool:
        return bool(_gone[self.slot]) or monotonic() > self.deadline


@dataclass(eq=False, slots=True, kw_only=True)
class Work:
    """What one client waits for."""

    tokens: int = 1
    seconds: float = 30.0
    over: Over = field(init=False)

    def __post_init__(self) -> None:
        self.over = Over(monotonic() + self.seconds, next(_slots) % SLOTS)
        _gone[self.over.slot] = 0

    @property
    def deadline(self) -> float:
        return self.over.deadline

    def abandon(self) -> None:
        """The client has gone."""
        _gone[self.over.slot] = 1

    def too_late(self) -> RequestError:
        return RequestError(504, "deadline", TOO_LATE.format(self.seconds))


@dataclass(eq=False, slots=True, kw_only=True)
class Predict(Work):
    """Inputs to be answered; alike are those with the same key."""

    model: Model
    key: Hashable
    queries: list[Query]
    sizes: list[int]
    request: Request
    found: list[Prediction] = field(default_factory=list)
    future: "Future[list[Prediction]]" = field(default_factory=Future)


@dataclass(eq=False, slots=True, kw_only=True)
class Stream(Work):
    """Texts of one length that come piece by piece: `emit` gets each, an error, or None."""

    model: Model
    key: Hashable
    queries: list[Query]
    size: int
    request: Request
    alternatives: int
    emit: Callable[[list[Piece] | Exception | None], None]
    open: int = 0  # of its texts, that are not over
    ended: set[int] = field(default_factory=set)  # texts that are long enough for the client

    def stopped(self, number: int) -> bool:
        """Whether nobody waits for one of the texts."""
        return number in self.ended or self.over()


@dataclass(eq=False, slots=True, kw_only=True)
class Call(Work):
    """Any other use of a model, which has the worker to itself."""

    function: Callable[[], Any]
    future: "Future[Any]" = field(default_factory=Future)


AnyWork: TypeAlias = Predict | Stream | Call


@dataclass(eq=False, slots=True)
class Walk:
    """Streams that go on together, a token at a time."""

    steps: Iterator[list[Piece]]
    owners: list[tuple[Stream, int]]  # of each text: its stream, and its number there


class Engine:
    """The queue and its worker."""

    def __init__(self, max_waiting: int, max_waiting_tokens: int):
        self.max_waiting, self.max_waiting_tokens = max_waiting, max_waiting_tokens
        self.waiting: deque[AnyWork] = deque()
        self.waiting_tokens = 0
        self.walks: list[Walk] = []
        self.on_batch: Callable[[int, float], None] = lambda size, seconds: None
        self._pace: deque[tuple[float, int]] = deque(maxlen=FINISHED_KEPT)
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="saccade-model", daemon=True)
        self._thread.start()

    # --- for those who ask ---

    def submit(self, work: AnyWork) -> None:
        """Put work into the queue; RequestError if it is full."""
        if work.tokens > self.max_waiting_tokens:
            raise RequestError(
                413,
                "too_large",
                f"{work.tokens:,} tokens at once: {self.max_waiting_tokens:,} are the most; "
                "send fewer inputs in one request",
            )
        with self._changed:
            if self._closed:
                raise RequestError(503, "draining", "the server is about to end", retry_after=5)
            self.require_room()
            if self.waiting_tokens + work.tokens > self.max_waiting_tokens:
                raise self._busy()
            self.waiting.append(work)
            self.waiting_tokens += work.tokens
            self._changed.notify()

    def require_room(self) -> None:
        """RequestError if the queue is full, whatever would be put into it."""
        if len(self.waiting) >= self.max_waiting:
            raise self._busy()

    def _busy(self) -> RequestError:
        seconds = self._seconds_to_wait()
        message = f"{len(self.waiting)} requests are waiting already: try again in {seconds} s"
        return RequestError(429, "busy", message, retry_after=seconds)

    def close(self) -> None:
        """Take nothing more, finish what was accepted, and end the worker."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _seconds_to_wait(self) -> int:
        """How long what waits will take, at the pace of the last batches."""
        if len(self._pace) < 2:
            return 1
        seconds = max(monotonic() - self._pace[0][0], 1e-3)
        done = sum(tokens for _, tokens in self._pace)
        return max(1, min(60, round(self.waiting_tokens * seconds / max(done, 1))))

    # --- the worker ---

    def _work(self) -> None:
        while True:
            with self._changed:
                batch = self._gather()
                while not (batch or self.walks):
                    if self._closed:
                        return
                    self._changed.wait()
                    batch = self._gather()
            if batch:
                begun = monotonic()
                self._serve(batch)
                self.on_batch(len(batch), monotonic() - begun)
            for walk in list(self.walks):
                self._advance(walk)

    def _gather(self) -> list[tuple[AnyWork, int]]:
        """The next batch: works that are alike, and how many inputs of each; the oldest first."""
        first: AnyWork | None = None
        batch: list[tuple[AnyWork, int]] = []
        rest: deque[AnyWork] = deque()
        rows = longest = budget = 0
        while self.waiting:
            work = self.waiting.popleft()
            if work.over():
                self._drop(work)
                continue
            blocked = isinstance(work, Stream) and len(self.walks) >= MAX_STREAMS
            if first is None and not blocked:
                first = work
                budget = 0 if isinstance(work, Call) else work.model.budget(work.request)
            alike = first is not None and _alike(first, work) and not blocked
            sizes = _sizes_left(work) if alike else []
            count = 0
            for size in sizes:
                if rows and (rows + 1) * max(longest, size) > budget:
                    break
                rows, longest, count = rows + 1, max(longest, size), count + 1
            if isinstance(work, Stream) and count < len(sizes):  # its texts go on together
                rows -= count
                count = len(sizes) if work is first else 0  # alone it may exceed the budget
                rows += count
            if count:
                batch.append((work, count))
                self.waiting_tokens -= work.tokens if not isinstance(work, Predict) else 0
            else:
                rest.append(work)
            if isinstance(first, Call) or (first is not None and rows * longest >= budget):
                break
        rest.extend(self.waiting)
        self.waiting = rest
        for work, count in batch:
            if isinstance(work, Predict):
                start = len(work.found)
                taken = sum(work.sizes[start : start + count])
                work.tokens -= taken
                self.waiting_tokens -= taken
        return batch

    def _drop(self, work: AnyWork) -> None:
        self.waiting_tokens -= work.tokens
        _fail(work, work.too_late())

    def _serve(self, batch: list[tuple[AnyWork, int]]) -> None:
        match batch[0][0]:
            case Call() as call:
                try:
                    _settle(call.future, call.function())
                except Exception as error:
                    _fail(call, error)
            case Stream():
                self._begin([work for work, _ in batch if isinstance(work, Stream)])
            case Predict():
                self._predict([(work, n) for work, n in batch if isinstance(work, Predict)])

    def _predict(self, batch: list[tuple[Predict, int]]) -> None:
        first = batch[0][0]
        queries = [
            query
            for work, count in batch
            for query in work.queries[len(work.found) : len(work.found) + count]
        ]
        begun = monotonic()
        try:
            found = iter(first.model.answer(queries, first.request))
        except Exception as error:
            if len(batch) == 1:
                return self._end(first, error)
            for one in batch:  # so that the mistake of one is not another's
                self._predict([one])
            return None
        tokens = 0
        for work, count in batch:
            start = len(work.found)
            tokens += sum(work.sizes[start : start + count])
            work.found += [next(found) for _ in range(count)]
            if work.over():
                self._end(work, work.too_late())
            elif len(work.found) == len(work.queries):
                _settle(work.future, work.found)
            else:  # its next inputs wait for their turn
                with self._changed:
                    self.waiting.append(work)
        self._pace.append((begun, tokens))
        return None

    def _end(self, work: Predict, error: Exception) -> None:
        """Fail a request of which some inputs may not have had their turn: they wait no longer."""
        with self._changed:
            self.waiting_tokens -= work.tokens
        _fail(work, error)

    def _begin(self, streams: list[Stream]) -> None:
        """Read the prompts of streams that go on together."""
        first = streams[0]
        queries = [query for stream in streams for query in stream.queries]
        steps = first.model.pieces(queries, first.request, first.alternatives)
        try:
            next(steps)
        except Exception as error:
            if len(streams) == 1:
                return _fail(first, error)
            for stream in streams:
                self._begin([stream])
            return None
        owners = []
        for stream in streams:
            stream.open = len(stream.queries)
            owners += [(stream, number) for number in range(stream.open)]
        self.walks.append(Walk(steps, owners))
        return None

    def _advance(self, walk: Walk) -> None:
        """One token more of the texts that go on together."""
        streams = list(dict.fromkeys(stream for stream, _ in walk.owners))
        try:
            if all(stream.over() or not stream.open for stream in streams):
                found = None
            else:
                found = next(walk.steps, None)
        except Exception as error:
            self.walks.remove(walk)
            for stream in streams:
                _fail(stream, error)
            return
        parts: dict[Stream, list[Piece]] = {}
        for piece in found or []:
            stream, number = walk.owners[piece.number]
            parts.setdefault(stream, []).append(piece._replace(number=number))
        for stream, some in parts.items():
            if stream.over():
                _fail(stream, stream.too_late())
                continue
            stream.emit(some)
            stream.open -= sum(bool(piece.end) for piece in some)
            if not stream.open:
                stream.emit(None)
        if found is None:
            self.walks.remove(walk)
            for stream in streams:
                if stream.open:
                    _fail(stream, stream.too_late())


def _alike(one: AnyWork, other: AnyWork) -> bool:
    """Whether two works can be done in one batch."""
    if one is other:
        return True
    if isinstance(one, Predict) and isinstance(other, Predict):
        return one.key == other.key
    if isinstance(one, Stream) and isinstance(other, Stream):
        # a state has no padding: texts that are read step by step have one length
        return one.key == other.key and one.size == other.size
    return False


def _sizes_left(work: AnyWork) -> list[int]:
    """The tokens of each input that is not yet answered."""
    match work:
        case Predict():
            return work.sizes[len(work.found) :]
        case Stream():
            return [work.size] * len(work.queries)
        case Call():
            return [0]


def _fail(work: AnyWork, error: Exception) -> None:
    refused = refusal_of(error) if isinstance(error, SaccadeError) else error
    if isinstance(work, Stream):
        work.open = 0
        work.emit(refused)
    else:
        with suppress(InvalidStateError):  # nobody waits for it
            work.future.set_exception(refused)


def _settle(future: "Future[Any]", value: Any) -> None:
    with suppress(InvalidStateError):  # nobody waits for it
        future.set_result(value)
