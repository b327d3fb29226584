"""The model worker: what is alike goes together, in order, within bounds, for whoever waits."""

import threading
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import pytest

from saccade.config import Beam
from saccade.errors import DataError
from saccade.inspect.case import go_on
from saccade.serve.engine import Call, Engine, Predict, Stream
from saccade.serve.refusals import RequestError
from saccade.tasks.pieces import Piece
from saccade.tasks.task import Prediction, Query, Request

REQUEST = Request(Beam())


class Echo:
    """A model that says what it was asked, and notes its batches; "bad" it cannot answer."""

    def __init__(self, tokens: int = 4):
        self.tokens = tokens
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()

    def answer(self, queries: list[Query], request: Request) -> list[Prediction]:
        self.batches.append([query.source[0] for query in queries])
        self.begun.set()
        self.gate.wait(10)
        if any(query.source[0] == "bad" for query in queries):
            raise DataError("bad")
        return [Prediction(query.source[0].upper(), 0.0) for query in queries]

    def pieces(
        self, queries: list[Query], request: Request, alternatives: int
    ) -> Iterator[list[Piece]]:
        if any(query.source[0] == "bad" for query in queries):
            raise DataError("bad")
        yield []
        for t in range(100):
            sleep(0.001)
            found = []
            for i, query in enumerate(queries):
                over = query.stopped is not None and query.stopped()
                end = over or t >= len(query.source[0])
                text = "" if end else query.source[0][t]
                found.append(Piece(i, text, t, 0.0, (), "end" if end else ""))
            self.batches.append([piece.text for piece in found])
            yield found
            if all(piece.end for piece in found):
                return

    def budget(self, request: Request) -> int:
        return self.tokens


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(max_waiting=8, max_waiting_tokens=100)
    yield engine
    engine.close()


def job(model: Echo, *texts: str, key: object = 1, **more: Any) -> Predict:
    queries = [Query((text,), i) for i, text in enumerate(texts)]
    return Predict(
        model=model, key=key, queries=queries, sizes=[1] * len(texts), request=REQUEST,
        tokens=len(texts), **more,
    )  # fmt: skip


def held(engine: Engine, model: Echo) -> Predict:
    """A job that holds the worker until the gate is opened."""
    model.gate.clear()
    model.begun.clear()
    first = job(model, "first")
    engine.submit(first)
    assert model.begun.wait(5)
    return first


def texts(one: Predict) -> list[str]:
    return [found.text for found in one.future.result(5)]


def test_a_lone_request_does_not_wait_for_others(engine: Engine) -> None:
    model = Echo()
    begun = monotonic()
    one = job(model, "a")
    engine.submit(one)
    assert texts(one) == ["A"]
    assert monotonic() - begun < 1.0


def test_what_waits_and_is_alike_is_one_batch_within_the_budget(engine: Engine) -> None:
    model = Echo(tokens=3)
    first = held(engine, model)
    asked = [job(model, text) for text in "abcde"]
    other = job(model, "other", key=2)
    for one in (*asked[:2], other, *asked[2:]):
        engine.submit(one)
    model.gate.set()
    assert [texts(one)[0] for one in (first, *asked, other)] == [
        "FIRST", "A", "B", "C", "D", "E", "OTHER",
    ]  # fmt: skip
    assert model.batches == [["first"], ["a", "b", "c"], ["other"], ["d", "e"]]


def test_a_request_with_many_inputs_takes_turns_with_others(engine: Engine) -> None:
    model = Echo(tokens=2)
    held(engine, model)
    large, small = job(model, *"abcdef"), job(model, "x", key=2)
    engine.submit(large)
    engine.submit(small)
    model.gate.set()
    assert texts(large) == list("ABCDEF")
    assert texts(small) == ["X"]
    assert model.batches[1:4] == [["a", "b"], ["x"], ["c", "d"]]


def test_the_mistake_of_one_is_not_anothers(engine: Engine) -> None:
    model = Echo()
    held(engine, model)
    good, bad = job(model, "good"), job(model, "bad")
    engine.submit(good)
    engine.submit(bad)
    model.gate.set()
    assert texts(good) == ["GOOD"]
    with pytest.raises(RequestError) as caught:
        bad.future.result(5)
    assert (caught.value.status, caught.value.message) == (422, "bad")


def test_a_full_queue_refuses_and_says_when_to_come_again(engine: Engine) -> None:
    model = Echo()
    held(engine, model)
    waiting = [job(model, "a") for _ in range(8)]
    for one in waiting:
        engine.submit(one)
    with pytest.raises(RequestError) as caught:
        engine.submit(job(model, "b"))
    assert caught.value.status == 429
    assert caught.value.retry_after >= 1
    model.gate.set()
    assert [texts(one) for one in waiting] == [["A"]] * 8


def test_the_queue_is_bounded_by_tokens_too(engine: Engine) -> None:
    model = Echo()
    held(engine, model)
    large = job(model, *"a" * 90)
    engine.submit(large)
    with pytest.raises(RequestError) as caught:
        engine.submit(job(model, *"b" * 20))
    assert caught.value.status == 429
    with pytest.raises(RequestError) as caught:
        engine.submit(job(model, *"b" * 101))
    assert caught.value.status == 413
    model.gate.set()
    assert len(texts(large)) == 90
    assert engine.waiting_tokens == 0


def test_what_nobody_waits_for_is_not_begun(engine: Engine) -> None:
    model = Echo()
    held(engine, model)
    gone, kept = job(model, "gone"), job(model, "kept")
    engine.submit(gone)
    engine.submit(kept)
    gone.cancel()
    model.gate.set()
    assert texts(kept) == ["KEPT"]
    assert ["gone"] not in model.batches
    assert engine.waiting_tokens == 0


def test_a_request_that_ends_between_its_batches_leaves_the_queue_as_it_was(engine: Engine) -> None:
    """One client goes away, and another input is wrong, after the first of their batches."""
    for spoil in ("gone", "bad"):
        model = Echo(tokens=2)
        large = job(model, "a", "b", *(["bad"] if spoil == "bad" else []), "c", "d", "e", "f")
        model.gate.clear()
        engine.submit(large)
        assert model.begun.wait(5)
        if spoil == "gone":
            large.cancel()
        model.gate.set()
        with pytest.raises(RequestError):
            large.future.result(5)
        after = Call(function=lambda: None)
        engine.submit(after)
        after.future.result(5)
        assert engine.waiting_tokens == 0
        assert len(model.batches) == (1 if spoil == "gone" else 2)


def test_streams_beyond_the_budget_do_not_join_a_large_one(engine: Engine) -> None:
    model = Echo(tokens=2)
    held(engine, model)
    got = list[Any]()
    large, small = stream(model, "a", got), stream(model, "b", got)
    large.queries *= 4
    engine.submit(large)
    engine.submit(small)
    with engine._changed:
        assert engine._next_batch() == [(large, 4)]
        assert list(engine.waiting) == [small]
    small.cancel()
    model.gate.set()


def test_past_its_deadline_a_request_fails_with_504(engine: Engine) -> None:
    model = Echo()
    held(engine, model)
    late = job(model, "late", seconds=0.05)
    engine.submit(late)
    sleep(0.1)
    model.gate.set()
    with pytest.raises(RequestError) as caught:
        late.future.result(5)
    assert caught.value.status == 504
    assert model.batches == [["first"]]


def test_a_closed_engine_finishes_what_it_accepted() -> None:
    engine, model = Engine(8, 100), Echo()
    held(engine, model)
    last = job(model, "last")
    engine.submit(last)
    threading.Timer(0.05, model.gate.set).start()
    engine.close()
    assert texts(last) == ["LAST"]
    with pytest.raises(RequestError) as caught:
        engine.submit(job(model, "more"))
    assert caught.value.status == 503


def stream(model: Echo, text: str, got: list[Any], size: int = 1) -> Stream:
    one = Stream(
        model=model, key=1, queries=[], size=size, request=REQUEST, alternatives=0, emit=got.append
    )
    one.queries.append(Query((text,), stopped=lambda: one.stopped(0)))
    return one


def wait_for_end(got: list[Any]) -> None:
    limit = monotonic() + 5
    while not got or isinstance(got[-1], list):
        assert monotonic() < limit
        sleep(0.002)


def test_texts_come_token_by_token_and_batches_go_on_between(engine: Engine) -> None:
    model, got = Echo(), list[Any]()
    engine.submit(stream(model, "streamed text", got))
    between = job(model, "between")
    engine.submit(between)
    assert texts(between) == ["BETWEEN"]
    assert not got or got[-1] is not None  # the text goes on
    wait_for_end(got)
    assert "".join(piece.text for some in got[:-1] for piece in some) == "streamed text"
    assert got[-1] is None


def test_streams_of_one_length_go_on_together(engine: Engine) -> None:
    model = Echo()
    held(engine, model)
    first, second, other = list[Any](), list[Any](), list[Any]()
    engine.submit(stream(model, "abc", first))
    engine.submit(stream(model, "xyz", second))
    engine.submit(stream(model, "other", other, size=2))
    model.gate.set()
    for got in (first, second, other):
        wait_for_end(got)
    assert ["a", "x"] in model.batches
    assert ["o"] in model.batches


def test_a_stream_that_is_cancelled_ends_at_the_next_token(engine: Engine) -> None:
    model, got = Echo(), list[Any]()
    one = stream(model, "x" * 90, got)
    engine.submit(one)
    while len(got) < 3:
        sleep(0.001)
    one.cancel()
    seen = len(model.batches)
    sleep(0.1)
    assert len(model.batches) <= seen + 2
    assert not engine.stream_batches


def test_a_stream_that_cannot_begin_fails_alone(engine: Engine) -> None:
    model = Echo()
    held(engine, model)
    good, bad = list[Any](), list[Any]()
    engine.submit(stream(model, "good", good))
    engine.submit(stream(model, "bad", bad))
    model.gate.set()
    wait_for_end(good)
    wait_for_end(bad)
    assert good[-1] is None
    assert isinstance(bad[-1], RequestError)


def test_a_call_has_the_worker_to_itself(engine: Engine) -> None:
    model = Echo()
    held(engine, model)
    names: list[str] = []
    call = Call(function=lambda: names.append(threading.current_thread().name))
    failing = Call(function=lambda: 1 // 0)
    engine.submit(call)
    engine.submit(failing)
    model.gate.set()
    call.future.result(5)
    with pytest.raises(ZeroDivisionError):
        failing.future.result(5)
    assert names == ["saccade-model"]


def test_a_call_ends_between_two_passes_when_nobody_waits(engine: Engine) -> None:
    begun, passes = threading.Event(), []

    def heavy() -> None:
        for _ in range(10_000):
            go_on()
            passes.append(1)
            begun.set()
            sleep(0.001)

    call, late = Call(function=heavy), Call(function=heavy, seconds=0.05)
    engine.submit(call)
    assert begun.wait(5)
    call.cancel()
    engine.submit(late)
    for one in (call, late):
        with pytest.raises(RequestError) as caught:
            one.future.result(5)
        assert caught.value.status == 504
    assert len(passes) < 5_000
    after = Call(function=lambda: go_on() or "done")
    engine.submit(after)
    assert after.future.result(5) == "done"
