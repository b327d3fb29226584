"""A small network of every kind, with its data: dropout is 0, so that every layout is exact."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from saccade.data.digest import digest
from saccade.runs import files
from saccade.runs.folder import write_config
from saccade.setup.choose import fill_config, gather
from saccade.setup.prepare import prepare
from tests.helpers import corpus
from tests.number_files import sums
from tests.series import table

ROOT = Path(__file__).parents[2]
BLOCKS = {"kind": "transformer", "dim": 16, "num_heads": 4, "ff_dim": 32, "num_layers": 2}
BLOCKS |= {"dropout": 0.0, "attention_dropout": 0.0}
LAMA = BLOCKS | {"activation": "swiglu", "norm": "rms", "positions": "rotary", "tied": False}
CELLS = {"kind": "recurrent", "dim": 16, "dropout": 0.0}
KINDS: dict[str, dict[str, Any]] = {
    "transformer": {"task": "translate", "encoder": BLOCKS, "decoder": BLOCKS},
    "lstm": {"task": "translate", "encoder": CELLS, "decoder": CELLS | {"attention": "additive"}},
    "language": {"task": "language", "decoder": CELLS | {"attention": "off"}},
    "windows": {"task": "language", "decoder": LAMA | {"num_kv_heads": 4}},
    "tagger": {"task": "tag", "encoder": CELLS},
    "classifier": {"task": "classify", "encoder": {"kind": "convolution", "dim": 16, "dropout": 0}},
    "classes": {"task": "classify", "encoder": BLOCKS},
    "masked": {"task": "pretrain", "encoder": BLOCKS},
    "regress": {"task": "regress", "encoder": BLOCKS},
    "forecast": {"task": "forecast", "encoder": CELLS},
}


def config_of(name: str, folder: Path, **more: Any) -> Any:
    """The configuration of a kind, and its file."""
    wanted = dict(KINDS[name])
    task = wanted.pop("task")
    if task == "regress":
        path = sums(folder)
    elif task == "forecast":
        path = table(folder)
    else:
        path = corpus(folder, "language" if task == "pretrain" else task)
    raw, where = gather(path, task=task)
    if task == "forecast":
        raw["task"] |= {"horizon": 4, "lookback": 12, "season": 12}
    if task in ("pretrain", "language"):
        raw["task"] |= {"context": 16}
    if "dropout" in wanted.get("encoder", {}):
        wanted["encoder"] = wanted["encoder"] | {"dropout": 0.0}
    parallel = more.pop("parallel", {})
    raw |= wanted
    raw["parallel"] = parallel
    raw["train"] = {"steps": 6, "batch_tokens": 160, "evaluate_every": 3, "save_every": 2}
    raw["train"] |= {"keep": 10, "processes": 1, "optimizer": "sgd", "rate": 0.05} | more
    return fill_config(raw, where)[0]


def prepared(name: str, folder: Path, **more: Any) -> Path:
    """A folder with the prepared data of a kind."""
    folder.mkdir(parents=True)
    config = config_of(name, folder, **more)
    prepare(config, folder)
    made = sorted((folder / "data").iterdir())
    entries = {path.name: (path.stat().st_size, digest(path)) for path in made}
    files.write_manifest(folder / "data", entries)
    write_config(folder, config, prepared=True)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Together:
    """Processes started as torchrun starts them, without torchrun, which takes seconds."""

    def __init__(self, size: int, *command: str, **more: str):
        port, self.processes = free_port(), []
        for rank in range(size):
            environment = os.environ | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "MKL_NUM_THREADS": "1",
                "PYTHONPATH": str(ROOT),
                "PYTHONWARNINGS": "ignore",
                "SACCADE_RENDEZVOUS_SECONDS": "300",
            }
            environment |= more
            environment |= {"RANK": str(rank)} if "RANK" not in more else {}
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=environment,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self.processes.append(process)

    def wait(self, seconds: float = 300.0) -> list[tuple[int, str, str]]:
        """For each process its exit code, and what it wrote; none is left."""
        found = []
        try:
            for process in self.processes:
                out, err = process.communicate(timeout=seconds)
                found.append((process.returncode, out, err))
        finally:
            self.end()
        return found

    def end(self) -> None:
        """Leave none of them, whatever they are doing."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()


def together(size: int, *command: str, seconds: float = 300.0, **more: str) -> list[Any]:
    return Together(size, *command, **more).wait(seconds)
