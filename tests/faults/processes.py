"""Real processes that are killed for real, without waiting for torch each time.

A server process imports everything once; for each request it forks a child, which runs the real
command line. The test kills the child by its id.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


# --- the tests' side ------------------------------------------------------------------------------


class Server:
    """The warmed process; `run` is one call of the command line in a child of it."""

    def __init__(self, folder: Path):
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.processes"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=folder, text=True,
        )  # fmt: skip
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n"

    def run(self, *words: object, kill_after: float | None = None, **faults: Any) -> "Outcome":
        """Run `saccade WORDS`; kill -9 after so many seconds, or make other faults inside."""
        assert self.process.stdin
        assert self.process.stdout
        log = self.folder / "log.txt"
        request = {"words": [str(word) for word in words], "log": str(log), **faults}
        began = time.perf_counter()
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(child, signal.SIGKILL)  # the server has not yet waited: the id is still its own
        self.process.stdin.write("wait\n")
        self.process.stdin.flush()
        code, memory = map(int, self.process.stdout.readline().split())
        return Outcome(code, log.read_text(), time.perf_counter() - began, memory)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(10)
        if self.process.stdout:
            self.process.stdout.close()


class Outcome:
    def __init__(self, code: int, said: str, seconds: float, memory: int):
        self.code, self.said, self.seconds = code, said, seconds  # the code of a kill is -9
        self.memory = memory  # bytes, at most, with the server's own that it began with


def result_of(run: Path) -> str:
    """One hash of the weights that predict and of the whole state of training."""
    last = sorted((run / "checkpoints").glob("step-*"))[-1]
    files = [run / "model.safetensors", *sorted(last.glob("*.safetensors"))]
    sha = hashlib.sha256(last.name.encode())
    for file in files:
        sha.update(file.name.encode() + file.read_bytes())
    return sha.hexdigest()


# --- the server's side ----------------------------------------------------------------------------


def serve() -> None:
    import torch

    from saccade import cli, verify  # noqa: F401

    torch.set_num_threads(1)
    layer = torch.nn.Linear(2, 2)  # what torch imports at the first step of an optimiser
    torch.optim.AdamW(layer.parameters(), fused=True).step()
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            work(request)
        print(child, flush=True)
        sys.stdin.readline()
        _, status, used = os.wait4(child, 0)
        print(os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024, flush=True)


def work(request: dict[str, Any]) -> None:
    """Call the command line, with faults; never returns."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdin.close()
    sys.argv = ["saccade", *request["words"]]
    if "die_at" in request:
        die_at(*request["die_at"])
    if "signal" in request:
        signal_at(*request["signal"])
    if "memory" in request:
        few_bytes(request["memory"])
    if "slow" in request:
        slow(request["slow"])
    if "stuck" in request:
        stuck(*request["stuck"])
    code: Any = 1
    try:
        from saccade import cli

        cli.main()
    except SystemExit as left:
        code = left.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def die_at(save: int, number: int) -> None:
    """kill -9 at one I/O call of one save."""
    from tests.faults.shim import Shim

    saves, since = 0, 0

    def fault(count: int, name: str) -> None:
        nonlocal since
        since += saves == save  # and of what follows it, up to the next
        if since == number:
            os.kill(os.getpid(), signal.SIGKILL)

    from saccade.training import trainer

    shim = Shim(fault).__enter__()
    real = trainer.checkpoints.save

    def counted(*words: Any) -> Path:
        nonlocal saves
        saves += 1
        return real(*words)

    trainer.checkpoints.save = counted
    assert shim.count == 0


def signal_at(number: int, where: str, nth: int) -> None:
    """Send this process a signal at the nth call of a function of the package."""
    if where == "save":
        from tests.faults.shim import Shim

        def fault(count: int, name: str) -> None:
            if count == nth:
                os.kill(os.getpid(), number)

        Shim(fault).__enter__()
        return
    owner_name, _, name = where.rpartition(".")
    module, _, inner = owner_name.partition(":")
    owner = import_module(module)
    owner = getattr(owner, inner) if inner else owner
    real, calls = getattr(owner, name), 0

    def counted(*words: Any, **named: Any) -> Any:
        nonlocal calls
        if not (name == "hidden" and words[0].training):  # decoding, not training
            calls += 1
            if calls == nth:
                os.kill(os.getpid(), number)
        return real(*words, **named)

    setattr(owner, name, classmethod(counted) if name == "train" and inner else counted)


def few_bytes(more: int) -> None:
    """Let training have only so many bytes more than the process has when training begins."""
    import resource

    from saccade.training.trainer import Trainer

    real = Trainer.step

    def step(self: Any, *words: Any) -> Any:
        if self.at.step == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + more
            resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        done = real(self, *words)
        if self.at.step == 4:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        return done

    Trainer.step = step  # type: ignore[method-assign]


def slow(seconds: float) -> None:
    """Let the third step take long."""
    from saccade.training.trainer import Trainer

    real = Trainer.step

    def step(self: Any, *words: Any) -> Any:
        if self.at.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(0.1)
        return real(self, *words)

    Trainer.step = step  # type: ignore[method-assign]


def stuck(number: int, where: str, after: int, nth: int) -> None:
    """Send a signal in the nth loss after a step, from a call that does not come back."""
    import hashlib
    import threading

    import torch

    from saccade.tasks.language import LanguageModel
    from saccade.tasks.translate import Translate
    from saccade.training.trainer import Trainer

    step = calls = 0

    def hang() -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)  # many minutes, outside Python

    class Hang(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> None:
            hang()

    def counted(self: Any, *words: Any, real: Any = Trainer.step) -> Any:
        nonlocal step, calls
        done = real(self, *words)
        step, calls = self.at.step, 0
        return done

    Trainer.step = counted  # type: ignore[method-assign]
    for kind in (LanguageModel, Translate):

        def loss(self: Any, network: Any, *words: Any, real: Any = kind.loss) -> Any:
            nonlocal calls
            calls += network.training == (where != "evaluation")
            now = (step, calls) == (after, nth)
            if now and where != "backward":
                hang()
            found, carry = real(self, network, *words)
            if now:
                found = replace(found, sum=Hang.apply(found.sum))
            return found, carry

        kind.loss = loss  # type: ignore[method-assign]


if __name__ == "__main__":
    serve()
