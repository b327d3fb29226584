"""What the tests of faults share: a warmed server of processes, and small runs for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from saccade.config import write_toml
from tests.faults.giants import make_large
from tests.faults.memory import Gauge
from tests.faults.processes import Server, result_of
from tests.helpers import settings

KINDS = ("transformer", "lstm", "language model", "tagger")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


class Small:
    """Small runs of every kind, and what each gives if nothing happens to it."""

    def __init__(self, server: Server, folder: Path):
        self.server, self.folder = server, folder
        self.known: dict[tuple[str, int, int], tuple[str, float]] = {}
        self.made = 0

    def recipe(self, kind: str, workers: int, steps: int) -> Path:
        """A configuration file of this kind."""
        path = self.folder / f"{kind.replace(' ', '-')}-{workers}-{steps}.toml"
        if not path.exists():
            config = settings(
                kind, self.folder, steps=steps, keep=2, workers=workers, save_every=5,
                evaluate_every=7, patience=1000,
            )  # fmt: skip
            path.write_text(write_toml(config))
        return path

    def straight(self, kind: str, workers: int, steps: int) -> tuple[str, float]:
        """The result of an uninterrupted run, and the seconds it takes."""
        key = (kind, workers, steps)
        if key not in self.known:
            run = self.new()
            done = self.server.run("train", self.recipe(*key), "--out", run)
            assert done.code == 0, done.said
            self.known[key] = result_of(run), done.seconds
        return self.known[key]

    def new(self) -> Path:
        """The name of a run that is not there yet."""
        self.made += 1
        return self.folder / f"run-{self.made}"

    def finish(self, recipe: Path, run: Path) -> str:
        """Resume a run to its end, or begin it if it never came to be; its result."""
        known = (run / "config.toml").exists()
        words = ["resume", run] if known else ["train", recipe, "--out", run]
        done = self.server.run(*words)
        assert done.code == 0, done.said
        return result_of(run)


@pytest.fixture(scope="session")
def small(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(server, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def gauge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gauge]:
    """What measures memory; where the system does not tell, it finds that nothing takes any."""
    gauge = Gauge(tmp_path_factory.mktemp("gauge"))
    yield gauge
    gauge.close()


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound run with a network and a checkpoint of tens of megabytes."""
    run = tmp_path_factory.mktemp("large") / "run"
    make_large(run)
    return run
