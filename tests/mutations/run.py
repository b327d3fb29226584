"""Breaks the code on purpose, one small change at a time, and asks the fast tests to notice.

    python -m tests.mutations.run              all of the table
    python -m tests.mutations.run beam decay   those whose name holds one of these words

Each mutation is applied in a copy of the tree, where the tests that it names are run. It is caught
if one of them fails. Exits with 1 if fewer than 95 % are caught, if a mutation no longer fits the
code, or if the tests fail without any mutation.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from tests.mutations.mutation import Mutation
from tests.mutations.table import MUTATIONS

ROOT = Path(__file__).parents[2]
WANTED = 0.95  # of the mutations are caught
MAX_SECONDS = 600  # of one mutation's tests: what has no end is noticed, too
OPTIONS = ("-x", "-q", "-n0", "-p", "no:cacheprovider", "-m", "not slow and not faults")
PRELOADED = ("torch", "sacrebleu", "tokenizers", "pydantic", "beartype.claw")

Outcome = Literal["passed", "failed", "endless"]


def misfit(mutation: Mutation) -> str | None:
    """Why a mutation cannot be applied; None if it can."""
    path = ROOT / mutation.file
    if not path.exists():
        return f"{mutation.file} is no more"
    found = path.read_text(encoding="utf-8").count(mutation.old)
    if found != 1:
        return f"{mutation.file} has its old text {found} times, not once"
    missing = [test for test in mutation.tests if not (ROOT / test.partition("::")[0]).exists()]
    return f"no file {missing[0]}" if missing else None


def outcome(tests: Sequence[str], tree: Path, seconds: int = 0) -> Outcome:
    """How the tests end in a copy of the tree, in a process of their own.

    It is forked from this one, which has imported what takes long, but nothing of the tree's.
    `seconds` is how long they may take; 0 is as long as they like.
    """
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        os.chdir(tree)
        with (tree / "log.txt").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.path.insert(0, str(tree))
        os.environ["PYTHONPATH"] = str(tree)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        code = 99
        try:
            code = int(pytest.main([*OPTIONS, *tests]))
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code > pytest.ExitCode.TESTS_FAILED:  # no test has failed, but pytest itself
        sys.exit((tree / "log.txt").read_text(encoding="utf-8")[-4000:])
    if code == -signal.SIGALRM:
        return "endless"
    return "passed" if code == 0 else "failed"


def write(path: Path, text: str, age: int) -> None:
    """Write a file of the copy with a time of its own: byte code is known by its second."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (age, age))


def survivors(mutations: Sequence[Mutation], tree: Path) -> list[Mutation]:
    """The mutations that no test noticed."""
    found = []
    for number, mutation in enumerate(mutations, start=1):
        path, began = tree / mutation.file, time.perf_counter()
        text = path.read_text(encoding="utf-8")
        write(path, text.replace(mutation.old, mutation.new), 1_000_000 + 2 * number)
        try:
            ending = outcome(mutation.tests, tree, MAX_SECONDS)
        finally:
            write(path, text, 1_000_001 + 2 * number)
        found += [mutation] if ending == "passed" else []
        word = {"passed": "SURVIVED", "failed": "caught", "endless": "caught, no end"}[ending]
        seconds = time.perf_counter() - began
        print(f"{number:3} {word:8} {seconds:6.1f} s  {mutation.name}", flush=True)
    return found


def main(words: Sequence[str]) -> int:
    chosen = [m for m in MUTATIONS if not words or any(word in m.name for word in words)]
    problems = [f"{m.name}: {problem}" for m in chosen if (problem := misfit(m))]
    if problems or not chosen:
        print(*(problems or ["no such mutation"]), sep="\n")
        return 1
    for name in PRELOADED:
        __import__(name)
    began = time.perf_counter()
    tried = [m for m in chosen if m.equivalent is None]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for name in ("saccade", "tests", "benchmarks"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        if outcome(list(dict.fromkeys(test for m in tried for test in m.tests)), tree) != "passed":
            print((tree / "log.txt").read_text(encoding="utf-8")[-4000:])
            print("the tests fail as they are: nothing can be learned from them")
            return 1
        print(f"unchanged: all tests pass, {time.perf_counter() - began:.0f} s", flush=True)
        survived = survivors(tried, tree)
    for mutation in (m for m in chosen if m.equivalent is not None):
        print(f"equivalent: {mutation.name} ({mutation.equivalent})")
    for mutation in survived:
        print(f"survived: {mutation.name}: {mutation.file}: {mutation.old!r} -> {mutation.new!r}")
    share = 1 - len(survived) / max(len(tried), 1)
    print(
        f"{len(tried) - len(survived)} of {len(tried)} caught ({share:.0%}), "
        f"{time.perf_counter() - began:.0f} s"
    )
    return 0 if share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
