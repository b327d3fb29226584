"""Small files whose targets are numbers."""

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def sums(folder: Path, count: int = 200, most: int = 20) -> Path:
    """Two numbers in letters of their own, and their sum."""
    numbers, path = random.Random(1), folder / "sums.tsv"
    pairs = [(numbers.randrange(most), numbers.randrange(most)) for _ in range(count)]
    path.write_text("".join(f"{a} plus {b}\t{a + b}\n" for a, b in pairs))
    return path


def heights(folder: Path, count: int = 60) -> Path:
    """A number for each letter: its own, and half of the one before it; some are missing."""
    numbers, rows = random.Random(2), []
    for _ in range(count):
        letters = [numbers.choice("abcd") for _ in range(numbers.randint(2, 7))]
        own = ["abcd".index(letter) for letter in letters]
        said: list[float | None] = [x + 0.5 * y for x, y in zip(own, [0, *own], strict=False)]
        if numbers.random() < 0.5:
            said[numbers.randrange(len(said))] = None
        rows.append({"text": " ".join(letters), "y": said})
    return write_jsonl(folder / "heights.jsonl", rows)


def waves(folder: Path, count: int = 80) -> Path:
    """The first half of a sine as the source, and how it goes on."""
    numbers, rows = random.Random(3), []
    for _ in range(count):
        begin, speed = numbers.uniform(0, 6), numbers.uniform(0.3, 0.8)
        line = [round(math.sin(begin + speed * t), 4) for t in range(16)]
        rows.append({"series": [[x] for x in line[:10]], "values": line[10:]})
    return write_jsonl(folder / "waves.jsonl", rows)


def strokes(folder: Path, count: int = 80) -> Path:
    """Circles and lines as rows of (dx, dy, pen), each with a length of its own."""
    numbers, rows = random.Random(4), []
    for i in range(count):
        n, circle = numbers.randint(5, 9), i % 2 == 0
        drawn = []
        for t in range(n):
            angle = 2 * math.pi * t / n if circle else 0.5
            move = (math.cos(angle), math.sin(angle))
            drawn.append([*(round(x + numbers.gauss(0, 0.05), 3) for x in move), int(t == n - 1)])
        rows.append({"label": "circle" if circle else "line", "strokes": drawn})
    return write_jsonl(folder / "strokes.jsonl", rows)


def arrays(folder: Path, count: int = 40) -> Path:
    """Words, and vectors in files of their own, by paths."""
    numbers, path = np.random.default_rng(5), folder / "arrays.tsv"
    (folder / "vectors").mkdir(exist_ok=True)
    lines = []
    for i in range(count):
        word = "ab"[i % 2] * (i // 2 % 4 + 1) + str(i)
        np.save(folder / "vectors" / f"{i}.npy", numbers.normal(size=3) + 10 * (i % 2))
        lines.append(f"{word}\tvectors/{i}.npy\n")
    path.write_text("".join(lines))
    return path
