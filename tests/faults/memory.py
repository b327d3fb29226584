"""What is done when a run is opened, and how much memory it takes, as the system counts it.

The runs are opened one after the other in a process of their own. Linux lets it set its peak back
(/proc/self/clear_refs). What was freed before is handed back first, else the work would use it
again and nobody would see; so Python's own allocator, which hands little back, is off there.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MB = 1 << 20
PYTHON = 4 * MB  # what Python and torch may take beside: buffers, objects, a page here and there
RESET = Path("/proc/self/clear_refs")
ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "1"


# --- the tests' side ------------------------------------------------------------------------------


class Outcome(NamedTuple):
    error: str  # its class; empty if there was none
    said: str
    peak: int  # bytes beside what the process had before; 0 where the system does not tell
    done: list[str]  # what is forbidden: code that was run, files outside that were written


class Gauge:
    """The other process; `open` is one piece of work in it."""

    def __init__(self, folder: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONMALLOC": "malloc"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.memory", str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=folder, text=True,
        )  # fmt: skip
        assert self.process.stdout
        self.problem = json.loads(self.process.stdout.readline())
        self.largest: dict[str, tuple[float, float]] = {}  # MB, and times the size of the files

    def open(self, work: str, run: Path) -> Outcome:
        """What comes of a piece of work (a key of WORKS) with a run."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([work, str(run)]) + "\n")
        self.process.stdin.flush()
        return Outcome(*json.loads(self.process.stdout.readline()))

    def refuses(self, work: str, run: Path, name: str, allowance: int = PYTHON) -> str:
        """What is said of a hostile run: it is refused, in 1.5 times its files and an allowance."""
        size = size_of(run)
        error, said, peak, done = self.open(work, run)
        assert not done, (name, done)
        assert error == "CheckpointError", (name, error, said)
        assert len(said.splitlines()) <= 12, said
        assert max(map(len, said.splitlines())) < 600, said
        most, ratio = self.largest.get(name, (0.0, 0.0))
        self.largest[name] = max(most, peak / MB), max(ratio, (peak - allowance) / size)
        assert peak <= 1.5 * size + allowance, (name, peak / MB, size / MB)
        return said

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


def size_of(folder: Path) -> int:
    """The bytes of all plain files in a folder, without their holes."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(min(path.stat().st_size, path.stat().st_blocks * 512) for path in found)


# --- the other side -------------------------------------------------------------------------------


def serve(folder: Path) -> None:
    import shutil

    import torch

    import saccade
    import saccade.verify

    torch.set_num_threads(1)
    for path in GOLDEN.iterdir():  # all that is imported and kept when it is first used
        saccade.load(path)
    shutil.copytree(GOLDEN / "language-model", folder / "warm")
    text = (folder / "warm" / "config.toml").read_text()
    (folder / "warm" / "config.toml").write_text(text.replace("steps = 150", "steps = 151"))
    WORKS["resume"](folder / "warm")
    sys.addaudithook(watch)
    gc.freeze()  # else each measurement would look through all that was ever imported
    print(json.dumps(trouble()), flush=True)
    for line in sys.stdin:
        work, run = json.loads(line)
        print(json.dumps(measured(WORKS[work], Path(run))), flush=True)


def trouble() -> str:
    """Set back the peak of memory; why that cannot be done here, nothing if it is done."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        RESET.write_text("5")
    except (OSError, AttributeError) as error:
        return f"the peak of memory cannot be set back here: {error}"
    return "" if resident("VmHWM") <= resident("VmRSS") + MB else "the peak was not set back"


def measured(work: Callable[[Path], Any], run: Path) -> Outcome:
    """The outcome of a piece of work."""
    global watched
    known = not trouble()
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
    return Outcome(error, said, peak, [*done])


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


def resident(key: str) -> int:
    """A number of bytes in /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def load(run: Path) -> None:
    import saccade

    saccade.load(run)


def resume(run: Path) -> None:
    from saccade.training.session import resume as go_on

    for _ in go_on(run):
        pass


def evaluate(run: Path) -> None:
    import saccade

    saccade.load(run).evaluate()


def verify(run: Path) -> None:
    from saccade.verify import verify as laws

    list(laws(run))


def restore(run: Path) -> None:
    """Read a checkpoint into a network that is there already."""
    from saccade.models.build import materialize
    from saccade.runs import checkpoints
    from saccade.runs.folder import read_config
    from saccade.setup.prepare import load_task
    from saccade.training.trainer import Trainer

    task = load_task(read_config(run), run)
    trainer = Trainer(task, materialize(task.build_meta(), 1), run)
    outcome = measured(trainer.restore, checkpoints.paths(run / "checkpoints")[-1])
    assert not outcome.error, outcome
    raise ArithmeticError(outcome.peak)  # a number that is handed over


def numbers(run: Path) -> None:
    import torch

    torch.ones(10 * MB).sum()


def harm(run: Path) -> None:
    """What no run may do."""
    eval("1 + 1")
    (run.parent / "outside.txt").write_text("")


def texts(run: Path) -> None:
    """100,000 texts, each of about 50 bytes beside its place in the list."""
    [str(i) for i in range(100_000)]


WORKS: dict[str, Callable[[Path], None]] = {
    "load": load, "resume": resume, "evaluate": evaluate, "verify": verify, "restore": restore,
    "numbers": numbers, "texts": texts, "harm": harm,
}  # fmt: skip

if __name__ == "__main__":
    serve(Path(sys.argv[1]))
