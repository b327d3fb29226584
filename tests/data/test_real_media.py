"""Real sets of media are understood as they are, and their files are read."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from saccade import config as c
from saccade.data.layout import detect_layout
from saccade.data.media import Cell
from saccade.data.pictures import decoded
from saccade.data.sounds import SoundFitting
from tests.real_data import NEEDS_REAL_DATA, ROOT

pytestmark = NEEDS_REAL_DATA


@pytest.mark.parametrize(
    ("name", "source", "target", "task"),
    [
        ("fsdd/train.tsv", ("path",), "digit", "classify"),
        ("easy_vqa/train.jsonl", ("image", "question"), "answer", "classify"),
        ("emoji_captions/train.jsonl", ("image",), "caption", "translate"),
        ("flickr8k/train.jsonl", ("image",), "captions", "translate"),
    ],
)
def test_a_real_file_needs_no_settings(
    name: str, source: tuple[str, ...], target: str, task: str
) -> None:
    layout = detect_layout([ROOT / name], c.Data())
    assert (layout.source, layout.target, layout.task) == (source, target, task)


def first_of(archive: Path, folder: Path) -> Cell:
    """The first file of an archive."""
    with zipfile.ZipFile(archive) as files:
        name = next(name for name in files.namelist() if not name.endswith("/"))
        files.extract(name, folder)
    return Cell(name, str(folder))


def test_a_photo_and_a_digit_are_read(tmp_path: Path) -> None:
    photo = decoded(first_of(ROOT / "flickr8k" / "dev_images.zip", tmp_path), c.Picture())
    assert photo.shape == (64, 64, 3)
    assert photo.std() > 10
    fitting = SoundFitting(c.Sound(rate=8000), 1 << 20)
    cell = first_of(ROOT / "fsdd" / "dev.zip", tmp_path)
    fitting.look(cell)
    frames = fitting.field().make(cell)
    assert frames.shape[1] == 80
    assert len(frames) == fitting.field().measure(cell)


def test_ready_frames_of_an_archive_are_read_by_name() -> None:
    path = ROOT / "an4" / "dev.mfcc.npz"
    with np.load(path) as arrays:
        name = arrays.files[3]
        frames = arrays[name]
    fitting = SoundFitting(c.Sound(), 1 << 20)
    fitting.look(Cell(f"dev.mfcc.npz#{name}", str(path.parent)))
    field = fitting.field()
    assert field.size == 13
    assert field.measure(Cell(f"dev.mfcc.npz#{name}", str(path.parent))) == len(frames)
