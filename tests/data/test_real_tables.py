"""Real tables: proteins are read by character, and texts are not taken for numbers."""

import zipfile
from collections import Counter
from pathlib import Path

from saccade import config as c
from saccade.data.layout import detect_layout
from saccade.data.lines import Example
from saccade.data.sources import read
from saccade.errors import DataError
from tests.real_data import NEEDS_REAL_DATA, ROOT

pytestmark = NEEDS_REAL_DATA


def test_proteins_are_read_by_residue_and_the_unresolved_are_not_scored() -> None:
    path = ROOT / "protein_ss3" / "dev.tsv.gz"
    found = detect_layout([path], c.Data(), "tag")
    assert (found.source, found.target) == (("sequence",), "ss3")
    assert (found.mask, found.units) == ("resolved_mask", "characters")
    rows = [row for row in read([path], c.Data(), "tag") if isinstance(row, Example)]
    assert len(rows) == 1080
    labels = Counter(label for row in rows for label in row.labels)
    assert set(labels) == set("HEC")
    assert 0.9 < labels.total() / sum(len(row.source) for row in rows) < 1.0


def test_strokes_are_read_as_they_are(tmp_path: Path) -> None:
    with zipfile.ZipFile(ROOT / "character_trajectories" / "train.zip") as files:
        files.extract("train.jsonl", tmp_path)
    found = detect_layout([tmp_path / "train.jsonl"], c.Data())
    assert (found.task, found.source, found.target) == ("classify", ("series",), "label")
    assert found.media == (("series", "numbers"),)


def test_no_table_of_texts_is_one_of_numbers() -> None:
    vectors = {}
    names = [
        *ROOT.glob("*/*.tsv"),
        *ROOT.glob("*/*.tsv.gz"),
        *ROOT.glob("*/*.jsonl"),
        *ROOT.glob("*/*.csv*"),
    ]
    for path in sorted(names):
        try:
            vectors[path.name] = detect_layout([path], c.Data()).vector
        except DataError:  # a file whose columns have to be named
            continue
    assert len(vectors) > 10
    assert not any(vectors.values())
