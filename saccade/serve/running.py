"""The server process: it listens at once, loads its runs, serves, drains and exits."""

import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TextIO

import torch
import uvicorn

from saccade.data.parallel import cores
from saccade.errors import ConfigError
from saccade.runs.machine import tune_malloc
from saccade.runs.run import load
from saccade.serve.http import application
from saccade.serve.served import names_of
from saccade.serve.service import Service
from saccade.serve.settings import ServeSettings

BACKLOG = 2048  # connections that wait to be accepted
DRAIN_SECONDS = 0.5  # at least, for load balancers to see at /readyz that the server is draining
LOG_SECONDS = 0.2  # between two writes of the log
MAX_LOG_LINES = 100_000  # that wait to be written
SWITCH_SECONDS = 0.0005  # after which the model and the HTTP thread hand over the GIL


class BatchedLog(logging.Handler):
    """Writes its lines from a thread, several times a second.

    A write for each would be a third of the time of a refused request, and a full pipe would block
    the server. Lines that cannot be written are dropped, the oldest first.
    """

    def __init__(self, stream: TextIO):
        super().__init__()
        self.stream = stream
        self.lines: deque[str] = deque(maxlen=MAX_LOG_LINES)
        threading.Thread(target=self._write, daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def flush(self) -> None:
        lines = [self.lines.popleft() for _ in range(len(self.lines))]
        if lines:
            self.stream.write("\n".join(lines) + "\n")
            self.stream.flush()

    def _write(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOG_SECONDS):
            self.flush()


class Server(uvicorn.Server):
    """uvicorn, which drains on SIGTERM or SIGINT: accepted requests are answered first."""

    def __init__(self, config: uvicorn.Config, service: Service, say: Callable[[str], None]):
        super().__init__(config)
        self.service, self.say = service, say

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.state == "draining":  # a second signal does not wait
            self.force_exit = self.should_exit = True
            return
        self.service.state = "draining"
        self.say("ending: requests that were accepted are answered first")
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        wait = threading.Event()
        wait.wait(DRAIN_SECONDS)
        while self.service.active:
            wait.wait(0.02)
        self.should_exit = True


def run_server(
    folders: Sequence[Path],
    settings: ServeSettings,
    languages: Sequence[str],
    say: Callable[[str], None],
    *,
    threads: int | None = None,
    open_page: bool = False,
) -> None:
    """Serve runs until a signal; SaccadeError if one of them cannot be loaded."""
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such directory; name a run's")
    names = names_of(folders)
    service = Service(settings)
    service.languages = languages_in(languages, names)
    if threads is not None and threads < 1:
        raise ConfigError(f"--threads {threads}: must be at least 1")
    # With a model thread on every core, each operation would wait for the HTTP thread.
    torch.set_num_threads(threads or max(1, cores() - 1))
    tune_malloc()
    sys.setswitchinterval(SWITCH_SECONDS)
    listener = listening(settings)
    port = listener.getsockname()[1]
    log = BatchedLog(sys.stderr)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", handlers=[log])
    config = uvicorn.Config(
        application(service), log_config=None, access_log=False, log_level="warning",
        server_header=False, timeout_graceful_shutdown=int(settings.seconds) + 1,
    )  # fmt: skip
    server = Server(config, service, say)
    failures: list[Exception] = []
    host = "127.0.0.1" if settings.host == "0.0.0.0" else settings.host
    address = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def load_all() -> None:
        try:
            for name, folder in zip(names, folders, strict=True):
                service.add(name, load(folder))
        except Exception as error:  # raised by the main thread
            failures.append(error)
            server.should_exit = True
            return
        gc.collect()
        gc.freeze()  # else a full collection over the loaded runs halts requests for 0.2 s
        if service.state == "loading":
            service.state = "ready"
            say(f"serving {', '.join(names)} on {address}")
            if open_page:
                import webbrowser

                webbrowser.open(address)

    loader = threading.Thread(target=load_all, daemon=True)
    loader.start()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, server.handle_exit)
    server.run(sockets=[listener])
    if failures:
        raise failures[0]


def listening(settings: ServeSettings) -> socket.socket:
    """A socket that listens on the address; ConfigError if it cannot be bound."""
    try:
        candidates = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = candidates[0]
        listener = socket.socket(family, kind, protocol)
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # at once: the runs may be loaded before uvicorn starts
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--host {settings.host} --port {settings.port}: {reason.lower()}; take another port"
        ) from None
    return listener


def read_key(path: Path) -> str:
    """The key in a file."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--key-file {path}: {error}") from None


def languages_in(options: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Source and target language of runs, from options RUN=de-en."""
    languages = {}
    for option in options:
        name, _, pair = option.rpartition("=")
        source, _, target = pair.partition("-")
        if name not in names or not source or not target:
            known = ", ".join(names)
            raise ConfigError(
                f"--languages {option}: expected RUN=de-en, where RUN is one of {known}"
            )
        languages[name] = (source, target)
    return languages
