"""The dev set that is cut off, and how often a training file is opened for it."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from saccade.config import Config
from saccade.data.lines import Example
from saccade.data.sources import examples
from saccade.errors import ConfigError, DataError
from saccade.setup.choose import fill_config, gather, survey_and_fill
from saccade.setup.prepare import prepare
from saccade.setup.split import Split, is_dev
from saccade.setup.survey import survey

ROWS: dict[str, Callable[[int], str]] = {
    "translate": lambda i: f"one text {i}\tein Text {i}",
    "classify": lambda i: f"text {i} here\t{'ab'[i % 2]}",
    "tag": lambda i: f"text {i}\tA B",
    "language": lambda i: f"a line {i}",
}
ALL: Counter[str] = Counter()
LISTENING = [False]  # an audit hook stays for as long as the process


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and LISTENING[0] and isinstance(arguments[0], str):
        ALL[arguments[0]] += 1


@pytest.fixture(scope="module")
def hook() -> None:
    sys.addaudithook(_hear)


@pytest.fixture
def opened(hook: None) -> Iterator[Counter[str]]:
    """How often each file has been opened since the test began."""
    ALL.clear()
    LISTENING[0] = True
    yield ALL
    LISTENING[0] = False


def write(folder: Path, lines: list[str], name: str = "train.txt") -> Path:
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder / name


def config_of(path: Path, kind: str, **data: Any) -> Config:
    raw, where = gather(path, task=kind)
    raw["data"] |= data
    return fill_config(raw, where)[0]


def both_sides(split: Split) -> tuple[list[Example], list[Example]]:
    return list(split.train()), split.dev


@pytest.mark.parametrize("with_dev", [False, True])
@pytest.mark.parametrize("kind", ROWS)
def test_a_training_file_is_read_for_survey_vocabulary_and_encoding_only(
    kind: str, with_dev: bool, tmp_path: Path, opened: Counter[str]
) -> None:
    train = write(tmp_path, [ROWS[kind](i) for i in range(400)])
    dev = write(tmp_path, [ROWS[kind](i) for i in range(400, 420)], "dev.txt")
    opened.clear()
    raw, where = gather(train, task=kind, dev=dev if with_dev else None)
    config, _, seen = survey_and_fill(raw, where)
    assert opened[str(train)] == 2  # its first lines, for the layout; then all, for the survey
    prepare(config, tmp_path, seen)
    assert opened[str(train)] == 4  # once for all vocabularies, once to be encoded
    assert opened[str(dev)] == with_dev


@pytest.mark.parametrize("kind", ROWS)
def test_without_a_survey_the_split_is_the_same(kind: str, tmp_path: Path) -> None:
    raw, where = gather(write(tmp_path, [ROWS[kind](i) for i in range(300)]), task=kind)
    config, _, seen = survey_and_fill(raw, where)
    assert both_sides(Split(config, seen)) == both_sides(Split(config))
    assert both_sides(Split(config))[1]


def test_too_few_hashes_are_made_up_for(tmp_path: Path) -> None:
    config = config_of(write(tmp_path, [ROWS["translate"](i) for i in range(300)]), "translate")
    rows = list(examples(config.data.train, config.data, "translate"))
    for hashed in (0, 1, 30):
        seen = survey(rows, config.seed, hashed)
        assert both_sides(Split(config, seen)) == both_sides(Split(config))


def test_the_dev_set_is_there_before_the_training_examples_are_read(tmp_path: Path) -> None:
    config = config_of(write(tmp_path, [ROWS["translate"](i) for i in range(300)]), "translate")
    split = Split(config)
    next(split.train())  # and no further
    assert split.dev == both_sides(Split(config))[1]


def test_a_source_is_on_one_side_only_and_nothing_is_lost(tmp_path: Path) -> None:
    lines = [f"text {i % 50}\tTexte {i}" for i in range(300)]
    train, dev = both_sides(Split(config_of(write(tmp_path, lines), "translate")))
    assert not {row.source for row in train} & {row.source for row in dev}
    assert sorted(row.line for row in train + dev) == list(range(1, 301))
    assert [row.line for row in dev] == [
        i + 1 for i in range(300) if is_dev((f"text {i % 50}",), 0.05, 1)
    ]


def test_a_label_as_a_source_is_on_both_sides(tmp_path: Path) -> None:
    path = write(tmp_path, [f"{('good', 'bad')[i % 2]}\tsome text {i}" for i in range(300)])
    raw, where = gather(path, task="translate")
    raw["task"] |= {"columns": {"1": {"kind": "label"}}}
    train, dev = both_sides(Split(fill_config(raw, where)[0]))
    assert {row.source for row in train} == {row.source for row in dev} == {("good",), ("bad",)}
    assert sorted(row.line for row in train + dev) == list(range(1, 301))


def test_a_share_that_chance_leaves_empty_is_doubled(tmp_path: Path) -> None:
    lines = [f"{letter}\t{letter}" for letter in "abc"]
    chosen = {
        share: [x for x in "abc" if is_dev((x,), share, 1)] for share in (0.05, 0.1, 0.2, 0.4)
    }
    assert chosen == {0.05: [], 0.1: [], 0.2: [], 0.4: ["a", "b"]}
    train, dev = both_sides(Split(config_of(write(tmp_path, lines), "translate")))
    assert [row.source for row in dev] == [("a",), ("b",)]
    assert [row.source for row in train] == [("c",)]


@pytest.mark.parametrize(
    ("kind", "lines", "message"),
    [
        ("translate", ["a\tb"] * 5, "too few different sources"),
        ("translate", ["a\tb"], "one example is too few"),
        ("language", ["a"], "one line is too few"),
        ("language", ["a", "", ""], "too few lines"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    kind: str, lines: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        Split(config_of(write(tmp_path, lines), kind))


def test_of_plain_text_the_end_is_cut_off_and_is_not_blank(tmp_path: Path) -> None:
    lines = [f"line {i}" for i in range(100)]
    train, dev = both_sides(Split(config_of(write(tmp_path, lines), "language")))
    assert [row.line for row in dev] == [96, 97, 98, 99, 100]
    assert [row.line for row in train] == list(range(1, 96))
    blank = write(tmp_path, [*lines[:90], *[""] * 10])
    assert both_sides(Split(config_of(blank, "language")))[1][0].line == 90


def test_labels_that_only_dev_would_have_are_left_out_of_it(tmp_path: Path) -> None:
    rare = next(i for i in range(400) if is_dev((f"text {i}",), 0.05, 1))
    lines = [f"text {i}\t{'rare' if i == rare else 'ab'[i % 2]}" for i in range(400)]
    train, dev = both_sides(Split(config_of(write(tmp_path, lines), "classify")))
    assert {row.target for row in dev} == {"a", "b"}
    assert rare + 1 not in [row.line for row in train + dev]


def test_the_dev_set_is_stable_and_of_its_share() -> None:
    chosen = [i for i in range(10_000) if is_dev((f"line {i}",), 0.05, 1)]
    assert 400 < len(chosen) < 600
    assert chosen[:3] == [11, 20, 34]  # on every machine, in every version
    assert chosen != [i for i in range(10_000) if is_dev((f"line {i}",), 0.05, 2)]
    assert set(chosen) <= {i for i in range(10_000) if is_dev((f"line {i}",), 0.1, 1)}


def test_a_label_of_a_source_that_training_lacks_is_not_in_the_cut(tmp_path: Path) -> None:
    rows = [f"text {i}\t{'usual' if i % 6 else f'odd{i}'}\tein Text {i}" for i in range(300)]
    path = write(tmp_path, rows, "train.tsv")
    raw, where = gather(path, task="translate")
    raw["task"] |= {"columns": {"2": {"kind": "label"}}}
    raw["data"] |= {"source": [1, 2], "target": 3}
    train, dev = both_sides(Split(fill_config(raw, where)[0]))
    known = {row.source[1] for row in train}
    assert dev
    assert all(row.source[1] in known for row in dev)


def test_a_tagger_reads_one_column(tmp_path: Path) -> None:
    path = write(tmp_path, ["a b\tN V\tO O"] * 30, "train.tsv")
    with pytest.raises(ConfigError, match=r"data.source: 'tag' reads one column"):
        config_of(path, "tag", source=[1, 2], target=3)
