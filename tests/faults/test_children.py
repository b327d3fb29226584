"""Worker processes: none outlives the process that made it, however that one ends."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.processes import Server
from tests.helpers import GOLDEN

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")
RUN = GOLDEN / "attention"
SLOW = ["--width", 50, "--set", "decode.max_len=150", "--set", "decode.max_ratio=50"]
SECONDS = 20.0  # after which a process is taken to live for ever
SIGNALS = {name: getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")}
CODES = {"SIGINT": 130, "SIGTERM": -15, "SIGHUP": -1, "SIGKILL": -9}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An input that takes workers many seconds."""
    path = tmp_path_factory.mktemp("lines") / "many.txt"
    path.write_text("".join(f"{'abcd' * (3 + i % 7)}\n" for i in range(20_000)))
    return path


def status(process: int) -> list[str]:
    """The state of a process and its parent's number; nothing if it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def living(processes: set[int]) -> set[int]:
    return {p for p in processes if (found := status(p)) and found[0] not in "ZX"}


def children_of(process: int) -> set[int]:
    numbers = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}
    return {p for p in living(numbers) if (found := status(p)) and found[1] == str(process)}


def until(condition: Callable[[], object], seconds: float = SECONDS) -> float:
    """Wait for something; the seconds that it took."""
    began = time.monotonic()
    while not condition() and time.monotonic() < began + seconds:
        time.sleep(0.005)
    return time.monotonic() - began


class Busy:
    """A command at work, with two worker processes."""

    def __init__(self, server: Server, log: Path, *words: object):
        self.server = server
        request = {"log": str(log), "words": [str(word) for word in words]}
        self.parent = int(server.ask(json.dumps(request)))
        until(lambda: len(children_of(self.parent)) == 2)
        self.workers = children_of(self.parent)
        assert len(self.workers) == 2

    def wait(self) -> int:
        """Its exit code."""
        return int(self.server.ask("wait"))

    def gone(self) -> float:
        """The seconds until no worker is left."""
        return until(lambda: not living(self.workers))


def end_by(name: str, server: Server, lines: Path, log: Path, command: str) -> tuple[float, float]:
    """The seconds until a command has ended by a signal, and from then on until its workers had."""
    two = [*SLOW, "--set", "decode.workers=2", "--set", "decode.engine=torch"]
    more = two if command == "predict" else two[2:]
    busy = Busy(server, log, command, RUN, lines, *more)
    began = time.monotonic()
    os.kill(busy.parent, SIGNALS[name])
    assert busy.wait() == CODES[name]
    ended = time.monotonic() - began
    after = busy.gone()
    assert not living(busy.workers)
    said = log.read_text().splitlines()
    assert [line for line in said if not set(line) <= set("ABCD")] == (
        ["interrupted"] if name == "SIGINT" else []
    )
    return ended, after


@pytest.mark.parametrize("name", SIGNALS)
def test_workers_end_with_their_parent(
    name: str, server: Server, lines: Path, tmp_path: Path
) -> None:
    end_by(name, server, lines, tmp_path / "log.txt", "predict")


@pytest.mark.faults
@pytest.mark.parametrize("command", ["predict", "evaluate"])
@pytest.mark.parametrize("name", SIGNALS)
def test_they_end_within_a_second(
    name: str, command: str, server: Server, lines: Path, tmp_path: Path
) -> None:
    if command == "evaluate":
        pairs = tmp_path / "pairs.tsv"
        texts = lines.read_text().splitlines()
        pairs.write_text("".join(f"{text}\t{text.upper()}{i}\n" for i, text in enumerate(texts)))
        lines = pairs
    ended, after = end_by(name, server, lines, tmp_path / "log.txt", command)
    assert ended < 1.0
    assert after < 1.0


def first_line_read(server: Server, lines: Path, folder: Path) -> float:
    """`predict | head -1`: the seconds from the end of `head` until no worker is left."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    seen: list[str] = []

    def head() -> None:
        with pipe.open() as reader:
            seen.append(reader.readline())

    reader = threading.Thread(target=head)
    reader.start()
    workers = ["--set", "decode.workers=2", "--set", "decode.engine=torch"]
    busy = Busy(server, pipe, "predict", RUN, lines, *workers)
    reader.join(SECONDS)
    assert set(seen[0].strip()) <= set("ABCD")
    began = time.monotonic()
    assert busy.wait() == -signal.SIGPIPE  # silently, as any other filter
    busy.gone()
    assert not living(busy.workers)
    return time.monotonic() - began


def test_workers_end_when_their_reader_has_seen_enough(
    server: Server, lines: Path, tmp_path: Path
) -> None:
    first_line_read(server, lines, tmp_path)


@pytest.fixture(autouse=True)
def _nothing_is_left(server: Server) -> Iterator[None]:
    """What a failed test has left would serve the others as a bad example."""
    before = children_of(server.process.pid)
    yield
    for process in children_of(server.process.pid) - before:
        for one in (*children_of(process), process):
            os.kill(one, signal.SIGKILL)
