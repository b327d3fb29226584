"""Media by the hundred, cut off and scrambled: each is read, or named, and nothing else."""

import random
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from saccade import config as c
from saccade.data.media import Cell, MediaField
from saccade.data.numbers import NumbersField
from saccade.data.pictures import PictureField
from saccade.data.sounds import SoundField

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore")]
PICTURE = PictureField(c.Picture(height=16, width=16, cell=8))
SOUND = SoundField(c.Sound(rate=8000, bands=8), np.zeros(8), np.ones(8))
NUMBERS = NumbersField(c.Numbers(), np.zeros(3), np.ones(3))
TRIES = 150


def pictures(folder: Path) -> list[Path]:
    noise = np.random.default_rng(1).integers(0, 256, (40, 40, 3)).astype(np.uint8)
    names = ["x.png", "x.jpg", "x.gif", "x.bmp", "x.webp", "x.tiff", "x.ppm"]
    for name in names:
        Image.fromarray(noise).save(folder / name)
    return [folder / name for name in names]


def sounds(folder: Path) -> list[Path]:
    noise = 0.1 * np.random.default_rng(1).normal(size=2000)
    names = ["x.wav", "x.flac", "x.ogg"]
    for name in names:
        soundfile.write(folder / name, noise, 8000)
    return [folder / name for name in names]


def arrays(folder: Path) -> list[Path]:
    np.save(folder / "x.npy", np.ones((20, 3)))
    np.savez(folder / "x.npz", one=np.ones((20, 3)))
    np.savez_compressed(folder / "y.npz", one=np.ones((20, 3)))
    return [folder / name for name in ("x.npy", "x.npz", "y.npz")]


def scrambled(content: bytes, numbers: random.Random) -> bytes:
    """A file with some bytes changed, most of them near its beginning, or cut off."""
    broken = bytearray(content)
    for _ in range(numbers.randint(1, 8)):
        near = numbers.random() < 0.7
        broken[numbers.randrange(min(len(broken), 64 if near else len(broken)))] = (
            numbers.randrange(256)
        )
    return bytes(broken[: numbers.randrange(len(broken))] if numbers.random() < 0.3 else broken)


@pytest.mark.parametrize(
    ("make", "field"), [(pictures, PICTURE), (sounds, SOUND), (arrays, NUMBERS)]
)
def test_a_scrambled_file_is_read_or_named(make, field: MediaField, tmp_path: Path) -> None:
    numbers, refused = random.Random(5), 0
    for path in make(tmp_path):
        content = path.read_bytes()
        for i in range(TRIES):
            broken = path.with_name(f"{i}-{path.name}")
            broken.write_bytes(scrambled(content, numbers))
            problem = field.problem(Cell(broken.name, str(tmp_path)))  # nothing else is raised
            refused += bool(problem)
            assert not problem or broken.name in problem
            assert ";" in problem or not problem
    assert refused > 20
