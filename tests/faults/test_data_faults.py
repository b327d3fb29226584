"""Faults planted in clean data: each is found, with its line, and nothing else is."""

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saccade.check.doctor import check
from saccade.check.findings import Finding
from saccade.setup.choose import gather, task_and_data
from tests.faults.corpora import CORPORA, Files, columns, write

AT = 119  # the row that is spoilt: line 120


def found(train: list[str], dev: list[str], task: str | None = None) -> list[Finding]:
    settings, data = task_and_data(*gather(train, task=task, dev=dev or None))
    return list(check(data, settings))


def wrong(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.level != "info"]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", CORPORA)
def test_nothing_is_found_in_clean_data(name: str, packed: bool, tmp_path: Path) -> None:
    assert wrong(found(*write(CORPORA[name](), tmp_path, packed), task=TASKS.get(name))) == []


TASKS = {"text": "language"}
Change = Callable[[Files], None]


def edit(name: str, change: Callable[[str], str], row: int = AT) -> Change:
    def plant(files: Files) -> None:
        files[name][row] = change(files[name][row])

    return plant


def into(letters: str) -> Callable[[str], str]:
    """These characters after the first word."""
    return lambda line: line.replace(" ", f"{letters} ", 1)


def swap_in(old: str, new: str) -> Callable[[str], str]:
    return lambda line: line.replace(old, new, 1)


def cell(column: int, change: Callable[[str], str]) -> Callable[[str], str]:
    def made(line: str) -> str:
        cells = line.split("\t")
        cells[column] = change(cells[column])
        return "\t".join(cells)

    return made


def swap(files: Files) -> None:
    files["train.de"][AT], files["train.en"][AT] = files["train.en"][AT], files["train.de"][AT]


def copy(files: Files) -> None:
    files["train.en"][AT] = files["train.de"][AT]


def repeat(*names: str) -> Change:
    """Row 10 again, at the end of the file."""

    def plant(files: Files) -> None:
        for name in names:
            files[name].append(files[name][9])

    return plant


def leak(train: str, dev: str, change: Callable[[str], str] = str) -> Change:
    def plant(files: Files) -> None:
        files[dev][14] = change(files[train][AT])

    return plant


def drop(name: str, row: int) -> Change:
    return lambda files: files[name].pop(row) and None


def slip(files: Files) -> None:
    """One target is lost and another is too many: as many lines, but not the same."""
    files["train.en"].pop(AT)
    files["train.en"].append("a sentence that belongs to no other one here")


def contradict(files: Files) -> None:
    files["train.tsv"].append(files["train.tsv"][9].replace("\tgood", "\tbad"))


def disagree(files: Files) -> None:
    """The first sentence again, with another tag on its first word."""
    block = files["train.conll"][: files["train.conll"].index("")]
    first = block[0].split(" ")[0]
    files["train.conll"] += [f"{first} VERB", *block[1:], ""]


def imbalance(files: Files) -> None:
    rows = files["train.tsv"]
    good = [row for row in rows if row.endswith("good")]
    rows[:] = [*good[:140], rows[0], rows[2]]


def other_kind(files: Files) -> None:
    files["dev.tsv"] = [
        f"unseen{i}a unseen{i}b unseen{i}c the man reads a book\tgood" for i in range(30)
    ]


def garden(corpus: str, name: str) -> str:
    """The place of the first line with the word `garden`; its sentence begins before it."""
    rows = enumerate(CORPORA[corpus]()[name], 1)
    return f"{name}:{next(i for i, row in rows if row[:1] != '#' and 'garden' in row.split())}"


DECOMPOSED = unicodedata.normalize("NFD", "das müde Kind verkauft zwei grüne Äpfel im Zug")
FRENCH = "je ne sais pas où se trouve la bibliothèque de votre quartier monsieur"
RUSSIAN = "мой дядя самых честных правил когда не в шутку занемог"
LONE = '{"text": ["a"], "label": "bad"}'
MOJIBAKE = "das mÃ¼de Kind liest\tthe tired child reads"
SPEAKERS = len(columns()["train.conll"]) + 1  # the line after the last
SAME_SOURCE = leak("train.tsv", "dev.tsv", lambda row: row.split("\t")[0] + "\tsomebody does it")
CONLL, CONLLU = garden("columns", "train.conll"), garden("conllu", "train.conllu")

# The corpus, the file whose line 120 (or another) is changed, or what is done to all files, how,
# the code of the finding, its place if it is not that line, and codes that the fault has too.
Row = tuple[Any, ...]
FAULTS: dict[str, Row] = {
    # files that do not fit
    "a line is missing at the end": ("lines", drop("train.en", 299), "misaligned", "train.de:300"),
    "dev has a line too many": ("lines", drop("dev.de", 0), "misaligned", "dev.en:40"),
    "a line is lost and another added": ("lines", slip, "shift", "train.en:120"),
    # empty sides
    "the source is blank": ("lines", "train.de", lambda _: " ", "blank-source"),
    "a row's source is blank": ("labelled", "train.tsv", cell(0, lambda _: " "), "blank-source"),
    "the target is blank": ("lines", "train.en", lambda _: "", "blank-target"),
    "the label is blank": ("labelled", "train.tsv", cell(1, lambda _: "  "), "blank-target"),
    # rows that are no rows
    "a column too many": ("labelled", "train.tsv", lambda row: row + "\tx", "columns"),
    "a column too few": ("tsv", "dev.tsv:8", lambda row: row.split("\t")[0], "columns"),
    "an empty line among rows": ("tsv", "train.tsv", lambda _: "", "columns"),
    "a word without a tag": ("columns", CONLL, lambda row: row.split()[0], "columns"),
    "a row of nine fields": ("conllu", CONLLU, lambda row: row[:-2], "columns"),
    "half a JSON object": ("objects", "train.jsonl", lambda row: row[:20], "json"),
    "a JSON object lacks a key": ("objects", "train.jsonl", swap_in('"label"', '"lable"'), "key"),
    "a JSON value is a list": ("objects", "train.jsonl", lambda _: LONE, "value"),
    # bytes
    "a byte of Latin-1": ("lines", "train.de", into("\udcfc"), "utf8"),
    "a byte of Latin-1 in a column file": ("columns", CONLL, lambda row: "\udcfc" + row, "utf8"),
    "a NUL": ("text", "train.txt", into("\0"), "nul"),
    "bytes that were replaced": ("lines", "train.en", into("\ufffd"), "replaced"),
    "UTF-8 read as Windows-1252": ("tsv", "train.tsv", lambda _: MOJIBAKE, "mojibake"),
    "quotes read as Windows-1252": ("text", "dev.txt:4", into("â€™s"), "mojibake"),
    # control characters
    "a bell": ("lines", "train.de", into("\x07"), "control"),
    "a dash of Windows": ("text", "train.txt", into("\x96"), "control"),
    "a line separator": ("tsv", "train.tsv", into("\u2028"), "control"),
    "a carriage return inside a line": ("labelled", "dev.tsv:21", into("\r"), "control"),
    # invisible characters
    "a zero width space": ("lines", "train.en", into("\u200b"), "invisible"),
    "a soft hyphen": ("text", "train.txt", into("\xad"), "invisible"),
    "a byte order mark inside": ("labelled", "train.tsv", lambda row: "\ufeff" + row, "invisible"),
    "a direction mark": ("tsv", "dev.tsv:10", into("\u202e"), "invisible"),
    "a joiner in JSON": ("objects", "train.jsonl", swap_in(" and", r"\u200d and"), "invisible"),
    "a word joiner": ("conllu", CONLLU, swap_in("garden", "gar\u2060den"), "invisible"),
    # look-alikes
    "a Cyrillic letter in a Latin word": (
        "lines", "train.en", lambda _: "the old mаn sells the hat", "look-alike"),
    "a Latin letter in a Cyrillic word": ("text", "train.txt", into(" Cергей"), "look-alike"),
    "a Greek letter in a column": ("columns", CONLL, swap_in("garden", "gardeΝ"), "look-alike"),
    "wide letters": ("tsv", "train.tsv", into("Ａ"), "look-alike"),
    "decomposed letters": ("lines", "train.de", lambda _: DECOMPOSED, "normalisation"),
    # languages
    "the source copied to the target": ("lines", copy, "language", "train.en:120"),
    "source and target swapped": ("lines", swap, "language", "train.de:120"),
    "a third language": ("lines", "train.en", lambda _: FRENCH, "language"),
    "another script": ("labelled", "train.tsv", lambda _: f"{RUSSIAN}\tgood", "language"),
    # lengths
    "a source of many lines": ("text", "train.txt", lambda row: " ".join([row] * 40), "long"),
    "a target of many lines": (
        "lines", "train.en", lambda row: " ".join([row] * 20), "long", "train.en:120", "ratio"),
    "a target cut off": ("lines", "train.en", lambda row: row[:3], "ratio", "train.de:120"),
    # repeats
    "a pair twice": ("lines", repeat("train.de", "train.en"), "duplicate", "train.de:301"),
    "a row of dev twice": ("labelled", repeat("dev.tsv"), "duplicate", "dev.tsv:41"),
    "a paragraph twice": ("text", repeat("train.txt"), "duplicate", "train.txt:301"),
    "a training source in dev": ("tsv", SAME_SOURCE, "leak", "dev.tsv:15", "ratio"),
    "a training paragraph in dev": ("text", leak("train.txt", "dev.txt"), "leak", "dev.txt:15"),
    # labels
    "a text with two labels": ("labelled", contradict, "conflict", "train.tsv:301"),
    "a sentence with two readings": ("columns", disagree, "conflict", f"train.conll:{SPEAKERS}"),
    "a label that occurs once": ("labelled", "train.tsv", cell(1, lambda _: "ugly"), "rare-label"),
    "a label in another spelling": (
        "labelled", "train.tsv", cell(1, lambda _: "Good"), "label-spelling", "train.tsv:120",
        "rare-label"),
    "a label train lacks": ("labelled", "dev.tsv:5", cell(1, lambda _: "ugly"), "unseen-label"),
    "two examples of a label": ("labelled", imbalance, "imbalance", "train.tsv:141"),
    # words, and information
    "dev of another kind": ("labelled", other_kind, "unseen-token", "dev.tsv:1"),
    "a no-break space": ("lines", "train.en", into("\xa0"), "no-break"),
}  # fmt: skip


def fault_of(row: Row) -> tuple[str, Change, str, str, tuple[str, ...]]:
    """The corpus, what is done to it, the code and the place of the finding, and other codes."""
    corpus, what, *rest = row
    if not isinstance(what, str):
        return corpus, what, rest[0], rest[1], tuple(rest[2:])
    place = what if ":" in what else f"{what}:{AT + 1}"
    name, _, line = place.rpartition(":")
    change, code, *more = rest
    return (
        corpus,
        edit(name, change, int(line) - 1),
        code,
        more[0] if more else place,
        tuple(more[1:]),
    )


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_with_its_line(name: str, tmp_path: Path) -> None:
    corpus, plant, code, where, also = fault_of(FAULTS[name])
    files = CORPORA[corpus]()
    plant(files)
    findings = found(*write(files, tmp_path), task=TASKS.get(corpus))
    told = [one for one in findings if one.code == code]
    assert told, [one.code for one in findings]
    levels = {"info"} if code == "no-break" else {"error", "warning"}
    assert {one.level for one in told} <= levels
    place = told[0].places[0]
    (file, line), (wanted, number) = (at.rsplit(":", 1) for at in (place.where, where))
    assert Path(file).name == wanted
    assert abs(int(line) - int(number)) <= (5 if code == "shift" else 0)
    assert place.message
    assert told[0].advice
    if files[wanted][int(line) - 1].strip():
        assert place.text.strip()  # an example of it
    assert {one.code for one in wrong(findings)} <= {code, *also}


def test_there_are_forty_faults_or_more() -> None:
    assert len(FAULTS) >= 40
