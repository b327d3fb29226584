"""Real data sets are read whole, and their layouts are guessed right."""

import pytest

from saccade.config import Data
from saccade.data.layout import detect_layout
from saccade.data.lines import Defect
from saccade.data.sources import examples, read
from tests.real_data import NEEDS_REAL_DATA, ROOT

pytestmark = NEEDS_REAL_DATA

TEXTS = ("tsv", "translate", (1,), 2)
LABELS = ("tsv", "classify", (2,), 1)
FORMS = ("tsv", "translate", (1, 3), 2)
SLOTS = ("columns", "tag", (1,), 2)
TREES = ("conllu", "tag", ("form",), "upos")
PLAIN = ("text", "language", (), None)

SETS = [
    ("cmudict_g2p/train.tsv.gz", 111_535, TEXTS),
    ("cmudict_g2p/dev.tsv", 2_864, TEXTS),
    ("tatoeba_en_fr/train.tsv.gz", 160_654, TEXTS),
    ("tatoeba_en_fr/dev.tsv", 2_858, TEXTS),
    ("e2e_nlg/train.tsv.gz", 42_061, TEXTS),
    ("e2e_nlg/dev.tsv.gz", 4_672, TEXTS),
    ("scan/simple.train.tsv.gz", 16_728, TEXTS),
    ("scan/length.train.tsv.gz", 16_990, TEXTS),
    ("scan/addprim_jump.train.tsv.gz", 14_670, TEXTS),
    ("scan/addprim_turn_left.train.tsv.gz", 21_890, TEXTS),
    ("spelling/birkbeck.train.tsv", 27_650, TEXTS),
    ("spelling/birkbeck.dev.tsv", 3_514, TEXTS),
    ("spelling/wikipedia.train.tsv", 1_078, TEXTS),
    ("sigmorphon2021_g2p/high/eng_us_train.tsv", 33_344, TEXTS),
    ("sigmorphon2021_g2p/medium/kor_train.tsv", 8_000, TEXTS),
    ("sigmorphon2021_g2p/low/ady_dev.tsv", 100, TEXTS),
    ("conll2018_inflection/english.train-high.tsv", 10_000, FORMS),
    ("conll2018_inflection/german.train-low.tsv", 100, FORMS),
    ("conll2018_inflection/turkish.dev.tsv", 1_000, FORMS),
    ("sst2/train.tsv.gz", 60_614, LABELS),
    ("sst2/dev.tsv", 6_735, LABELS),
    ("imdb/train.tsv.gz", 22_500, LABELS),
    ("imdb/dev.tsv.gz", 2_500, LABELS),
    ("slots/snips.train.conll", 13_084, SLOTS),
    ("slots/snips.dev.conll", 700, SLOTS),
    ("ud_english_ewt/en_ewt-ud-train.conllu.gz", 12_544, TREES),
    ("ud_english_ewt/en_ewt-ud-dev.conllu.gz", 2_001, TREES),
    ("timemachine/timemachine.txt", 3_221, PLAIN),
    ("tinyshakespeare/train.txt", 35_526, PLAIN),  # its last line has no newline
    ("wikitext2/train.txt.gz", 36_718, PLAIN),
    ("wikitext2/valid.txt", 3_760, PLAIN),
]


@pytest.mark.parametrize(("name", "count", "expected"), SETS, ids=[name for name, _, _ in SETS])
def test_a_file_is_read_whole_and_its_layout_is_guessed(name, count, expected):
    found = detect_layout([ROOT / name], Data())
    assert (found.format, found.task, found.source, found.target) == expected
    assert sum(1 for _ in examples([ROOT / name], Data(), found.task)) == count


@pytest.mark.parametrize(("part", "count"), [("train", 29_000), ("val", 1_014)])
def test_aligned_files_are_a_translation(part, count):
    paths = [ROOT / "multi30k" / f"{part}.{language}" for language in ("en", "de")]
    found = detect_layout(paths, Data())
    assert (found.format, found.task) == ("lines", "translate")
    assert sum(1 for _ in examples(paths, Data(), "translate")) == count


def test_different_parts_are_misaligned():
    paths = [ROOT / "multi30k" / "train.en", ROOT / "multi30k" / "val.de"]
    *_, last = read(paths, Data(), "translate")
    assert isinstance(last, Defect)
    assert (last.code, last.where) == ("misaligned", f"{paths[0]}:1015")


def test_inflection_is_read_as_the_user_says():
    path = ROOT / "conll2018_inflection" / "english.train-low.tsv"
    first = next(examples([path], Data(source=(1, 3), target=2), "translate"))
    assert (first.source, first.target) == (("dreep", "V;NFIN"), "dreep")


def test_captions_are_read_by_the_keys_that_the_user_gives():
    path = ROOT / "emoji_captions" / "dev.jsonl"
    data = Data(source=("caption",), target="group")
    assert detect_layout([path], data).task == "classify"
    rows = list(examples([path], data, "classify"))
    assert (len(rows), rows[0].target) == (398, "Symbols")


def test_the_intents_of_slots_are_labels():
    path = ROOT / "slots" / "snips.dev.conll"
    rows = list(examples([path], Data(target="intent"), "classify"))
    assert (len(rows), len({row.target for row in rows})) == (700, 7)


def test_a_file_with_a_header_is_read_by_its_names():
    path = ROOT / "an4" / "dev.tsv"
    rows = list(examples([path], Data(source=("utt",), target="text"), "translate"))
    assert (len(rows), rows[0].target) == (98, "YES")
