"""Real pen strokes are read as they are, and Omniglot's as the recipe writes them."""

import json
import zipfile
from pathlib import Path

import numpy as np

import saccade
from recipes.omniglot_strokes.prepare import MIDDLE, rows_of
from saccade.inspect.strokes import lines_of
from tests.real_data import NEEDS_REAL_DATA, ROOT

pytestmark = NEEDS_REAL_DATA

QUICK = {"task.kind": "series", "train.steps": 2, "decoder.dim": 16, "encoder.dim": 16}


def unpacked(name: str, folder: Path) -> list[str]:
    with zipfile.ZipFile(ROOT / name / "dev.zip") as files:
        files.extractall(folder)
    return (folder / "dev.jsonl").read_text(encoding="utf-8").splitlines()


def test_trajectories_need_no_settings(tmp_path: Path) -> None:
    unpacked("character_trajectories", tmp_path)
    run = saccade.train(tmp_path / "dev.jsonl", out=tmp_path / "run", settings=QUICK, quiet=True)
    assert (run.config.data.source, run.config.data.target) == (("label",), "series")
    assert run.config.task.columns["label"].kind == "label"  # type: ignore[union-attr]
    assert np.isfinite(run.evaluate()["nats"])
    drawn = json.loads(run.predict("a", settings={"kind": "sample", "max_len": 5}).text)
    assert all(len(row) == 3 for row in drawn)


def test_a_drawing_is_its_rows(tmp_path: Path) -> None:
    for line in unpacked("omniglot_strokes", tmp_path)[:50]:
        strokes = json.loads(line)["strokes"]
        rows = rows_of(strokes)
        lines = lines_of(rows)
        assert len(lines) == len(strokes)  # as often as the pen was lifted
        for drawn, stroke in zip(lines, strokes, strict=True):
            for point, place in ((drawn[0], stroke[0]), (drawn[-1], stroke[-1])):
                assert (point + MIDDLE).tolist() == place[:2]
