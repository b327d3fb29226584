"""Media: how long a training step waits for its data, and a CNN against plain torch.

    python benchmarks/media_speed.py [--data FOLDER] [--seconds 10] [--rounds 3] [--json FILE]

Waiting is the share of the time of `saccade train`'s own loop in which it has no batch: with rows
kept in the run, and with rows made anew of their files for every batch. The data is FSDD and
Flickr8k (a folder with `fsdd` and `flickr8k` in it, $SACCADE_DATA), or, where they are not there,
files of the same sizes. The bar is 5 %.

The CNN is the default stem for pictures with a pooled label after it. Plain torch is what a fast
user would write for the case, with the same layers, batches, clipping and fused AdamW; both are
measured by turns in fp32. The bar is 0.9 of its speed.
"""

import argparse
import json
import os
import random
import tempfile
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import measuring
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from train_speed import our_steps

from saccade import config as c
from saccade.config import parse
from saccade.data.batches import Batch, Loader
from saccade.models.build import build
from saccade.nn.padded import Padded
from saccade.text.vocab import Inventory
from saccade.training import loop
from saccade.training.trainer import Trainer

MOST_WAITING = 0.05  # of a step
LEAST_RATIO = 0.9  # of plain torch's speed
NEVER = 1 << 40


# --- waiting for data -----------------------------------------------------------------------------


class TimedLoader(Loader):
    """A loader that counts the seconds for which it was waited for."""

    waited = 0.0

    def take(self, number: int, start: int, count: int) -> list[Batch]:
        began = perf_counter()
        found = super().take(number, start, count)
        TimedLoader.waited += perf_counter() - began
        return found


def waiting(raw: dict[str, Any], folder: Path, seconds: float) -> dict[str, Any]:
    """The share of the loop's time that is spent waiting for batches, and the speed."""
    work = our_steps(raw, folder / "run", {})
    plain, loop.Loader = loop.Loader, TimedLoader  # type: ignore[misc]
    try:
        for _ in range(measuring.WARM_UP_STEPS):
            next(work)
        TimedLoader.waited, steps, began = 0.0, 0, perf_counter()
        before = measuring.foreign_seconds()
        while (passed := perf_counter() - began) < seconds:
            steps += next(work)[0]
        foreign = measuring.foreign_seconds() - before
    finally:
        loop.Loader = plain  # type: ignore[misc]
        work.close()
    return {
        "waiting": TimedLoader.waited / passed,
        "steps_per_second": steps / passed,
        "disturbed": foreign > measuring.DISTURBING_CORES * passed,
    }


def settings(path: Path, cache_mb: int) -> dict[str, Any]:
    """What `saccade train FILE` would do, without evaluations and checkpoints."""
    train = {"steps": 1_000_000, "evaluate_every": NEVER, "save_every": NEVER, "processes": 1}
    data = {"train": [str(path)], "cache_mb": cache_mb}
    return {"data": data, "train": train | {"preflight": "off", "precision": "fp32"}}


def speech_file(data: Path, folder: Path, count: int = 2400) -> Path:
    """FSDD unpacked, or tones of its lengths."""
    if (data / "fsdd" / "train.zip").exists():
        return unpacked(data / "fsdd", ["train.zip"], "train.tsv", folder)
    import soundfile

    numbers, noise, rows = random.Random(1), np.random.default_rng(1), []
    (folder / "sounds").mkdir()
    for i in range(count):
        digit, length = numbers.randrange(10), round(8000 * numbers.uniform(0.25, 0.65))
        wave = 0.3 * np.sin(np.arange(length) * 0.1 * 2 ** (digit / 4))
        name = f"sounds/{i}.wav"
        soundfile.write(folder / name, wave + 0.01 * noise.normal(size=length), 8000)
        rows.append(f"{name}\t{digit}")
    path = folder / "speech.tsv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def picture_file(data: Path, folder: Path, count: int = 2000) -> Path:
    """Flickr8k unpacked, or noise of its photos' size with five captions each."""
    if (data / "flickr8k" / "train_images.zip").exists():
        return unpacked(data / "flickr8k", ["train_images.zip"], "train.jsonl", folder)
    from PIL import Image

    numbers, noise, rows = random.Random(1), np.random.default_rng(1), []
    (folder / "pictures").mkdir()
    for i in range(count):
        coarse = Image.fromarray(noise.integers(0, 256, (12, 12, 3), np.uint8))
        name = f"pictures/{i}.jpg"
        coarse.resize((96, 96)).save(folder / name, quality=85)
        said = [" ".join(f"w{numbers.randrange(3000)}" for _ in range(11)) for _ in range(5)]
        rows.append(json.dumps({"image": name, "captions": said}))
    path = folder / "captions.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def unpacked(source: Path, archives: list[str], table: str, folder: Path) -> Path:
    for name in archives:
        with zipfile.ZipFile(source / name) as archive:
            archive.extractall(folder)
    path = folder / table
    path.write_bytes((source / table).read_bytes())
    return path


# --- a CNN against plain torch --------------------------------------------------------------------

SIDE, COLOURS, CELL, CHANNELS, DIM, LABELS, ROWS = 64, 3, 16, 32, 128, 10, 64
CELLS = (SIDE // CELL) ** 2


def pictures(numbers: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of pictures as bytes (B, H, W, colours), and their labels."""
    shape = ROWS, SIDE, SIDE, COLOURS
    values = torch.randint(0, 256, shape, generator=numbers, dtype=torch.uint8)
    return values, torch.randint(0, LABELS, (ROWS,), generator=numbers)


def as_cells(values: Tensor) -> Tensor:
    """Pictures as our loader lays them out: (B, cells, numbers of a cell)."""
    side = SIDE // CELL
    x = values.view(-1, side, CELL, side, CELL, COLOURS).transpose(2, 3)
    return x.reshape(-1, CELLS, CELL * CELL * COLOURS)


def our_classifier() -> Trainer:
    raw: dict[str, Any] = {
        "task": {"kind": "classify", "columns": {"image": {"kind": "picture"}}},
        "data": {"source": ["image"]},
        "encoder": {"kind": "none", "dim": DIM, "dropout": 0.0},
        "head": {"kind": "pooled", "pool": "attention", "dropout": 0.0},
        "train": {"precision": "fp32", "label_smoothing": 0.1, "warmup": 0},
    }
    config = parse(raw, "benchmark")
    vectors = c.Vectors(c.Picture(), CELL * CELL * COLOURS)
    network = build(config, [vectors], Inventory(LABELS, ()))

    class Plain:  # all that a trainer asks of a task
        pass

    task: Any = Plain()
    task.config = config
    return Trainer(task, network, Path())


def our_pictures(trainer: Trainer, seed: int = 1) -> Iterator[tuple[int, int]]:
    numbers = torch.Generator().manual_seed(seed)
    while True:
        values, labels = pictures(numbers)
        lengths = torch.full((ROWS,), CELLS)
        target = Padded(labels[:, None], torch.ones(ROWS, dtype=torch.long))
        trainer.step([Batch((Padded(as_cells(values), lengths),), target)], 0.5)
        yield 1, ROWS


def group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(max(1, channels // 8), channels)


class TorchBlock(nn.Module):
    """A pre-activation residual block that halves the picture."""

    def __init__(self, before: int, after: int):
        super().__init__()
        self.norm1, self.norm2 = group_norm(before), group_norm(after)
        self.conv1 = nn.Conv2d(before, after, 3, 2, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.skip = nn.Conv2d(before, after, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(x))
        skipped = self.skip(F.avg_pool2d(inner, 2))
        return skipped + self.conv2(F.relu(self.norm2(self.conv1(inner))))  # type: ignore[no-any-return]


class TorchClassifier(nn.Module):
    """The same layers as ours in plain torch, channels last, as a CPU likes them."""

    def __init__(self) -> None:
        super().__init__()
        widths = [CHANNELS, *(min(CHANNELS << i, DIM) for i in range(1, CELL.bit_length() - 1))]
        self.first = nn.Conv2d(COLOURS, CHANNELS, 5, 2, padding=2)
        self.blocks = nn.Sequential(*(TorchBlock(a, b) for a, b in pairwise(widths)))
        self.norm = group_norm(widths[-1])
        self.project = nn.Linear(widths[-1], DIM)
        side = SIDE // CELL
        self.rows, self.columns = nn.Embedding(side, DIM), nn.Embedding(side, DIM)
        self.score, self.output = nn.Linear(DIM, 1), nn.Linear(DIM, LABELS)

    def forward(self, values: Tensor) -> Tensor:
        x = (values.float() / 127.5 - 1.0).permute(0, 3, 1, 2)  # bytes in a row: channels last
        x = F.relu(self.norm(self.blocks(self.first(x))))  # (B, C, side, side)
        marks = (self.rows.weight[:, None] + self.columns.weight).flatten(0, 1)
        x = self.project(x.flatten(2).mT) + marks  # (B, cells, D)
        weights = self.score(x).mT.softmax(-1)  # (B, 1, cells)
        return self.output((weights @ x).squeeze(1))  # type: ignore[no-any-return]


def torch_pictures(seed: int = 1) -> Iterator[tuple[int, int]]:
    torch.manual_seed(seed)
    network = TorchClassifier().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, betas=(0.9, 0.98), fused=True)
    numbers = torch.Generator().manual_seed(seed)
    while True:
        values, labels = pictures(numbers)
        optimizer.zero_grad()
        loss = F.cross_entropy(network(values), labels, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        float(loss.detach())
        yield 1, ROWS


def compared(seconds: float, rounds: int) -> dict[str, Any]:
    """Pictures a second, ours and plain torch's, by turns; medians of all rounds."""
    ours, theirs = our_pictures(our_classifier()), torch_pictures()
    found: dict[str, list[dict[str, Any]]] = {"saccade": [], "torch": []}
    for _ in range(rounds):
        for name, work in (("saccade", ours), ("torch", theirs)):
            found[name].append(measuring.measure(work, seconds))
    speeds = {
        name: median(one["tokens_per_second"] for one in some) for name, some in found.items()
    }
    return {
        "pictures_per_second": speeds,
        "ratio": speeds["saccade"] / speeds["torch"],
        "disturbed": any(one["disturbed"] for some in found.values() for one in some),
    }


# --- all of it ------------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SACCADE_DATA", "data")))
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of the CNN against plain torch")
    parser.add_argument("--json", type=Path, default=Path("bench-media.json"))
    return parser.parse_args()


def main() -> None:
    chosen, results = parse_arguments(), {}
    machine = measuring.machine()
    print(f"{machine['model']}, {machine['cores']} cores, {machine['kind']}")
    for name, write in (("fsdd", speech_file), ("flickr8k", picture_file)):
        real = (chosen.data / name).is_dir()
        for kept, cache_mb in (("kept in the run", 2000), ("made anew", 0)):
            with tempfile.TemporaryDirectory() as folder:
                path = write(chosen.data, Path(folder))
                found = waiting(settings(path, cache_mb), Path(folder), chosen.seconds)
            results[f"{name}, {kept}"] = found | {"real_data": real}
            verdict = "fine" if found["waiting"] <= MOST_WAITING else "MORE THAN THE BAR"
            notes = [verdict, *(["disturbed"] if found["disturbed"] else [])]
            notes += [] if real else ["generated data"]
            print(
                f"{name}, rows {kept}: {found['steps_per_second']:.1f} steps/s, waiting "
                f"{found['waiting']:.1%} of the time, bar {MOST_WAITING:.0%}: {', '.join(notes)}",
                flush=True,
            )
    found = compared(chosen.seconds / 2, chosen.rounds)
    results["cnn"] = found
    speeds = found["pictures_per_second"]
    verdict = "fine" if found["ratio"] >= LEAST_RATIO else "LESS THAN THE BAR"
    print(
        f"CNN: {speeds['saccade']:.0f} pictures/s, plain torch {speeds['torch']:.0f}, ratio "
        f"{found['ratio']:.2f}, bar {LEAST_RATIO}: {verdict}"
        + (", disturbed" if found["disturbed"] else "")
    )
    whole = {"machine": machine, "seconds": chosen.seconds, "measurements": results}
    chosen.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
