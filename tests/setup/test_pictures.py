"""What is chosen for pictures follows from how large they are and what is said of them."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from saccade import config as c
from saccade.setup.choose import fill_config, gather
from tests.media import write_jsonl

NOUNS = ("dog", "cat", "man", "tree", "car", "house", "boat")


def chosen(folder: Path, size: tuple[int, int], target: Any = None, **reader: Any) -> c.Config:
    rows = []
    for i in range(60):
        Image.new("RGB", size, "white").save(folder / f"{i}.png")
        said = f"the {NOUNS[i % 7]} {i % 5} and a {NOUNS[i % 3]}" if target is None else target(i)
        rows.append({"image": f"{i}.png", "caption": said})
    raw, where = gather(write_jsonl(folder / "captions.jsonl", rows), task="translate")
    if reader:
        raw["task"]["columns"] = {"image": {"kind": "picture"} | reader}
    return fill_config(raw, where)[0]


@pytest.mark.parametrize(
    ("size", "height", "width", "cell"),
    [
        ((32, 32), 32, 32, 8),  # small ones as they are
        ((28, 28), 32, 32, 8),
        ((12, 12), 12, 12, 4),
        ((500, 375), 64, 64, 16),  # photos as squares
        ((375, 500), 64, 64, 16),
        ((400, 32), 32, 256, 8),  # strips as strips
        ((40, 90), 96, 40, 8),
    ],
)
def test_pictures_are_not_scaled_up_and_strips_stay_strips(
    tmp_path: Path, size: tuple[int, int], height: int, width: int, cell: int
) -> None:
    reader = chosen(tmp_path, size).task.own["image"]
    assert isinstance(reader, c.Picture)
    assert (reader.height, reader.width, reader.cell) == (height, width, cell)


def test_what_the_user_says_of_the_size_is_kept(tmp_path: Path) -> None:
    reader = chosen(tmp_path, (32, 32), height=48, width=96).task.own["image"]
    assert isinstance(reader, c.Picture)
    assert (reader.height, reader.width, reader.cell) == (48, 96, 16)


def test_of_names_the_likeliest_wins_and_of_sentences_the_likeliest_for_its_length(
    tmp_path: Path,
) -> None:
    names, sentences = (
        chosen(tmp_path, (32, 32), target=lambda i, end=end: f"the {NOUNS[i % 7]}{end}").decode
        for end in ("", " that runs on and on over a green field in summer")
    )
    assert isinstance(names, c.Beam)
    assert isinstance(sentences, c.Beam)
    assert (names.alpha, sentences.alpha) == (0.0, 1.0)


def test_captions_are_words_and_what_is_spelled_is_letters(tmp_path: Path) -> None:
    task = chosen(tmp_path, (32, 32)).task
    assert isinstance(task, c.Translate)
    assert task.target.kind == "word"
    spelled = chosen(tmp_path, (32, 32), target=lambda i: f"x{i * 7919 % 1000}y").task
    assert isinstance(spelled, c.Translate)
    assert spelled.target.kind == "char"


def test_a_damaged_first_picture_is_not_what_the_choice_stumbles_over(tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"nothing")
    rows = [{"image": f"{n}.png", "caption": f"a {n} one"} for n in ("bad", "good", "good")]
    config, _ = fill_config(*gather(write_jsonl(tmp_path / "c.jsonl", rows), task="translate"))
    reader = config.task.own["image"]
    assert isinstance(reader, c.Picture)
    assert reader.height == 32
