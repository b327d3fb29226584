"""Faults planted in clean data: each is found, with its line, and nothing else is."""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Fault:
    corpus: str
    plant: Change
    code: str
    where: str
    also: tuple[str, ...] = ()  # codes that the same fault has too
    info: bool = False


def edit(name: str, change: Callable[[str], str], row: int = AT) -> Change:
    def plant(files: Files) -> None:
        files[name][row] = change(files[name][row])

    return plant


def into(letters: str) -> Callable[[str], str]:
    """These characters after the first word."""
    return lambda line: line.replace(" ", f"{letters} ", 1)


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


def word_at(files: Files, name: str, word: str) -> int:
    rows = enumerate(files[name])
    return next(i for i, row in rows if row[:1] != "#" and word in row.split())


def spoil_word(name: str, change: Callable[[str], str]) -> Change:
    """In the first sentence with `garden`, that word's line; the sentence begins before it."""

    def plant(files: Files) -> None:
        files[name][word_at(files, name, "garden")] = change(
            files[name][word_at(files, name, "garden")]
        )

    return plant


def garden(corpus: str, name: str) -> str:
    return f"{name}:{word_at(CORPORA[corpus](), name, 'garden') + 1}"


LAST = "train.de:301"
DECOMPOSED = unicodedata.normalize("NFD", "das müde Kind verkauft zwei grüne Äpfel im Zug")
FRENCH = "je ne sais pas où se trouve la bibliothèque de votre quartier monsieur"
RUSSIAN = "мой дядя самых честных правил когда не в шутку занемог"

FAULTS: dict[str, Fault] = {
    # files that do not fit
    "a line is missing at the end": Fault(
        "lines", drop("train.en", 299), "misaligned", "train.de:300"
    ),
    "dev has a line too many": Fault("lines", drop("dev.de", 0), "misaligned", "dev.en:40"),
    "a line is lost and another added": Fault("lines", slip, "shift", "train.en:120"),
    # empty sides
    "the source is blank": Fault(
        "lines", edit("train.de", lambda _: " "), "blank-source", "train.de:120"
    ),
    "the source of a row is blank": Fault(
        "labelled", edit("train.tsv", cell(0, lambda _: " ")), "blank-source", "train.tsv:120"
    ),
    "the target is blank": Fault(
        "lines", edit("train.en", lambda _: ""), "blank-target", "train.en:120"
    ),
    "the label is blank": Fault(
        "labelled", edit("train.tsv", cell(1, lambda _: "  ")), "blank-target", "train.tsv:120"
    ),
    # rows that are no rows
    "a column too many": Fault(
        "labelled", edit("train.tsv", lambda row: row + "\tx"), "columns", "train.tsv:120"
    ),
    "a column too few": Fault(
        "tsv", edit("dev.tsv", lambda row: row.split("\t")[0], 7), "columns", "dev.tsv:8"
    ),
    "an empty line among rows": Fault(
        "tsv", edit("train.tsv", lambda _: ""), "columns", "train.tsv:120"
    ),
    "a word without a tag": Fault(
        "columns", spoil_word("train.conll", lambda row: row.split()[0]), "columns",
        garden("columns", "train.conll"),
    ),
    "a row of nine fields": Fault(
        "conllu", spoil_word("train.conllu", lambda row: row[:-2]), "columns",
        garden("conllu", "train.conllu"),
    ),
    "half a JSON object": Fault(
        "objects", edit("train.jsonl", lambda row: row[:20]), "json", "train.jsonl:120"
    ),
    "a JSON object lacks a key": Fault(
        "objects", edit("train.jsonl", lambda row: row.replace('"label"', '"lable"')), "key",
        "train.jsonl:120",
    ),
    "a JSON value is a list": Fault(
        "objects", edit("train.jsonl", lambda _: '{"text": ["a"], "label": "bad"}'), "value",
        "train.jsonl:120",
    ),
    # bytes
    "a byte of Latin-1": Fault(
        "lines", edit("train.de", into("\udcfc")), "utf8", "train.de:120"
    ),
    "a byte of Latin-1 in a column file": Fault(
        "columns", spoil_word("train.conll", lambda row: "\udcfc" + row), "utf8",
        garden("columns", "train.conll"),
    ),
    "a NUL": Fault("text", edit("train.txt", into("\0")), "nul", "train.txt:120"),
    "bytes that were replaced": Fault(
        "lines", edit("train.en", into("\ufffd")), "replaced", "train.en:120"
    ),
    "UTF-8 read as Windows-1252": Fault(
        "tsv", edit("train.tsv", lambda _: "das mÃ¼de Kind liest\tthe tired child reads"),
        "mojibake", "train.tsv:120",
    ),
    "quotes read as Windows-1252": Fault(
        "text", edit("dev.txt", into("â€™s"), 3), "mojibake", "dev.txt:4"
    ),
    # control characters
    "a bell": Fault("lines", edit("train.de", into("\x07")), "control", "train.de:120"),
    "a dash of Windows": Fault("text", edit("train.txt", into("\x96")), "control", "train.txt:120"),
    "a line separator": Fault("tsv", edit("train.tsv", into("\u2028")), "control", "train.tsv:120"),
    "a carriage return inside a line": Fault(
        "labelled", edit("dev.tsv", into("\r"), 20), "control", "dev.tsv:21"
    ),
    # invisible characters
    "a zero width space": Fault(
        "lines", edit("train.en", into("\u200b")), "invisible", "train.en:120"
    ),
    "a soft hyphen": Fault("text", edit("train.txt", into("\xad")), "invisible", "train.txt:120"),
    "a byte order mark inside": Fault(
        "labelled", edit("train.tsv", lambda row: "\ufeff" + row), "invisible", "train.tsv:120"
    ),
    "a direction mark": Fault("tsv", edit("dev.tsv", into("\u202e"), 9), "invisible", "dev.tsv:10"),
    "a zero width joiner, escaped in JSON": Fault(
        "objects", edit("train.jsonl", lambda row: row.replace(" and", r"\u200d and")),
        "invisible", "train.jsonl:120",
    ),
    "a word joiner in a word's line": Fault(
        "conllu", spoil_word("train.conllu", lambda row: row.replace("garden", "gar\u2060den", 1)),
        "invisible", garden("conllu", "train.conllu"),
    ),
    # look-alikes
    "a Cyrillic letter in a Latin word": Fault(
        "lines", edit("train.en", lambda _: "the old mаn sells the hat"), "look-alike",
        "train.en:120",
    ),
    "a Latin letter in a Cyrillic word": Fault(
        "text", edit("train.txt", into(" Cергей")), "look-alike", "train.txt:120"
    ),
    "a Greek letter in a column file": Fault(
        "columns", spoil_word("train.conll", lambda row: row.replace("garden", "gardeΝ")),
        "look-alike", garden("columns", "train.conll"),
    ),
    "wide letters": Fault("tsv", edit("train.tsv", into("Ａ")), "look-alike", "train.tsv:120"),
    # normalisation
    "decomposed letters": Fault(
        "lines", edit("train.de", lambda _: DECOMPOSED), "normalisation", "train.de:120"
    ),
    # languages
    "the source copied to the target": Fault("lines", copy, "language", "train.en:120"),
    "source and target swapped": Fault("lines", swap, "language", "train.de:120"),
    "a third language": Fault(
        "lines", edit("train.en", lambda _: FRENCH), "language", "train.en:120"
    ),
    "another script": Fault(
        "labelled", edit("train.tsv", lambda _: f"{RUSSIAN}\tgood"), "language", "train.tsv:120"
    ),
    # lengths
    "a source of many lines": Fault(
        "text", edit("train.txt", lambda row: " ".join([row] * 40)), "long", "train.txt:120"
    ),
    "a target of many lines": Fault(
        "lines", edit("train.en", lambda row: " ".join([row] * 20)), "long", "train.en:120",
        ("ratio",),
    ),
    "a target cut off": Fault(
        "lines", edit("train.en", lambda row: row[:3]), "ratio", "train.de:120"
    ),
    # repeats
    "a pair twice": Fault("lines", repeat("train.de", "train.en"), "duplicate", LAST),
    "a row of dev twice": Fault("labelled", repeat("dev.tsv"), "duplicate", "dev.tsv:41"),
    "a paragraph twice": Fault("text", repeat("train.txt"), "duplicate", "train.txt:301"),
    "a training source in dev": Fault(
        "tsv", leak("train.tsv", "dev.tsv", lambda row: row.split("\t")[0] + "\tsomebody does it"),
        "leak", "dev.tsv:15", ("ratio",),
    ),
    "a training paragraph in dev": Fault(
        "text", leak("train.txt", "dev.txt"), "leak", "dev.txt:15"
    ),
    # labels
    "a text with two labels": Fault("labelled", contradict, "conflict", "train.tsv:301"),
    "a sentence with two readings": Fault(
        "columns", disagree, "conflict", f"train.conll:{len(columns()['train.conll']) + 1}"
    ),
    "a label that occurs once": Fault(
        "labelled", edit("train.tsv", cell(1, lambda _: "ugly")), "rare-label", "train.tsv:120"
    ),
    "a label in another spelling": Fault(
        "labelled", edit("train.tsv", cell(1, lambda _: "Good")), "label-spelling",
        "train.tsv:120", ("rare-label",),
    ),
    "a label that train lacks": Fault(
        "labelled", edit("dev.tsv", cell(1, lambda _: "ugly"), 4), "unseen-label", "dev.tsv:5"
    ),
    "two examples of a label": Fault("labelled", imbalance, "imbalance", "train.tsv:141"),
    # words
    "dev of another kind": Fault("labelled", other_kind, "unseen-token", "dev.tsv:1"),
    # information
    "a no-break space": Fault(
        "lines", edit("train.en", into("\xa0")), "no-break", "train.en:120", info=True
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_with_its_line(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    files = CORPORA[fault.corpus]()
    fault.plant(files)
    findings = found(*write(files, tmp_path), task=TASKS.get(fault.corpus))
    told = [one for one in findings if one.code == fault.code]
    assert told, [one.code for one in findings]
    assert {one.level for one in told} <= ({"info"} if fault.info else {"error", "warning"})
    place = told[0].places[0]
    file, _, line = place.where.rpartition(":")
    wanted, _, number = fault.where.rpartition(":")
    assert Path(file).name == wanted
    assert abs(int(line) - int(number)) <= (5 if fault.code == "shift" else 0)
    assert place.message
    assert told[0].advice
    if files[wanted][int(line) - 1].strip():
        assert place.text.strip()  # an example of it
    others = {one.code for one in wrong(findings)} - {fault.code, *fault.also}
    assert not others


def test_there_are_forty_faults_or_more() -> None:
    assert len(FAULTS) >= 40
