"""What the tests of faults share: a warmed server of processes, and small runs for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from saccade.config import write_toml
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
        self.known: dict[tuple[str, ...], tuple[str, float]] = {}
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

    def straight(self, recipe: Path, *more: str) -> tuple[str, float]:
        """The result of an uninterrupted run, and the seconds it takes."""
        key = (str(recipe), *more)
        if key not in self.known:
            run = self.new()
            done = self.server.run("train", recipe, "--out", run, *more)
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
        done = self.server.run(*(["resume", run] if known else ["train", recipe, "--out", run]))
        assert done.code == 0, done.said
        return result_of(run)


@pytest.fixture(scope="session")
def small(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(server, tmp_path_factory.mktemp("small"))
