"""What `saccade check` finds in real data sets."""

from pathlib import Path

import pytest

from saccade.check.doctor import check
from saccade.check.findings import Finding
from saccade.setup.choose import gather, task_and_data
from tests.real_data import NEEDS_REAL_DATA, ROOT

pytestmark = NEEDS_REAL_DATA


def wrong(train: list[str], dev: list[str]) -> list[Finding]:
    paths = [[str(ROOT / name) for name in names] for names in (train, dev)]
    task, data = task_and_data(*gather(paths[0], dev=paths[1] or None))
    return [one for one in check(data, task) if one.level != "info"]


CLEAN = [
    ("sigmorphon2021_g2p/high/eng_us_train.tsv", "sigmorphon2021_g2p/high/eng_us_dev.tsv"),
    ("sigmorphon2021_g2p/medium/kor_train.tsv", "sigmorphon2021_g2p/medium/kor_dev.tsv"),
    ("sigmorphon2021_g2p/low/gre_train.tsv", "sigmorphon2021_g2p/low/gre_dev.tsv"),
    ("conll2018_inflection/german.train-high.tsv", "conll2018_inflection/german.dev.tsv"),
    ("conll2018_inflection/turkish.train-high.tsv", "conll2018_inflection/turkish.dev.tsv"),
    ("scan/simple.train.tsv.gz",),
    ("timemachine/timemachine.txt",),
    ("tinyshakespeare/train.txt",),
]


@pytest.mark.parametrize("names", CLEAN, ids=[names[0] for names in CLEAN])
def test_nothing_is_wrong_with_a_clean_corpus(names):
    assert wrong([names[0]], list(names[1:])) == []


def test_what_is_wrong_with_image_captions_is_true():
    files = {part: [f"multi30k/{part}.{s}" for s in ("de", "en")] for part in ("train", "val")}
    found = {one.code: one for one in wrong(files["train"], files["val"])}
    places = {
        code: [Path(p.where).name for p in one.places if p.where] for code, one in found.items()
    }
    assert places == {
        "leak": ["val.de:165"],  # Drei Hunde spielen im Schnee.
        "duplicate": ["train.de:14215", "train.de:16867", "train.de:20149"],
        "ratio": ["train.de:16510", "train.de:16664"],  # the German side is "@@"
    }
