"""A server that listens: many clients at once, too many, slow ones, and some that go away."""

import asyncio
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import uvicorn

from saccade.data.parallel import cores
from saccade.runs.run import Run
from saccade.serve.engine import Call
from saccade.serve.http import application
from saccade.serve.running import BatchedLog, listening
from saccade.serve.service import Service
from saccade.serve.settings import ServeSettings
from tests.helpers import GOLDEN
from tests.small_runs import TORCH

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TEXTS = ["".join("abcd"[(i * k + i // 3) % 4] for i in range(1 + k % 7)) for k in range(60)]
TEXTS = list(dict.fromkeys(TEXTS))
LONG: dict[str, Any] = {"kind": "sample", "max_len": 2048, "min_len": 2048}


@pytest.fixture(scope="module")
def load() -> Iterator[Any]:
    """The benchmark's client."""
    sys.path.insert(0, str(BENCHMARKS))
    import serve_load

    yield serve_load
    sys.path.remove(str(BENCHMARKS))


@contextmanager
def serving(runs: dict[str, Run], settings: ServeSettings) -> Iterator[tuple[Service, int]]:
    """A server in a thread: the service, and its port."""
    service = Service(settings)
    for name, run in runs.items():
        service.add(name, run)
    service.state = "ready"
    listener = listening(settings)
    config = uvicorn.Config(application(service), log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            sleep(0.01)
        yield service, listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module")
def live(runs: dict[str, Run]) -> Iterator[tuple[Service, int]]:
    with serving(runs, ServeSettings(port=0)) as found:
        yield found


def until(condition: Any, seconds: float = 10.0) -> float:
    """How long it took until something was so."""
    begun = monotonic()
    while not condition():
        assert monotonic() - begun < seconds, "it never came"
        sleep(0.002)
    return monotonic() - begun


@pytest.mark.parametrize("name", ["translator", "recurrent", "language"])
def test_an_answer_among_many_is_the_one_alone(
    live: tuple[Service, int], runs: dict[str, Run], load: Any, name: str
) -> None:
    """Whatever is asked beside it: other inputs, other settings, other seeds, other runs."""
    _, port = live
    ways: list[dict[str, Any]] = [
        {}, {"width": 2}, {"kind": "sample", "seed": 1}, {"kind": "sample", "seed": 2},
    ]  # fmt: skip
    items = [(text, ways[i % len(ways)]) for i, text in enumerate(TEXTS)]

    async def ask(client: Any, item: tuple[str, dict[str, Any]]) -> Any:
        text, settings = item
        body = {"run": name, "inputs": [text], "settings": settings}
        return await client.post("/api/v1/predict", body)

    found = asyncio.run(load.at_once(port, 32, items, ask))
    for (text, settings), answer in zip(items, found, strict=True):
        said, score = load.said(answer)
        own = runs[name].predict(text, settings=settings | TORCH)
        assert said == own.text
        assert score == pytest.approx(own.score, abs=1e-4)


def test_requests_at_once_share_batches(live: tuple[Service, int], load: Any) -> None:
    service, port = live
    sizes: list[int] = []
    before, service.engine.on_batch = service.engine.on_batch, lambda n, _: sizes.append(n)

    async def ask(client: Any, item: tuple[str, int]) -> Any:
        settings = {"kind": "sample", "seed": item[1]}
        body = {"run": "translator", "inputs": [item[0]], "settings": settings}
        return await client.post("/api/v1/predict", body)

    items = [(text, seed) for seed, text in enumerate(TEXTS)]
    asyncio.run(load.at_once(port, 32, items, ask))
    service.engine.on_batch = before
    assert len(sizes) <= len(TEXTS) / 2
    assert sum(sizes) == len(TEXTS)


@pytest.fixture(scope="module")
def alone(runs: dict[str, Run]) -> Iterator[tuple[Service, int]]:
    with serving({"run": runs["translator"]}, ServeSettings(port=0)) as found:
        yield found


def test_no_answer_goes_to_anothers_request(alone: tuple[Service, int], load: Any) -> None:
    found = load.many(alone[1], TEXTS, 300)
    assert found["answers of another"] == 0


def test_malformed_requests_are_never_the_servers_failure(
    alone: tuple[Service, int], load: Any
) -> None:
    found = load.fuzz(alone[1], os.getpid(), 200)
    assert found["failures of the server"] == 0
    assert found["errors of another shape"] == 0
    assert found["answers afterwards"]


def test_too_many_are_refused_at_once_and_the_rest_is_answered(
    runs: dict[str, Run], load: Any
) -> None:
    with serving({"run": runs["translator"]}, ServeSettings(port=0, max_waiting=4)) as (_, port):

        async def flood() -> list[Any]:
            asked = (load.predict_once(port, text) for text in TEXTS)
            return await asyncio.gather(*asked)

        found = asyncio.run(flood())
        statuses = [answer.status for answer in found]
        assert set(statuses) == {200, 429}
        for answer in found:
            if answer.status == 429:
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.body["error"]["code"] == "busy"
        again = asyncio.run(load.at_once(port, 1, TEXTS[:3], load.predict))
        assert [answer.status for answer in again] == [200] * 3


def test_a_client_that_goes_away_stops_its_work(live: tuple[Service, int]) -> None:
    service, port = live

    async def leave(path: str, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
        while not service.active:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.15)
        writer.close()

    bodies: dict[str, dict[str, Any]] = {
        "/api/v1/predict": {"run": "carried", "inputs": ["abc"], "settings": LONG},
        "/api/v1/stream": {"run": "carried", "input": "abc", "settings": LONG},
        "/v1/completions": {"model": "carried", "prompt": "abc", "max_tokens": 2048, "n": 4},
    }
    for path, body in bodies.items():
        asyncio.run(leave(path, body))
        until(lambda: not service.active, 5.0)
        begun = monotonic()
        call = Call(function=lambda: None)
        service.engine.submit(call)
        call.future.result(5)
        assert monotonic() - begun < 1.5, path  # whole, it would have taken seconds
        until(lambda: not service.engine.stream_batches, 5.0)


def test_past_the_deadline_the_answer_is_504(runs: dict[str, Run], load: Any) -> None:
    settings = ServeSettings(port=0, seconds=0.2)
    with serving({"run": runs["carried"]}, settings) as (service, port):

        async def ask(client: Any, path: str) -> Any:
            body = {"settings": LONG} | (
                {"inputs": ["abc"]} if path.endswith("predict") else {"input": "abc"}
            )
            return await client.post(path, body)

        (answer,) = asyncio.run(load.at_once(port, 1, ["/api/v1/predict"], ask))
        assert answer.status == 504
        assert answer.body["error"]["code"] == "deadline"
        assert answer.seconds < 10.0  # of a machine at work elsewhere, too
        until(lambda: not service.engine.waiting and not service.active, 5.0)


def test_a_client_that_sends_too_slowly_is_refused(runs: dict[str, Run], load: Any) -> None:
    settings = ServeSettings(port=0, body_seconds=0.2)
    with serving({"run": runs["translator"]}, settings) as (_, port):

        async def crawl() -> Any:
            head = b"POST /api/v1/predict HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            async with load.Client(port) as client:
                return await client.raw(head + b'content-length: 100\r\n\r\n{"inputs"')

        answer = asyncio.run(crawl())
        assert answer.status == 408


def test_while_loading_and_draining_the_answer_is_503(live: tuple[Service, int], load: Any) -> None:
    service, port = live

    async def get(client: Any, path: str) -> Any:
        return await client.send("GET", path)

    for state in ("loading", "draining"):
        service.state = state  # type: ignore[assignment]
        try:
            paths = ["/readyz", "/api/v1/runs", "/healthz"]
            found = asyncio.run(load.at_once(port, 1, paths, get))
        finally:
            service.state = "ready"
        assert [answer.status for answer in found] == [503, 503, 200]
        assert found[1].headers["retry-after"]
        assert found[1].body["error"]["code"] == state


def test_on_sigterm_what_was_accepted_is_answered_and_the_exit_is_0(load: Any) -> None:
    with load.serving(GOLDEN / "transformer") as (server, port):
        found = load.drain(server, port, ["abc", "abcd", "a"])
    assert found["readyz"] == 503
    assert found["statuses of accepted requests"] == {200: 3}
    assert found["exit"] == 0


def processes_of(parent: int) -> set[int]:
    """Those that any thread of a process has forked."""
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


@pytest.mark.skipif(sys.platform != "linux" or cores() < 2, reason="models share the one process")
def test_a_model_computes_in_a_process_of_its_own_which_a_signal_to_all_leaves(load: Any) -> None:
    with load.serving(GOLDEN / "transformer", "--threads", "1") as (server, port):
        models = processes_of(server.pid)
        assert len(models) == 1
        before = processor_seconds(*models)
        for model in models:
            os.kill(model, signal.SIGTERM)
        found = asyncio.run(load.at_once(port, 4, TEXTS[:20], load.predict))
        assert [answer.status for answer in found] == [200] * 20
        assert processes_of(server.pid) == models
        assert processor_seconds(*models) > before


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_killed_model_is_begun_anew(load: Any) -> None:
    with load.serving(GOLDEN / "transformer", "--threads", "1") as (server, port):
        for model in processes_of(server.pid):
            os.kill(model, signal.SIGKILL)
        found = asyncio.run(load.at_once(port, 1, TEXTS[:4], load.predict))
        assert [answer.status for answer in found][-1] == 200


def test_the_log_is_written_in_order_and_whole() -> None:
    stream = io.StringIO()
    log = BatchedLog(stream)
    for i in range(1000):
        log.handle(logging.makeLogRecord({"msg": "line %d", "args": (i,)}))
    log.flush()
    assert stream.getvalue() == "".join(f"line {i}\n" for i in range(1000))


# --- the command ----------------------------------------------------------------------------------


def command(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "saccade", "serve", *arguments],
        capture_output=True, text=True, env=os.environ | environment, timeout=120,
    )  # fmt: skip


def test_a_port_that_was_named_takes_connections_at_once() -> None:
    with listening(ServeSettings(port=0)) as listener:
        socket.create_connection(listener.getsockname(), timeout=5).close()


def test_mistakes_are_a_line_and_exit_2(tmp_path: Path) -> None:
    run = str(GOLDEN / "transformer")
    (tmp_path / "config.toml").write_text("nonsense")
    taken = listening(ServeSettings(port=0))
    port = str(taken.getsockname()[1])
    for arguments, word in (
        ([str(tmp_path / "nothing")], "no such directory"),
        ([str(tmp_path), "--port", "0"], "not TOML"),
        ([run, "--host", "0.0.0.0"], "give a key"),
        ([run, "--port", port], "another port"),
        ([run, "--languages", "x=de-en"], "RUN=de-en"),
        ([run, "--key-file", str(tmp_path / "none")], "--key-file"),
    ):
        done = command(*arguments)
        assert done.returncode == 2, done.stderr
        assert word in done.stderr
        assert "Traceback" not in done.stderr
    taken.close()


def test_without_the_extra_a_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "fastapi.py").write_text("raise ImportError")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = command(str(GOLDEN / "transformer"), PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr.strip() == ("saccade: serving needs FastAPI: pip install 'saccade[serve]'")
