"""A large corpus: how fast it is tokenised, in how much memory, and how soon an epoch begins.

    python benchmarks/corpus_speed.py [--lines 10000000] [--folder FOLDER]

Generates pairs of sentences into eight files (plain, gzip and zstd), prepares them as `saccade
train 'FOLDER/*.tsv*'` does, in a process of its own, and opens them in another. The bars are
200,000 lines a minute and about a second. Memory is the most that was resident, of the parent and
of each worker; what is not its own is shared, or of files.
"""

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import zstandard

FILES = ("tsv", "tsv", "tsv.gz", "tsv.zst") * 2
WORDS, WORDS_OF_A_LINE = 50_000, 9
LINES_AT_ONCE = 50_000
LEAST_A_MINUTE = 200_000


def generate(folder: Path, lines: int) -> int:
    """Pairs of lines of words as frequent as those of a language; their size in bytes."""
    numbers = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    pick = lambda: "".join(letters[numbers.zipf(1.3, numbers.integers(2, 10)) % 26])  # noqa: E731
    words = np.array([pick() for _ in range(WORDS)])
    size = 0
    for number, suffix in enumerate(FILES):
        wanted = lines * (number + 1) // len(FILES) - lines * number // len(FILES)
        path = folder / f"part{number}.{suffix}"
        openers = {"tsv": open, "tsv.gz": gzip.open}
        write = openers.get(suffix, zstandard.open)(path, "wb")
        with write as file:
            for first in range(0, wanted, LINES_AT_ONCE):
                many = min(LINES_AT_ONCE, wanted - first)
                some = words[numbers.zipf(1.2, (many, 2, WORDS_OF_A_LINE)) % WORDS]
                rows = ["\t".join((" ".join(a), " ".join(b))) for a, b in some.tolist()]
                text = ("\n".join(rows) + "\n").encode()
                size += len(text)
                file.write(text)
    return size


def prepare(pattern: str, folder: Path) -> None:
    """What `train` does before it has a network."""
    from saccade.runs.folder import write_config
    from saccade.setup.choose import fill_config, gather
    from saccade.setup.prepare import prepare

    config, _ = fill_config(*gather(pattern, task="translate"))
    began = time.perf_counter()
    prepare(config, folder)
    print(f"survey aside, tokenised in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    write_config(folder, config, prepared=True)


def begin(folder: Path) -> None:
    """The start of two epochs of a run that is there."""
    from saccade.runs.folder import read_config
    from saccade.setup.prepare import reopen

    config = read_config(folder)
    for epoch in (0, 1):
        began = time.perf_counter()
        ready = reopen(config, folder)
        opened = time.perf_counter()
        batches = ready.task.epoch(ready.train, epoch)
        batch = batches[0]
        print(
            f"epoch {epoch} of {len(ready.train):,} pairs: opened in {opened - began:.2f} s, "
            f"its first batch after {time.perf_counter() - opened:.2f} s more "
            f"({len(batches):,} batches; {batch.count} rows)"
        )


class Memory(threading.Thread):
    """Looks at the resident memory of a process and its children until it is told to stop."""

    def __init__(self, parent: int):
        super().__init__(daemon=True)
        self.parent, self.over = parent, threading.Event()
        self.most: dict[int, tuple[int, int]] = {}

    def run(self) -> None:
        while not self.over.wait(0.2):
            for pid in (self.parent, *children(self.parent)):
                try:
                    status = Path(f"/proc/{pid}/status").read_text().splitlines()
                except OSError:
                    continue
                found = [int(line.split()[1]) for line in status if line.startswith("VmHWM")]
                own = [int(line.split()[1]) for line in status if line.startswith("RssAnon")]
                before = self.most.get(pid, (0, 0))
                self.most[pid] = (max((before[0], *found)), max((before[1], *own)))


def children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="for the files; else a temporary one")
    parser.add_argument("--do", nargs=3, help=argparse.SUPPRESS)  # in a process of its own
    chosen = parser.parse_args()
    if chosen.do:
        what, pattern, folder = chosen.do
        prepare(pattern, Path(folder)) if what == "prepare" else begin(Path(folder))
        return
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        folder = Path(name)
        size = generate(folder, chosen.lines)
        print(
            f"{chosen.lines:,} pairs, {size / 1e6:,.0f} MB of text, {len(FILES)} files", flush=True
        )
        (folder / "run").mkdir()
        command = [sys.executable, __file__, "--do"]
        arguments = (str(folder / "part*"), str(folder / "run"))
        began = time.perf_counter()
        process = subprocess.Popen([*command, "prepare", *arguments])
        memory = Memory(process.pid)
        memory.start()
        if process.wait():
            sys.exit("the corpus was not prepared")
        seconds = time.perf_counter() - began
        memory.over.set()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        rate = 60 * chosen.lines / seconds
        print(
            f"{seconds:.1f} s on {os.cpu_count()} cores: {rate:,.0f} pairs a minute: "
            + ("fine" if rate >= LEAST_A_MINUTE else "BELOW THE BAR")
            + f"; {used.ru_utime + used.ru_stime:.1f} s of processor time"
        )
        parent, *workers = [(a >> 10, b >> 10) for a, b in memory.most.values()]
        print(f"resident at most: parent {parent[0]} MB ({parent[1]} MB its own)")
        for worker in workers:
            print(f"  a worker {worker[0]} MB ({worker[1]} MB its own)")
        subprocess.run([*command, "begin", *arguments], check=True)
        made = sum(path.stat().st_size for path in (folder / "run" / "data").iterdir())
        print(json.dumps({"lines": chosen.lines, "seconds": seconds, "data_bytes": made}))


if __name__ == "__main__":
    main()
