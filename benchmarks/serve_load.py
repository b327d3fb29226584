"""How a server behaves under load: the same answers, more of them, and no more than it can.

    python benchmarks/serve_load.py [--run RUN --inputs FILE] [--requests N] [--parts same,many,...]

same      every input alone and with others at once: the same text, the same score; how much faster
many      so many requests at once: no answer goes to another's request
overload  four times as many requests as can be answered: who is refused, and what it costs
fuzz      malformed requests by the thousand: none is the server's failure
drain     SIGTERM while requests are under way: they are answered, and the server ends

Without --run a small translator with random weights is served. The client is another process than
the server, and shares its cores.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

CONCURRENCY = 32
PATIENT_CLIENTS = 16
TOLERANCE = 1e-4  # of scores
NETWORK = {"kind": "transformer", "dim": 128, "num_layers": 3, "num_heads": 4, "ff_dim": 512}


@dataclass(slots=True)
class Answer:
    """What came back for one request."""

    status: int
    body: Any
    seconds: float
    headers: dict[str, str] = field(default_factory=dict)


class Client:
    """One connection that is kept, as plain as HTTP/1.1 permits."""

    def __init__(self, port: int):
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, value: Any) -> Answer:
        return await self.send("POST", path, json.dumps(value).encode())

    async def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        lines = {"host": f"127.0.0.1:{self.port}", "content-length": str(len(body))}
        lines |= {"content-type": "application/json"} | headers
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        return await self.raw(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)

    async def raw(self, request: bytes) -> Answer:
        """Whatever bytes are sent, and the answer to them."""
        gone = self.reader is not None and self.reader.at_eof()
        if self.writer is None or self.writer.is_closing() or gone:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self.reader is not None
        begun = perf_counter()
        self.writer.write(request)
        status, headers = await self._head(self.reader)
        raw = await self._body(self.reader, headers)
        seconds = perf_counter() - begun
        if headers.get("connection") == "close":
            await self.close()
        with suppress(ValueError):
            return Answer(status, json.loads(raw), seconds, headers)
        return Answer(status, raw, seconds, headers)

    async def _head(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        first = await reader.readline()
        if not first:
            raise ConnectionResetError("no answer")
        headers = {}
        while (line := await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return int(first.split()[1]), headers

    async def _body(self, reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await reader.readexactly(int(headers.get("content-length", "0")))
        parts = []
        while size := int(await reader.readline(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(parts)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            with suppress(OSError):
                await self.writer.wait_closed()
        self.reader = self.writer = None


async def at_once(
    port: int, count: int, items: Sequence[Any], ask: Callable[[Client, Any], Awaitable[Answer]]
) -> list[Answer]:
    """The answers to all items, from so many clients of whom each asks when it has its answer."""
    waiting, found = iter(enumerate(items)), [Answer(0, None, 0.0)] * len(items)

    async def work() -> None:
        client = Client(port)
        for i, item in waiting:
            found[i] = await ask(client, item)
        await client.close()

    await asyncio.gather(*(work() for _ in range(count)))
    return found


async def predict(client: Client, text: str) -> Answer:
    return await client.post("/api/v1/predict", {"inputs": [text]})


async def predict_greedily(client: Client, text: str) -> Answer:
    return await client.post("/api/v1/predict", {"inputs": [text], "settings": {"width": 1}})


async def predict_once(port: int, text: str) -> Answer:
    async with Client(port) as client:
        return await predict(client, text)


def said(answer: Answer) -> tuple[str, float]:
    """The text and the score of a prediction."""
    assert answer.status == 200, answer
    one = answer.body["predictions"][0]
    return one["text"], one["score"]


def share(seconds: Sequence[float], q: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(q * len(seconds)))]


# --- the parts ------------------------------------------------------------------------------------


def same(port: int, inputs: Sequence[str]) -> dict[str, Any]:
    """Each input alone, then many at once: equal answers, throughput and latency."""
    asyncio.run(at_once(port, CONCURRENCY, inputs[: 2 * CONCURRENCY], predict))  # warm
    begun = perf_counter()
    alone = asyncio.run(at_once(port, 1, inputs, predict))
    one_by_one = perf_counter() - begun
    begun = perf_counter()
    together = asyncio.run(at_once(port, CONCURRENCY, inputs, predict))
    at_concurrency = perf_counter() - begun
    pairs = [(said(a), said(b)) for a, b in zip(alone, together, strict=True)]
    single = [answer.seconds for answer in alone]
    several = [answer.seconds for answer in together]
    return {
        "inputs": len(inputs),
        "other texts": sum(a[0] != b[0] for a, b in pairs),
        "largest difference of scores": max(abs(a[1] - b[1]) for a, b in pairs),
        "alone, requests/s": len(inputs) / one_by_one,
        f"at {CONCURRENCY}, requests/s": len(inputs) / at_concurrency,
        "throughput ratio": one_by_one / at_concurrency,
        "alone, p50 ms": 1000 * share(single, 0.5),
        "alone, p99 ms": 1000 * share(single, 0.99),
        f"at {CONCURRENCY}, p50 ms": 1000 * share(several, 0.5),
        f"at {CONCURRENCY}, p99 ms": 1000 * share(several, 0.99),
        "p99 / p50 alone": share(several, 0.99) / share(single, 0.5),
        "p99 / p99 alone": share(several, 0.99) / share(single, 0.99),
    }


def many(port: int, inputs: Sequence[str], requests: int) -> dict[str, Any]:
    """No answer goes to another's request: each is compared with that to its input alone."""
    alone = asyncio.run(at_once(port, 1, inputs, predict_greedily))
    known = dict(zip(inputs, map(said, alone), strict=True))
    draws = random.Random(1)
    items = [draws.choice(inputs) for _ in range(requests)]
    begun = perf_counter()
    found = asyncio.run(at_once(port, CONCURRENCY, items, predict_greedily))
    wrong = 0
    for text, answer in zip(items, found, strict=True):
        (got, score), (right, right_score) = said(answer), known[text]
        wrong += got != right or abs(score - right_score) > TOLERANCE
    seconds = perf_counter() - begun
    return {
        "requests": requests,
        "answers of another": wrong,
        "different answers": len(set(known.values())),
        "requests/s": requests / seconds,
    }


def overload(port: int, process: int, inputs: Sequence[str], seconds: float) -> dict[str, Any]:
    """Requests come four times as fast as they can be answered, whatever is answered."""
    begun = perf_counter()
    asyncio.run(at_once(port, 4 * CONCURRENCY, inputs, predict))  # the largest batches
    capacity = len(inputs) / (perf_counter() - begun)
    before = resident_mb(process)
    patient = Patient(port, inputs[0], seconds)
    patient.start()
    found, in_time, lag = asyncio.run(open_loop(port, inputs, 4 * capacity, seconds))
    seen = patient.result()
    kinds = Counter(answer.status for answer in found)
    refused = [took for status, took in seen if status == 429]
    crowded = [answer.seconds for answer in found if answer.status == 429]
    after = resident_mb(process)
    begun, back = perf_counter(), 0.0
    while perf_counter() - begun < 30:
        answer = asyncio.run(at_once(port, 1, inputs[:1], predict))[0]
        if answer.status == 200 and answer.seconds < 20 / capacity + 0.5:
            back = perf_counter() - begun
            break
    return {
        "capacity, requests/s": capacity,
        "sent, requests/s": len(found) / seconds,
        "statuses": dict(kinds),
        "goodput / capacity": in_time / seconds / capacity,
        "requests of other clients": len(seen),
        "their 429 p50 ms": 1000 * share(refused, 0.5) if refused else None,
        "their 429 p99 ms": 1000 * share(refused, 0.99) if refused else None,
        "429 p99 ms, seen by the crowd itself": 1000 * share(crowded, 0.99) if crowded else None,
        "Retry-After": all(a.headers.get("retry-after") for a in found if a.status == 429),
        "memory, MB more": after - before,
        "recovered after s": back,
        "the client was late by ms, p99": 1000 * lag,
    }


class Patient:
    """Clients in a process of their own, that ask again and again while others are too many.

    The crowd is one process that sends and reads hundreds of requests in each batch's time: what it
    measures is how long it takes itself.
    """

    def __init__(self, port: int, text: str, seconds: float):
        self.found: multiprocessing.Queue[list[tuple[int, float]]] = multiprocessing.Queue()
        arguments = (port, text, seconds, self.found)
        self.process = multiprocessing.Process(target=self._ask, args=arguments)

    def start(self) -> None:
        self.process.start()

    def result(self) -> list[tuple[int, float]]:
        """Status and seconds of each request."""
        found = self.found.get(timeout=60)
        self.process.join()
        return found

    @staticmethod
    def _ask(port: int, text: str, seconds: float, found: Any) -> None:
        answers, end = list[tuple[int, float]](), perf_counter() + seconds
        body, headers = json.dumps({"inputs": [text]}), {"content-type": "application/json"}

        def ask(_: int) -> None:
            connection = HTTPConnection("127.0.0.1", port)
            while perf_counter() < end:
                begun = perf_counter()
                connection.request("POST", "/api/v1/predict", body, headers)
                answer = connection.getresponse()
                answer.read()
                answers.append((answer.status, perf_counter() - begun))
                sleep(0.2)

        with ThreadPoolExecutor(PATIENT_CLIENTS) as pool:
            list(pool.map(ask, range(PATIENT_CLIENTS)))
        found.put(answers)


async def open_loop(
    port: int, inputs: Sequence[str], rate: float, seconds: float
) -> tuple[list[Answer], int, float]:
    """Requests at a given rate: the answers, how many were good and in time, the client's lag.

    Connections are kept, and made when all are in use.
    """
    idle: list[Client] = []
    found: list[Answer] = []
    late: list[float] = []

    async def one(text: str) -> None:
        client = idle.pop() if idle else Client(port)
        try:
            found.append(await predict(client, text))
            idle.append(client)
        except OSError:
            found.append(Answer(0, None, 0.0))

    draws, begun, tasks = random.Random(2), perf_counter(), set()
    for i in range(int(rate * seconds)):
        due = begun + i / rate
        if (wait := due - perf_counter()) > 0:
            await asyncio.sleep(wait)
        late.append(max(0.0, perf_counter() - due))
        task = asyncio.create_task(one(draws.choice(inputs)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    in_time = sum(answer.status == 200 for answer in found)
    await asyncio.gather(*tasks)
    for client in idle:
        await client.close()
    return found, in_time, share(late, 0.99)


def fuzz(port: int, process: int, requests: int) -> dict[str, Any]:
    """Malformed requests: no status from 500 on but 503 and 504, and the server goes on."""
    before = resident_mb(process)
    found = asyncio.run(at_once(port, 8, list(range(requests)), fuzzed))
    kinds = Counter(answer.status for answer in found)
    bad = sum(n for status, n in kinds.items() if status >= 500 and status not in (503, 504))
    shapeless = sum(
        answer.status >= 400 and not _has_error_shape(answer.body) and answer.status != 400
        for answer in found
    )
    healthy = asyncio.run(at_once(port, 1, ["abc"], predict))[0].status == 200
    return {
        "requests": requests,
        "statuses": dict(sorted(kinds.items())),
        "failures of the server": bad,
        "errors of another shape": shapeless,
        "answers afterwards": healthy,
        "memory, MB more": resident_mb(process) - before,
    }


def _has_error_shape(body: Any) -> bool:
    return isinstance(body, dict) and set(body.get("error", {})) == {"code", "message", "where"}


ROUTES = (
    "/api/v1/predict", "/api/v1/stream", "/api/v1/score", "/api/v1/inspect", "/translate",
    "/detect", "/v1/completions",
)  # fmt: skip


async def fuzzed(client: Client, number: int) -> Answer:
    """One malformed request, by its number; 0 where the server rightly closed the connection."""
    draws = random.Random(number)
    try:
        async with asyncio.timeout(60):
            return await _fuzzed(client, draws)
    except (OSError, asyncio.IncompleteReadError, ValueError):
        await client.close()
        return Answer(0, None, 0.0)


async def _fuzzed(client: Client, draws: random.Random) -> Answer:
    path, body = draws.choice(ROUTES), fuzzed_body(draws)
    host = f"host: 127.0.0.1:{client.port}\r\n".encode()
    match draws.randrange(12):
        case 0:  # a truncated body
            head = f"POST {path} HTTP/1.1\r\ncontent-length: {len(body) + 9}\r\n".encode()
            await client.close()
            client.reader, client.writer = await asyncio.open_connection("127.0.0.1", client.port)
            client.writer.write(head + host + b"\r\n" + body)
            client.writer.write_eof()
            await client.reader.read(200)
            await client.close()
            return Answer(0, None, 0.0)
        case 1:  # bytes that are no HTTP
            answer = await client.raw(draws.randbytes(draws.randrange(1, 200)) + b"\r\n\r\n")
            await client.close()
            return answer
        case 2:  # a body in chunks, some wrong
            size = draws.choice([b"5", b"ffffffffffff", b"-1", b"zz", b"0"])
            head = f"POST {path} HTTP/1.1\r\ntransfer-encoding: chunked\r\n".encode()
            answer = await client.raw(
                head + b"content-type: application/json\r\n" + host + b"\r\n" + size
                + b"\r\n[1,2]\r\n0\r\n\r\n"
            )  # fmt: skip
            await client.close()
            return answer
        case 3:  # a path that leads elsewhere
            path = draws.choice(
                ["/studio/../../etc/passwd", "/studio/%2e%2e/%2e%2e/settings.py", "//x", "/%00",
                 "/api/v1/runs/..%2f..%2fx/curves", "/studio/" + "a" * 3000]
            )  # fmt: skip
            return await client.send("GET", path)
        case 4:  # another type, another method
            kind = draws.choice(["text/plain", "multipart/form-data", "application/xml", "\xff"])
            method = draws.choice(["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
            return await client.send(method, path, body, content_type=kind)
        case _:
            return await client.send("POST", path, body)


def fuzzed_body(draws: random.Random) -> bytes:
    """What should be JSON of a request, and is wrong in one of many ways."""
    odd: list[Any] = [
        None, True, -1, 0, 10**30, 1e308, "", "a" * 5000, "\x00", "\u202e", "abc", [], {}, [[]],
        [None], {"a": {}}, ["abc"], [["a", "b"]], "data:image/png;base64,AAAA", "../../etc/passwd",
        "http://127.0.0.1/", "\U0001f600" * 50, "<script>", "{{7*7}}", "%s%n", float("1e-320"),
    ]  # fmt: skip
    keys = (
        "run", "inputs", "settings", "nbest", "prefixes", "details", "input", "prefix", "pairs",
        "kind", "options", "q", "source", "target", "alternatives", "model", "prompt", "n",
        "max_tokens", "temperature", "logprobs", "stop", "seed", "stream", "format", "echo",
    )  # fmt: skip
    names = ("width", "kind", "only", "model", "seed", "max_len", "banned", "temperature", "x")
    value = {draws.choice(keys): draws.choice(odd) for _ in range(draws.randrange(1, 6))}
    if draws.random() < 0.5:
        value |= {"inputs": ["abc"], "input": "abc", "q": "abc", "prompt": "abc"}
    if draws.random() < 0.4:
        value["settings"] = {draws.choice(names): draws.choice(odd) for _ in range(2)}
    if draws.random() < 0.2:
        value["options"] = {draws.choice((*names, "layer", "head")): draws.choice(odd)}
        value["kind"] = draws.choice(["attention", "tree", "tokens", "saliency", "labels", "x"])
    text = json.dumps(value)
    match draws.randrange(10):
        case 0:
            return b"[" * draws.randrange(1, 100_000)
        case 1:
            return b'{"inputs": ["abc"], "nbest": ' + b"9" * 5000 + b"}"
        case 2:
            return b'{"inputs": ["abc"], "settings": {"temperature": NaN, "kind": "sample"}}'
        case 3:
            return b'{"inputs": ["\\ud800 abc"], "q": "\\udfff", "target": "x"}'
        case 4:
            return text.encode()[: draws.randrange(len(text))]
        case 5:
            return draws.randbytes(draws.randrange(300))
        case 6:
            return b'{"a":' * 20_000 + b"1" + b"}" * 20_000
        case _:
            return text.encode("utf-8", "surrogatepass")


def drain(server: "subprocess.Popen[str]", port: int, inputs: Sequence[str]) -> dict[str, Any]:
    """SIGTERM while requests are under way."""

    async def ask() -> tuple[list[Answer], int]:
        async with Client(port) as client:
            await client.send("GET", "/readyz")  # a connection that is open
            asked = [asyncio.create_task(predict_once(port, text)) for text in inputs]
            await asyncio.sleep(0.1)
            server.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
            ready = await client.send("GET", "/readyz")
            return await asyncio.gather(*asked), ready.status

    answers, ready = asyncio.run(ask())
    return {
        "readyz": ready,
        "statuses of accepted requests": dict(Counter(answer.status for answer in answers)),
        "exit": server.wait(60),
    }


# --- the server -----------------------------------------------------------------------------------


@contextmanager
def serving(run: Path, *options: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A server in another process, and its port."""
    command = [sys.executable, "-m", "saccade", "serve", str(run), "--port", "0", *options]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        lines = []
        for line in server.stderr:
            lines.append(line)
            if match := re.search(r"on http://[^ ]*:(\d+)/", line):
                break
        else:
            raise SystemExit("".join(lines))
        with subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL):
            try:
                yield server, int(match[1])
                server.terminate()
                server.wait(60)
            finally:
                server.kill()
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


def resident_mb(process: int) -> float:
    """The memory that a process holds."""
    with suppress(OSError):
        text = Path(f"/proc/{process}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1e3
    return 0.0


def made(folder: Path) -> tuple[Path, list[str]]:
    """A translator with random weights, which is as fast as a trained one, and inputs of it."""
    import torch

    from saccade.runs import files
    from saccade.runs.folder import write_config
    from saccade.setup.choose import fill_config, gather
    from saccade.setup.prepare import prepare

    draws = random.Random(1)
    words = ["".join(draws.choices("abcdefgh", k=draws.randint(3, 12))) for _ in range(6000)]
    words = list(dict.fromkeys(words))
    data = folder / "words.tsv"
    data.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words[:3000]))
    raw, where = gather([str(data)], task="translate")
    raw |= {"encoder": NETWORK, "decoder": NETWORK}
    run = folder / "run"
    run.mkdir()
    task = prepare(fill_config(raw, where)[0], run).task
    network = task.build()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():  # so that different inputs have different answers
            parameter.add_(0.05 * torch.randn_like(parameter))
    task.save(run)
    files.save_weights(run / "model.safetensors", dict(network.named_parameters()))
    write_config(run, task.config, prepared=True)
    return run, words[:2000]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--inputs", type=Path, help="A file with an input on each line.")
    parser.add_argument("--count", type=int, default=2000, help="Inputs of the part `same`.")
    parser.add_argument("--requests", type=int, default=100_000, help="Of the part `many`.")
    parser.add_argument("--fuzzed", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="Of the part `overload`.")
    parser.add_argument("--parts", default="same,overload,fuzz,many,drain")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if options.run:
            run, inputs = options.run, options.inputs.read_text().splitlines()
        else:
            run, inputs = made(Path(temporary))
        inputs = [text for text in inputs if text.strip()]
        with serving(run) as (server, port):
            parts: dict[str, Callable[[], dict[str, Any]]] = {
                "same": lambda: same(port, inputs[: options.count]),
                "overload": lambda: overload(port, server.pid, inputs[:500], options.seconds),
                "fuzz": lambda: fuzz(port, server.pid, options.fuzzed),
                "many": lambda: many(port, inputs[:500], options.requests),
                "drain": lambda: drain(server, port, inputs[:16]),
            }
            for name in options.parts.split(","):
                print(name, json.dumps(parts[name](), indent=2), flush=True)


if __name__ == "__main__":
    main()
