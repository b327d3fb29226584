"""Small runs with random weights behind an application."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from saccade.runs.run import Run
from saccade.serve.http import create_app
from saccade.serve.settings import ServeSettings
from tests.small_runs import small_run, small_task

BASE = "http://127.0.0.1:8000"


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("served")
    found = {
        "translator": small_run(folder / "translator"),
        "recurrent": small_run(folder / "recurrent", "gru_additive_cell"),
        "language": small_run(folder / "language", kind="language", decoder="transformer"),
        "carried": small_run(folder / "carried", kind="language", decoder="gru_off"),
    }
    for kind in ("classify", "tag", "table"):
        (folder / kind).mkdir()
        task, network = small_task(kind, folder / kind, "lstm")
        found[kind] = Run(folder / kind, task.config, task, network)
    return found


@pytest.fixture(scope="module")
def client(runs: dict[str, Run]) -> Iterator[TestClient]:
    with TestClient(create_app(runs), base_url=BASE) as client:
        yield client


@pytest.fixture
def keyed(runs: dict[str, Run]) -> Iterator[TestClient]:
    """A server that can be reached from elsewhere, and therefore has a key."""
    settings = ServeSettings(host="0.0.0.0", key="correct-horse", names=("models.example",))
    app = create_app({"translator": runs["translator"]}, settings)
    with TestClient(app, base_url="http://10.0.0.7:8000") as client:
        yield client
