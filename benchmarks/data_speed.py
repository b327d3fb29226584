"""Text: how much of training is not forward, backward and update, and what ten million pairs cost.

    python benchmarks/data_speed.py [tiny g2p ...] [--pairs 10000000] [--seconds 10]

The first figure is of `saccade train`'s own loop on the workloads of train_speed.py: the share of
its time outside of `Trainer.step`, for batches, reports and the log. The second is of a corpus of
random pairs on disk: the order of an epoch, and a batch of it, beside the steps of that epoch if
each took as long as the workload's. The bar for both together is 2 %.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import measuring
import numpy as np
from train_speed import our_steps
from workloads import WORKLOADS, settings, write_files

from saccade.data.batches import epoch_of
from saccade.data.corpora import Column, Corpus, open_column, open_corpus, write_corpus
from saccade.training.trainer import Trainer

MOST_OUTSIDE = 0.02  # of the time
CHUNK_PAIRS = 100_000  # written at once
BATCHES = 1000  # of the large corpus, that are made


def outside(name: str, seconds: float) -> tuple[float, float, bool]:
    """The share of the loop's time outside of steps, a step's seconds, and if it was disturbed."""
    inside, plain = 0.0, Trainer.step

    def timed(*given, **named):  # type: ignore[no-untyped-def]
        nonlocal inside
        began = perf_counter()
        try:
            return plain(*given, **named)
        finally:
            inside += perf_counter() - began

    with tempfile.TemporaryDirectory() as folder:
        write_files(name, Path(folder))
        raw = settings(name, Path(folder), 1)
        raw["train"] |= {"precision": "fp32", "processes": 1}
        work = our_steps(raw, Path(folder) / "run", {})
        Trainer.step = timed  # type: ignore[method-assign]
        try:
            for _ in range(measuring.WARM_UP_STEPS):
                next(work)
            before, began, steps, inside = measuring.foreign_seconds(), perf_counter(), 0, 0.0
            while (passed := perf_counter() - began) < seconds:
                steps += next(work)[0]
            passed = perf_counter() - began
            foreign = measuring.foreign_seconds() - before
        finally:
            Trainer.step = plain  # type: ignore[method-assign]
            work.close()
    disturbed = foreign > measuring.DISTURBING_CORES * passed
    return 1.0 - inside / passed, passed / steps, disturbed


def large_corpus(folder: Path, pairs: int) -> Corpus:
    """Random ids in rows of 4 to 60, 14 on average, written and opened as a run does."""
    numbers = np.random.default_rng(1)

    def column(count: int) -> Column:
        lengths = np.clip(numbers.lognormal(2.5, 0.5, count), 4, 60).astype(np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])
        return Column(numbers.integers(5, 10_000, starts[-1], np.int32), starts)

    def chunks() -> Iterator[Corpus]:
        for first in range(0, pairs, CHUNK_PAIRS):
            count = min(CHUNK_PAIRS, pairs - first)
            yield Corpus((column(count),), column(count))

    write_corpus(folder, "train", chunks())
    opens = [lambda path, name: open_column(path, name, 0)] * 2
    return open_corpus(folder, "train", opens)


def epoch_seconds(corpus: Corpus, batch_tokens: int) -> tuple[float, float, int]:
    """How long an epoch's order takes, how long one of its batches, and how many there are."""
    began = perf_counter()
    epoch = epoch_of(corpus, batch_tokens, seed=1, epoch=0)
    order, each = perf_counter() - began, []
    for i in range(min(BATCHES, len(epoch))):
        began = perf_counter()
        epoch[i]
        each.append(perf_counter() - began)
    return order, median(each), len(epoch)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="else tiny and g2p")
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=10)
    chosen = parser.parse_args()
    if odd := set(chosen.workloads) - set(WORKLOADS):
        parser.error(f"no workload {min(odd)}; there are {', '.join(WORKLOADS)}")
    machine = measuring.machine()
    print(f"{machine['model']}, {machine['cores']} cores, {machine['kind']}")
    with tempfile.TemporaryDirectory() as folder:
        corpus = large_corpus(Path(folder), chosen.pairs)
        for name in chosen.workloads or ("tiny", "g2p"):
            share, step, disturbed = outside(name, chosen.seconds)
            tokens = settings(name, Path(folder), 1)["train"]["batch_tokens"]
            order, batch, batches = epoch_seconds(corpus, tokens)
            more = (order / batches + batch) / step
            verdict = "fine" if max(share, more) <= MOST_OUTSIDE else "MORE THAN THE BAR"
            print(
                f"{name}: {1000 * step:.0f} ms a step, {share:.1%} of the time outside of steps; "
                f"of {chosen.pairs:,} pairs {order:.1f} s for the order of {batches:,} batches and "
                f"{1000 * batch:.2f} ms a batch, {more:.1%} of as many steps: {verdict}"
                + (", disturbed" if disturbed else ""),
                flush=True,
            )


if __name__ == "__main__":
    main()
