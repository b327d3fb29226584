"""A browser, a server with small runs, and pages: one of each for all tests of a file."""

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from saccade.runs.run import load
from saccade.serve.http import create_app
from saccade.training.report import show
from saccade.training.session import new_folder, start
from tests.helpers import settings

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
RUNS = {  # the name of a run, and the settings it is made with
    "rnn": "lstm",
    "lstm": "lstm",
    "transformer": "transformer",
    "classifier": "classifier",
    "tagger": "tagger",
    "language": "windows",
}
PLAIN = {"cell": "elman", "attention": "off", "context": "cell"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small runs of all tasks, trained for a few steps."""
    folder, found = tmp_path_factory.mktemp("studio"), {}
    for name, kind in RUNS.items():
        config = settings(kind, folder, steps=3, evaluate_every=2)
        if name == "rnn":
            encoder = config.encoder.model_copy(update={"cell": "elman"})
            decoder = config.decoder.model_copy(update=PLAIN)
            config = config.model_copy(update={"encoder": encoder, "decoder": decoder})
        found[name] = folder / name
        deque(show(start(config, new_folder(config, found[name])), found[name], quiet=True), 0)
    return found


@pytest.fixture(scope="module")
def served(runs: dict[str, Path]) -> Iterator[str]:
    """The address of a server with these runs."""
    app = create_app({name: load(folder, "cpu") for name, folder in runs.items()})
    with serving(app) as address:
        yield address


class serving:  # noqa: N801  # used as a function is
    """An application, served on a free port while the block runs."""

    def __init__(self, app: Any):
        config = uvicorn.Config(app, port=0, log_level="error", ws="none", lifespan="on")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> str:
        self.thread.start()
        until = time.monotonic() + 30
        while not self.server.started and time.monotonic() < until:
            time.sleep(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/"

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(10)


@pytest.fixture
def page(browser: Any, served: str) -> Iterator[Callable[..., Any]]:
    """Opens the page at a fragment; whatever the page itself gets wrong fails the test."""
    contexts, faults = [], []

    def opened(fragment: str = "", **options: Any) -> Any:
        size = {"width": options.pop("width", 1280), "height": options.pop("height", 900)}
        context = browser.new_context(viewport=size, accept_downloads=True, **options)
        context.set_default_timeout(20_000)
        contexts.append(context)
        found = context.new_page()
        found.on("pageerror", lambda error: faults.append(str(error)))
        found.on("console", lambda said: faults.append(said.text) if said.type == "error" else 0)
        found.on("request", lambda asked: faults.append(asked.url) if is_foreign(asked) else 0)
        found.goto(f"{served}#{fragment}")
        found.wait_for_selector(".side")
        return found

    def is_foreign(asked: Any) -> bool:
        return not asked.url.startswith((served, "data:", "blob:"))

    yield opened
    for context in contexts:
        context.close()
    wrong = [fault for fault in faults if "Failed to load" not in fault]  # it is shown, too
    assert not wrong, wrong
