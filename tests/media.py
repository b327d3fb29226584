"""Small pictures, sounds and series for tests, and the files that name them."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image, ImageDraw

COLOURS = {"red": (220, 30, 30), "green": (30, 180, 30), "blue": (30, 30, 220)}
SHAPES = ("circle", "square", "triangle")
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
RATE = 8000


def draw(path: Path, colour: str, shape: str, numbers: random.Random) -> None:
    """A shape somewhere on a white picture of 32 x 32."""
    image = Image.new("RGB", (32, 32), "white")
    pen = ImageDraw.Draw(image)
    x, y, r = numbers.randint(9, 22), numbers.randint(9, 22), numbers.randint(6, 8)
    if shape == "circle":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=COLOURS[colour])
    elif shape == "square":
        pen.rectangle((x - r, y - r, x + r, y + r), fill=COLOURS[colour])
    else:
        pen.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=COLOURS[colour])
    image.save(path)


def shapes(folder: Path, count: int) -> list[tuple[str, str, str]]:
    """So many pictures in a folder: path, colour and shape of each."""
    (folder / "pictures").mkdir(exist_ok=True)
    numbers, found = random.Random(1), []
    for i in range(count):
        colour, shape = numbers.choice(list(COLOURS)), numbers.choice(SHAPES)
        name = f"pictures/{i}.png"
        draw(folder / name, colour, shape, numbers)
        found.append((name, colour, shape))
    return found


def tone(path: Path, pitch: float, seconds: float, rate: int = RATE, seed: int = 0) -> None:
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(size=len(time))
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * pitch * time) + 0.01 * noise, rate)


def tones(folder: Path, count: int) -> list[tuple[str, int]]:
    """So many tones in a folder, of ten pitches: path and number of each."""
    (folder / "sounds").mkdir(exist_ok=True)
    numbers, found = random.Random(1), []
    for i in range(count):
        digit, name = numbers.randrange(10), f"sounds/{i}.wav"
        tone(folder / name, 300 * 2 ** (digit / 4), numbers.uniform(0.15, 0.3), seed=i)
        found.append((name, digit))
    return found


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def captions(folder: Path, count: int = 40) -> Path:
    rows = [
        {"image": name, "captions": [f"a {colour} {shape}", f"one {shape}, {colour}"]}
        for name, colour, shape in shapes(folder, count)
    ]
    return write_jsonl(folder / "captions.jsonl", rows)


def questions(folder: Path, count: int = 60) -> Path:
    rows = []
    for i, (name, colour, shape) in enumerate(shapes(folder, count)):
        asked = ("what colour is it?", colour) if i % 2 else ("what shape is it?", shape)
        rows.append({"image": name, "question": asked[0], "answer": asked[1]})
    return write_jsonl(folder / "vqa.jsonl", rows)


def digits(folder: Path, count: int = 60) -> Path:
    path = folder / "digits.tsv"
    path.write_text("".join(f"{name}\t{digit}\n" for name, digit in tones(folder, count)))
    return path


def speech(folder: Path, count: int = 40) -> Path:
    """Two words for each tone, each example another text."""
    path = folder / "speech.tsv"
    rows = enumerate(tones(folder, count))
    path.write_text("".join(f"{name}\t{DIGITS[d]} and {i}\n" for i, (name, d) in rows))
    return path


def series(folder: Path, count: int = 60) -> Path:
    numbers, rows = np.random.default_rng(3), []
    for i in range(count):
        slope, length = i % 3 - 1, int(numbers.integers(4, 9))
        line = 100 + slope * np.arange(length) + 0.1 * numbers.normal(size=length)
        values = [[round(float(x), 3), 7.0] for x in line]
        rows.append({"series": values, "label": ("down", "flat", "up")[slope + 1]})
    return write_jsonl(folder / "series.jsonl", rows)


def melodies(folder: Path, count: int = 60) -> Path:
    """Series of up to six notes, each of a few frames with silence after it, and their names."""
    numbers, rows = np.random.default_rng(5), []
    for _ in range(count):
        notes = numbers.integers(0, 4, size=int(numbers.integers(1, 7)))
        frames = []
        for note in notes.tolist():
            long, silent = numbers.integers(1, 4, size=2).tolist()
            frames += [np.eye(4)[note]] * long + [np.zeros(4)] * silent
        noisy = np.array(frames) + 0.1 * numbers.normal(size=(len(frames), 4))
        names = "".join("abcd"[note] for note in notes)
        rows.append({"series": noisy.round(2).tolist(), "text": names})
    return write_jsonl(folder / "melodies.jsonl", rows)


def steps(folder: Path, count: int = 60) -> Path:
    """Series of which each step is low or high."""
    numbers, rows = np.random.default_rng(4), []
    for _ in range(count):
        values = numbers.normal(size=(int(numbers.integers(2, 9)), 2)).round(3)
        labels = ["high" if value > 0 else "low" for value in values[:, 0]]
        rows.append({"series": values.tolist(), "tags": labels})
    return write_jsonl(folder / "steps.jsonl", rows)
