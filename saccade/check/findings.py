"""Findings of the data doctor: what was found, how often, where, and what to do; and their table.

Training refuses an error. A warning would harm it. Information is neither.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from saccade.check.characters import visible
from saccade.data.lines import Defect

Level = Literal["error", "warning", "info"]

KEPT_PLACES = 20  # of a finding, in JSON
SHOWN_PLACES = 3  # in the table

ADVICE: dict[str, tuple[Level, str]] = {
    "leak": ("warning", "remove it from one of the two files: it makes dev scores too good"),
    "duplicate": ("warning", "keep one of them, unless its weight is meant"),
    "conflict": ("warning", "decide on one label, or give the text that tells them apart"),
    "shift": ("warning", "look for a line that one file has and the other lacks near there"),
    "imbalance": ("warning", "add examples of the rare labels, or judge by macro F1"),
    "one-label": ("warning", "there is nothing to learn: add other labels, or set data.target"),
    "rare-label": ("warning", "mend its spelling, add examples, or merge it with another"),
    "label-spelling": ("warning", "write it one way"),
    "long": ("warning", "are line breaks missing? Split it, or lower data.max_len"),
    "ratio": ("warning", "is it half of its partner, or another's? Mend or remove the pair"),
    "language": ("warning", "translate it, swap it back, or remove the pair"),
    "control": ("warning", "remove the character"),
    "invisible": ("warning", "remove the character"),
    "look-alike": ("warning", "write the letter that it looks like"),
    "replaced": ("warning", "take the text from its source again, with the right encoding"),
    "quoted": ("warning", "quotes of a spreadsheet? Set data.format=csv"),
    "mojibake": ("warning", "encode the text as it was decoded, then decode it as UTF-8"),
    "normalisation": ("warning", "bring all files to one form: unicodedata.normalize('NFC', text)"),
    "unseen-token": (
        "warning",
        "a few are usual; many mean that dev is of another kind than train",
    ),
    "same-file": ("warning", "keep one of them, unless its weight is meant"),
    "odd-size": ("warning", "is it the right file? Cut, scale or remove it"),
    "blank-media": ("warning", "there is nothing to learn from it: remove it"),
    "constant-column": ("warning", "it tells nothing: leave it out of data.vector"),
    "gappy-column": ("warning", "leave it out of data.vector, or fill the gaps in"),
    "silent": ("warning", "record it again, or remove it"),
    "clipped": ("warning", "record it again at a lower level"),
    "constant-number": ("warning", "there is nothing to learn in it: leave it out"),
    "far-number": ("warning", "is a unit or a decimal point wrong? Mend or remove it"),
    "gaps": ("warning", "filled in where they are looked back to, not scored; fill what you know"),
    "spike": ("warning", "a slip? Mend it, or empty the cell"),
    "no-break": ("info", "a blank of its own to most tokenizers: replace it if it means no more"),
    "ceiling": ("info", "no model that sees the source alone gets more right"),
    "tokenizer": ("info", "another cut: --set task.{key}.kind=char, .size=4000 ..."),
}


@dataclass(frozen=True, slots=True)
class Place:
    where: str  # "train.tsv:214"
    message: str
    text: str = ""  # the example, with invisible characters escaped


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    code: str
    count: int  # of all places; `places` has the first
    advice: str
    places: tuple[Place, ...]

    def __str__(self) -> str:
        return f"{self.places[0].where}: {self.places[0].message}; {self.advice}"

    def record(self) -> dict[str, Any]:
        """As JSON: the first place, then all."""
        first = self.places[0]
        head = {"level": self.level, "code": self.code, "count": self.count}
        place = {"where": first.where, "message": first.message, "advice": self.advice}
        return head | place | {"places": [asdict(place) for place in self.places]}


def error(defect: Defect) -> Finding:
    """The finding for a defect."""
    place = Place(defect.where, defect.message, visible(defect.text))
    return Finding("error", defect.code, 1, defect.advice, (place,))


@dataclass(slots=True)
class Group:
    """Accumulates findings of one code: their number, and the first places."""

    count: int = 0
    places: list[Place] = field(default_factory=list)

    def add(self, where: str, message: str, text: str = "") -> None:
        self.count += 1
        if len(self.places) < KEPT_PLACES:
            self.places.append(Place(where, message, text))

    def finding(self, code: str, level: Level | None = None) -> Finding:
        default, advice = ADVICE[code]
        return Finding(level or default, code, self.count, advice, tuple(self.places))


def merged(groups: Iterable[Group]) -> Group:
    """The groups as one, in order."""
    result = Group()
    for group in groups:
        result.count += group.count
        result.places = (result.places + group.places)[:KEPT_PLACES]
    return result


def table(findings: Iterable[Finding]) -> Iterator[str]:
    """The lines of a table of the findings, each with its first places and advice."""
    rows = [("level", "code", "count", "where", "what was found, and what to do")]
    for item in findings:
        shown = item.places if item.code == "tokenizer" else item.places[:SHOWN_PLACES]
        for i, place in enumerate(shown):
            what = f"{place.message}: {place.text}" if place.text else place.message
            lead = (item.level, item.code, f"{item.count:,}") if i == 0 else ("", "", "")
            rows.append((*lead, place.where, what))
        rows.append(("", "", "", "", f"-> {item.advice}"))
    if len(rows) == 1:
        return
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        cells[2] = row[2].rjust(widths[2])
        yield "  ".join([*cells, row[4]]).rstrip()


def grouped(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, merged by level and code; errors first, information last."""
    groups: dict[tuple[Level, str], Group] = {}
    advice: dict[tuple[Level, str], str] = {}
    for item in findings:
        key = item.level, item.code
        advice.setdefault(key, item.advice)
        group = groups.setdefault(key, Group())
        group.count += item.count
        group.places += item.places[: KEPT_PLACES - len(group.places)]
    levels = ("error", "warning", "info")
    return [
        Finding(level, code, group.count, advice[level, code], tuple(group.places))
        for (level, code), group in sorted(groups.items(), key=lambda g: levels.index(g[0][0]))
    ]
