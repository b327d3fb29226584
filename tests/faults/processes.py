"""Real processes, killed or measured for real, without waiting for torch each time.

A server process imports everything once. For each command it forks a child, which runs the real
command line with faults planted in it. One more child, which has opened every kind of run before,
opens hostile runs and reports what it did and how much memory that took, as the system counts it:
Linux lets a process set its peak back (/proc/self/clear_refs). Python's own allocator hands little
back to the system, so that work would reuse, unseen, what was freed before: it is off there.
"""

import ctypes
import gc
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "1"
MB = 1 << 20
PYTHON = 5 * MB  # what Python and torch may take beside: buffers, objects, a page here and there


# --- the tests' side ------------------------------------------------------------------------------


class Outcome(NamedTuple):
    code: int  # of a kill: -9
    said: str
    seconds: float


class Measured(NamedTuple):
    error: str  # its class; empty if there was none
    said: str
    peak: int  # bytes beside what the process had before; 0 where the system does not tell
    done: list[str]  # what is forbidden: code that was run, files outside that were written


class Server:
    """The warmed process; each call is a child of it."""

    def __init__(self, folder: Path):
        environment = os.environ | {
            "PYTHONPATH": str(ROOT), "PYTHONMALLOC": "malloc", "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip
        self.log = folder / "log.txt"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.processes"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=environment, cwd=folder, text=True,
        )  # fmt: skip
        assert self.answer() == "ready\n"

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def ask(self, text: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self.answer()

    def run(self, *words: object, kill_after: float | None = None, **faults: Any) -> Outcome:
        """Run `saccade WORDS`; kill -9 after so many seconds, or make other faults inside."""
        began = time.perf_counter()
        request = {"log": str(self.log), "words": [str(word) for word in words]}
        child = int(self.ask(json.dumps(request | faults)))
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(child, signal.SIGKILL)  # the server has not yet waited: the id is still its own
        code = int(self.ask("wait"))
        return Outcome(code, self.log.read_text(), time.perf_counter() - began)

    def measure(self, work: str, run: Path) -> Measured:
        """What comes of a piece of work (a key of WORKS) with a run."""
        return Measured(*json.loads(self.ask(json.dumps({"work": work, "run": str(run)}))))

    def refuses(self, work: str, run: Path, name: str, allowance: int = PYTHON) -> str:
        """What is said of a hostile run: refused, in 1.5 times its files and an allowance."""
        files = [p for p in run.rglob("*") if p.is_file() and not p.is_symlink()]
        size = sum(min(p.stat().st_size, p.stat().st_blocks * 512) for p in files)  # without holes
        error, said, peak, done = self.measure(work, run)
        assert not done, (name, done)
        assert error == "CheckpointError", (name, error, said)
        assert len(said.splitlines()) <= 12, said
        assert max(map(len, said.splitlines())) < 600, said
        assert peak <= 1.5 * size + allowance, (name, peak / MB, size / MB)
        return said

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


def result_of(run: Path) -> str:
    """One hash of the weights that predict and of the whole state of training."""
    last = sorted((run / "checkpoints").glob("step-*"))[-1]
    sha = hashlib.sha256(last.name.encode())
    for file in (run / "model.safetensors", *sorted(last.glob("*.safetensors"))):
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
    gauge: Any = None
    for line in sys.stdin:
        if "words" in (request := json.loads(line)):
            if not (child := os.fork()):
                # under nohup, or in the background of a shell, both are ignored
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGHUP, signal.SIG_DFL)
                work(request)
            print(child, flush=True)
            sys.stdin.readline()
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        else:
            gauge = gauge or forked_gauge()
            gauge[0].write(line)
            print(gauge[1].readline(), end="", flush=True)
    os._exit(0)  # without taking everything apart


def forked_gauge() -> tuple[Any, Any]:
    """The pipes to and from a child that measures, one request after the other."""
    requests, answers = os.pipe(), os.pipe()
    if os.fork():
        os.close(requests[0])
        os.close(answers[1])
        return os.fdopen(requests[1], "w", 1), os.fdopen(answers[0])
    os.close(requests[1])  # so that the end of the server is the end of this child
    sys.stdin.close()
    Path("pairs.tsv").write_text("abc\tABC\n")
    for path in GOLDEN.iterdir():  # all that is kept when it is first used
        WORKS["load"](path)
    for name in ("attention", "language-model"):
        for kind in ("predict", "score", "exact"):
            if (name, kind) != ("language-model", "exact"):
                WORKS[kind](GOLDEN / name)
    WORKS["evaluate"](GOLDEN / "language-model")
    WORKS["measure"](GOLDEN / "attention")
    shutil.copytree(GOLDEN / "language-model", "warm")
    text = Path("warm/config.toml").read_text()
    Path("warm/config.toml").write_text(text.replace("steps = 150", "steps = 151"))
    WORKS["resume"](Path("warm"))
    WORKS["verify"](Path("warm"))
    gc.freeze()  # else each measurement would look through all that was ever imported
    sys.addaudithook(watch)
    with os.fdopen(requests[0]) as supply, os.fdopen(answers[1], "w", 1) as out:
        for line in supply:
            request = json.loads(line)
            found = measured(WORKS[request["work"]], Path(request["run"]))
            out.write(json.dumps(found) + "\n")
    os._exit(0)


def work(request: dict[str, Any]) -> None:
    """Call the command line, with faults; never returns."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdin.close()
    code: Any = 1
    try:
        from saccade import cli

        sys.argv = ["saccade", *request["words"]]
        for name in FAULTS.keys() & request.keys():
            FAULTS[name](*request[name])
        cli.main()
    except SystemExit as left:
        code = left.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# --- faults ---------------------------------------------------------------------------------------


def die_at(save: int, number: int) -> None:
    """kill -9 at one I/O call of one save, or of what follows it, up to the next."""
    from saccade.runs import checkpoints
    from tests.faults.shim import Shim

    real, saves, since = checkpoints.save, 0, 0

    def fault(count: int, name: str) -> None:
        nonlocal since
        since += saves == save
        if since == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(*words: Any) -> Path:
        nonlocal saves
        saves += 1
        return real(*words)

    Shim(fault).__enter__()
    checkpoints.save = counted  # type: ignore[assignment]


def signal_at(number: int, where: str, nth: int) -> None:
    """Send this process a signal at the nth call of a function, or the nth I/O call of saves."""
    from tests.faults.shim import Shim

    def fault(count: int, name: str) -> None:
        if count == nth:
            os.kill(os.getpid(), number)

    if where == "save":
        Shim(fault).__enter__()
        return
    owner_name, _, name = where.rpartition(".")
    module, _, inner = owner_name.partition(":")
    owner = getattr(import_module(module), inner) if inner else import_module(module)
    real, calls = getattr(owner, name), 0

    def counted(*words: Any, **named: Any) -> Any:
        nonlocal calls
        if not (name == "hidden" and words[0].training):  # decoding, not training
            calls += 1
            fault(calls, name)
        return real(*words, **named)

    setattr(owner, name, counted)


def few_bytes(more: int) -> None:
    """Let the first four steps have only so many bytes more than the process has then."""
    import resource

    from saccade.training.trainer import Trainer

    def step(self: Any, *words: Any, real: Any = Trainer.step) -> Any:
        if self.at.step == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + more
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        done = real(self, *words)
        if self.at.step == 4:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        return done

    Trainer.step = step  # type: ignore[method-assign]


def slow(seconds: float) -> None:
    """Let the third step take long, and be asked to stop in it."""
    from saccade.training.trainer import Trainer

    def step(self: Any, *words: Any, real: Any = Trainer.step) -> Any:
        if self.at.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(0.1)
        return real(self, *words)

    Trainer.step = step  # type: ignore[method-assign]


def patience(seconds: float) -> None:
    """Let nobody wait longer for an answer to a signal."""
    from saccade.training import stop

    stop.PATIENCE_SECONDS = seconds


def stuck(number: int, where: str, after: int, nth: int) -> None:
    """Send a signal in the nth loss after a step, from a call that does not come back."""
    import torch

    from saccade.models.networks import Generator
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

    def forward(self: Any, *words: Any, real: Any = Generator.forward) -> Any:
        nonlocal calls
        calls += self.training == (where != "evaluation")
        now = (step, calls) == (after, nth)
        if now and where != "backward":
            hang()
        found, carry = real(self, *words)
        return (replace(found, sum=Hang.apply(found.sum)) if now else found), carry

    Generator.forward = forward  # type: ignore[method-assign]


FAULTS: dict[str, Callable[..., None]] = {
    "die_at": die_at, "signal": signal_at, "memory": few_bytes, "slow": slow, "stuck": stuck,
    "patience": patience,
}  # fmt: skip


# --- measuring ------------------------------------------------------------------------------------

watched: Path | None = None  # the run that is being opened
done: list[str] = []
RUNS_CODE = {
    "compile", "exec", "code.__new__", "function.__new__", "marshal.loads", "pickle.find_class",
    "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen",
    "ctypes.dlopen", "socket.connect", "webbrowser.open",
}  # fmt: skip
WRITES = {
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
    "os.symlink", "os.truncate", "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile",
}  # fmt: skip


def watch(event: str, words: tuple[Any, ...]) -> None:
    """Note what is forbidden; Python tells of every such thing before it is done."""
    if watched is None:
        return
    wrote = event in WRITES or (event == "open" and words[2] & (os.O_WRONLY | os.O_RDWR))
    if event in RUNS_CODE or (wrote and isinstance(words[0], str | bytes | Path)):
        path = Path(os.fsdecode(words[0])) if wrote else Path()
        real = path.parent.resolve() / path.name  # a link itself may be in the run, not its end
        if not wrote or not real.is_relative_to(watched) or real.is_symlink():
            done.append(f"{event} {words[:1]}"[:300])


def reset_peak() -> str:
    """Set back the peak of memory; why that cannot be done here, nothing if it is done."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError) as error:
        return f"the peak of memory cannot be set back here: {error}"
    return "" if resident("VmHWM") <= resident("VmRSS") + MB else "the peak was not set back"


def resident(key: str) -> int:
    """A number of bytes in /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def measured(work: Callable[[Path], Any], run: Path) -> Measured:
    """The outcome of a piece of work."""
    global watched
    known = not reset_peak()
    before, error, said = resident("VmRSS") if known else 0, "", ""
    done.clear()
    watched = run.resolve()
    try:
        work(run)
    except Exception as problem:
        error, said = type(problem).__name__, str(problem)
    finally:
        watched = None
    peak = max(0, resident("VmHWM") - before) if known else 0
    return Measured(error, said, peak, [*done])


def restore_checkpoint(run: Path) -> None:
    """Read a checkpoint into a network that is there already; the peak is handed over."""
    from saccade.models.build import materialize
    from saccade.runs import checkpoints
    from saccade.runs.folder import read_config
    from saccade.tasks.registry import load_task
    from saccade.training.saving import restore
    from saccade.training.trainer import Trainer

    task = load_task(read_config(run), run)
    trainer = Trainer(task, materialize(task.build_meta(), 1), run)
    last = checkpoints.paths(run / "checkpoints")[-1]
    outcome = measured(lambda path: restore(trainer, path), last)
    assert not outcome.error, outcome
    raise ArithmeticError(outcome.peak)


def harm(run: Path) -> None:
    """What no run may do."""
    eval("1 + 1")
    (run.parent / "outside.txt").write_text("")


def call(name: str, then: Callable[[Any], Any] = lambda found: found) -> Callable[[Path], None]:
    """The work of calling a function of the package with the run."""

    def work(run: Path) -> None:
        module, _, function = name.rpartition(".")
        then(getattr(import_module(module), function)(run))

    return work


WORKS: dict[str, Callable[[Path], Any]] = {
    "load": call("saccade.runs.run.load"),
    "predict": call("saccade.runs.run.load", lambda run: run.predict(["abc"])),
    "score": call("saccade.runs.run.load", lambda run: list(run.score("pairs.tsv"))),
    "exact": call("saccade.runs.run.load", lambda run: list(run.compare(["pairs.tsv"]))),
    "evaluate": call("saccade.runs.run.load", lambda run: run.evaluate()),
    "measure": call("saccade.runs.run.load", lambda run: run.evaluate("pairs.tsv")),
    "resume": call("saccade.training.session.resume", list),
    "verify": call("saccade.verify.verify", list),
    "restore": restore_checkpoint,
    "harm": harm,
    "numbers": lambda run: import_module("torch").ones(10 * MB).sum(),
    "texts": lambda run: [str(i) for i in range(100_000)],  # about 50 bytes each, and its place
}

if __name__ == "__main__":
    serve()
