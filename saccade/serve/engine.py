"""The model worker: one thread that computes queued jobs in batches, oldest first.

The queue is bounded in requests and in tokens. A batch takes the oldest job and all compatible ones
(same run, same search settings), up to a budget of tokens; it never waits to fill up. A request
with many inputs goes to the back of the queue after each batch. Streams advance by one token after
each batch. A cancelled job is dropped from the queue, or ends at the next token if it is running; a
view ends between two of its passes.
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
from saccade.inspect.case import StoppedError, stopped_by
from saccade.serve.refusals import RequestError, refusal_of
from saccade.tasks.pieces import Piece
from saccade.tasks.task import Prediction, Query, Request

SLOTS = 1 << 20  # cancellation flags, reused in turn: far more than jobs within one deadline
MAX_STREAM_BATCHES = 16  # that are being decoded at once
RECENT_BATCHES = 64  # whose throughput predicts how long the queue will take

TOO_LATE = "there was no answer within {:g} seconds: ask for less at once, or later"


class Model(Protocol):
    """A run as the worker needs it."""

    def answer(self, queries: list[Query], request: Request) -> list[Prediction]: ...
    def pieces(
        self, queries: list[Query], request: Request, alternatives: int
    ) -> Iterator[list[Piece]]: ...
    def budget(self, request: Request) -> int: ...


_flags = mmap.mmap(-1, SLOTS)  # a byte for each job, in memory that forked processes share
_slots = itertools.count()


@dataclass(frozen=True, slots=True)
class CancelToken:
    """Whether a job is cancelled or past its deadline; it can be pickled and asked anywhere."""

    deadline: float
    slot: int

    def __call__(self) -> bool:
        return bool(_flags[self.slot]) or monotonic() > self.deadline


@dataclass(eq=False, slots=True, kw_only=True)
class Job:
    """What one client waits for."""

    tokens: int = 1
    seconds: float = 30.0
    cancelled: CancelToken = field(init=False)

    def __post_init__(self) -> None:
        self.cancelled = CancelToken(monotonic() + self.seconds, next(_slots) % SLOTS)
        _flags[self.cancelled.slot] = 0

    @property
    def deadline(self) -> float:
        return self.cancelled.deadline

    def cancel(self) -> None:
        """The client is no longer waiting."""
        _flags[self.cancelled.slot] = 1

    def deadline_error(self) -> RequestError:
        return RequestError(504, "deadline", TOO_LATE.format(self.seconds))


@dataclass(eq=False, slots=True, kw_only=True)
class Predict(Job):
    """Inputs to be answered; those with the same key can share a batch."""

    model: Model
    key: Hashable
    queries: list[Query]
    sizes: list[int]
    request: Request
    predictions: list[Prediction] = field(default_factory=list)  # of the first inputs, so far
    future: "Future[list[Prediction]]" = field(default_factory=Future)


@dataclass(eq=False, slots=True, kw_only=True)
class Stream(Job):
    """Streamed texts from prompts of one length: `emit` gets their pieces, an error, or None."""

    model: Model
    key: Hashable
    queries: list[Query]
    size: int
    request: Request
    alternatives: int
    emit: Callable[[list[Piece] | Exception | None], None]
    unfinished: int = 0  # number of its texts, once it is running
    ended: set[int] = field(default_factory=set)  # texts that have met a stop sequence

    def stopped(self, number: int) -> bool:
        """Whether one of the texts needs no further tokens."""
        return number in self.ended or self.cancelled()


@dataclass(eq=False, slots=True, kw_only=True)
class Call(Job):
    """Any other use of a model, computed alone."""

    function: Callable[[], Any]
    future: "Future[Any]" = field(default_factory=Future)


AnyJob: TypeAlias = Predict | Stream | Call


@dataclass(eq=False, slots=True)
class StreamBatch:
    """Streams that are decoded together, a token at a time."""

    steps: Iterator[list[Piece]]
    owners: list[tuple[Stream, int]]  # of each text: its stream, and its number there


class Engine:
    """The queue and its worker."""

    def __init__(self, max_waiting: int, max_waiting_tokens: int):
        self.max_waiting, self.max_waiting_tokens = max_waiting, max_waiting_tokens
        self.waiting: deque[AnyJob] = deque()
        self.waiting_tokens = 0
        self.stream_batches: list[StreamBatch] = []
        self.on_batch: Callable[[int, float], None] = lambda size, seconds: None
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_BATCHES)  # start, tokens
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="saccade-model", daemon=True)
        self._thread.start()

    # --- for the HTTP thread ---

    def submit(self, job: AnyJob) -> None:
        """Enqueue a job; RequestError if the queue is full."""
        if job.tokens > self.max_waiting_tokens:
            raise RequestError(
                413,
                "too_large",
                f"{job.tokens:,} tokens at once: {self.max_waiting_tokens:,} are the most; "
                "send fewer inputs in one request",
            )
        with self._changed:
            if self._closed:
                raise RequestError(503, "draining", "the server is about to end", retry_after=5)
            self.require_room()
            if self.waiting_tokens + job.tokens > self.max_waiting_tokens:
                raise self._busy()
            self.waiting.append(job)
            self.waiting_tokens += job.tokens
            self._changed.notify()

    def require_room(self) -> None:
        """RequestError if the queue is full, however small the job."""
        if len(self.waiting) >= self.max_waiting:
            raise self._busy()

    def _busy(self) -> RequestError:
        seconds = self._estimated_wait()
        message = f"{len(self.waiting)} requests are waiting already: try again in {seconds} s"
        return RequestError(429, "busy", message, retry_after=seconds)

    def close(self) -> None:
        """Accept no more jobs, finish those accepted, and end the worker."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _estimated_wait(self) -> int:
        """The seconds that the queue will take, at the throughput of the last batches."""
        if len(self._recent) < 2:
            return 1
        seconds = max(monotonic() - self._recent[0][0], 1e-3)
        done = sum(tokens for _, tokens in self._recent)
        return max(1, min(60, round(self.waiting_tokens * seconds / max(done, 1))))

    # --- the worker ---

    def _run(self) -> None:
        while True:
            with self._changed:
                batch = self._next_batch()
                while not (batch or self.stream_batches):
                    if self._closed:
                        return
                    self._changed.wait()
                    batch = self._next_batch()
            if batch:
                begun = monotonic()
                self._compute(batch)
                self.on_batch(len(batch), monotonic() - begun)
            for streams in list(self.stream_batches):
                self._advance(streams)

    def _next_batch(self) -> list[tuple[AnyJob, int]]:
        """Compatible jobs, and how many inputs of each; the oldest job first."""
        first: AnyJob | None = None
        batch: list[tuple[AnyJob, int]] = []
        rest: deque[AnyJob] = deque()
        rows = longest = budget = 0
        while self.waiting:
            job = self.waiting.popleft()
            if job.cancelled():
                self._fail_waiting(job, job.deadline_error())
                continue
            blocked = isinstance(job, Stream) and len(self.stream_batches) >= MAX_STREAM_BATCHES
            if first is None and not blocked:
                first = job
                budget = 0 if isinstance(job, Call) else job.model.budget(job.request)
            compatible = first is not None and _compatible(first, job) and not blocked
            sizes = _remaining_sizes(job) if compatible else []
            count = 0
            for size in sizes:
                if rows and (rows + 1) * max(longest, size) > budget:
                    break
                rows, longest, count = rows + 1, max(longest, size), count + 1
            if isinstance(job, Stream) and count < len(sizes):  # all of its texts or none
                rows -= count
                count = len(sizes) if job is first else 0  # alone it may exceed the budget
                rows += count
            if count:
                batch.append((job, count))
                self.waiting_tokens -= job.tokens if not isinstance(job, Predict) else 0
            else:
                rest.append(job)
            if isinstance(first, Call) or (first is not None and rows * longest >= budget):
                break
        rest.extend(self.waiting)
        self.waiting = rest
        for job, count in batch:
            if isinstance(job, Predict):
                start = len(job.predictions)
                taken = sum(job.sizes[start : start + count])
                job.tokens -= taken
                self.waiting_tokens -= taken
        return batch

    def _fail_waiting(self, job: AnyJob, error: Exception) -> None:
        """Fail a job of which inputs are still counted as waiting."""
        self.waiting_tokens -= job.tokens
        _fail(job, error)

    def _compute(self, batch: list[tuple[AnyJob, int]]) -> None:
        match batch[0][0]:
            case Call() as call:
                try:
                    with stopped_by(call.cancelled):
                        _set_result(call.future, call.function())
                except StoppedError:
                    _fail(call, call.deadline_error())
                except Exception as error:
                    _fail(call, error)
            case Stream():
                self._start([job for job, _ in batch if isinstance(job, Stream)])
            case Predict():
                self._predict([(job, n) for job, n in batch if isinstance(job, Predict)])

    def _predict(self, batch: list[tuple[Predict, int]]) -> None:
        first = batch[0][0]
        queries = [
            query
            for job, count in batch
            for query in job.queries[len(job.predictions) : len(job.predictions) + count]
        ]
        begun = monotonic()
        try:
            predictions = iter(first.model.answer(queries, first.request))
        except Exception as error:
            if len(batch) == 1:
                with self._changed:
                    self._fail_waiting(first, error)
                return
            for part in batch:  # each by itself: only the one at fault fails
                self._predict([part])
            return
        tokens = 0
        for job, count in batch:
            start = len(job.predictions)
            tokens += sum(job.sizes[start : start + count])
            job.predictions += [next(predictions) for _ in range(count)]
            if job.cancelled():
                with self._changed:
                    self._fail_waiting(job, job.deadline_error())
            elif len(job.predictions) == len(job.queries):
                _set_result(job.future, job.predictions)
            else:
                with self._changed:
                    self.waiting.append(job)
        self._recent.append((begun, tokens))

    def _start(self, streams: list[Stream]) -> None:
        """Read the prompts of streams that are decoded together."""
        first = streams[0]
        queries = [query for stream in streams for query in stream.queries]
        steps = first.model.pieces(queries, first.request, first.alternatives)
        try:
            next(steps)
        except Exception as error:
            if len(streams) == 1:
                _fail(first, error)
                return
            for stream in streams:
                self._start([stream])
            return
        owners = []
        for stream in streams:
            stream.unfinished = len(stream.queries)
            owners += [(stream, number) for number in range(stream.unfinished)]
        self.stream_batches.append(StreamBatch(steps, owners))

    def _advance(self, batch: StreamBatch) -> None:
        """Decode one more token of each text."""
        streams = list(dict.fromkeys(stream for stream, _ in batch.owners))
        try:
            if all(stream.cancelled() or not stream.unfinished for stream in streams):
                step = None
            else:
                step = next(batch.steps, None)
        except Exception as error:
            self.stream_batches.remove(batch)
            for stream in streams:
                _fail(stream, error)
            return
        by_stream: dict[Stream, list[Piece]] = {}
        for piece in step or []:
            stream, number = batch.owners[piece.number]
            by_stream.setdefault(stream, []).append(piece._replace(number=number))
        for stream, pieces in by_stream.items():
            if stream.cancelled():
                _fail(stream, stream.deadline_error())
                continue
            stream.emit(pieces)
            stream.unfinished -= sum(bool(piece.end) for piece in pieces)
            if not stream.unfinished:
                stream.emit(None)
        if step is None:
            self.stream_batches.remove(batch)
            for stream in streams:
                if stream.unfinished:
                    _fail(stream, stream.deadline_error())


def _compatible(one: AnyJob, other: AnyJob) -> bool:
    """Whether two jobs can be computed in one batch."""
    if one is other:
        return True
    if isinstance(one, Predict) and isinstance(other, Predict):
        return one.key == other.key
    if isinstance(one, Stream) and isinstance(other, Stream):
        # a decoder's state has no padding: prompts that are read step by step have one length
        return one.key == other.key and one.size == other.size
    return False


def _remaining_sizes(job: AnyJob) -> list[int]:
    """The tokens of each input that is not yet answered."""
    match job:
        case Predict():
            return job.sizes[len(job.predictions) :]
        case Stream():
            return [job.size] * len(job.queries)
        case Call():
            return [0]


def _fail(job: AnyJob, error: Exception) -> None:
    refusal = refusal_of(error) if isinstance(error, SaccadeError) else error
    if isinstance(job, Stream):
        job.unfinished = 0
        job.emit(refusal)
    else:
        with suppress(InvalidStateError):  # cancelled by the client
            job.future.set_exception(refusal)


def _set_result(future: "Future[Any]", value: Any) -> None:
    with suppress(InvalidStateError):  # cancelled by the client
        future.set_result(value)
