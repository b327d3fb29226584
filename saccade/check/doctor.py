"""The data doctor: checks the data of a configuration, and reports findings with file and line.

Files are streamed in a few passes, never held in memory: `tally` finds duplicates and outliers in
length, `characters` suspicious characters, `profile` the wrong language, `tokenizers` unknown
tokens. The rows that are shown are fetched in a last pass.
"""

import contextlib
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import floor
from typing import Any

import numpy as np

from saccade import config as c
from saccade.check import profile, tally
from saccade.check.characters import visible
from saccade.check.findings import ADVICE, KEPT_PLACES, Finding, Group, Place, error, merged
from saccade.check.profile import Array, LetterClasses
from saccade.check.scan import Block, Scan
from saccade.check.series import series_findings
from saccade.check.tokenizers import TokenizerSample, UnseenTokens, reader_of
from saccade.data.layout import detect_layout
from saccade.data.lines import Defect, Example, counted
from saccade.data.memory import given
from saccade.data.sources import unseen
from saccade.errors import DataError

PARAGRAPH_CHARACTERS = 100  # shorter lines of plain text may repeat by chance
MIN_LABELLED_ROWS = 100  # before labels are judged by their frequency
FORMS = ("decomposed", "composed")  # of Unicode; if equally frequent, the first is reported

Say = Callable[[Example, Example], tuple[str, str]]  # (row, partner) -> message, text


@dataclass(frozen=True, slots=True)
class Pick:
    """Rows with one kind of problem; `partners` are the rows that they are compared with."""

    code: str
    scan: Scan
    rows: Array
    say: Say
    column: int = 0
    partners: Array | None = None
    home: Scan | None = None  # of the partners


def check(
    data: c.Data, task: c.Task, examples: Any = None, dev_examples: Any = None
) -> Iterator[Finding]:
    """Errors, as they are found; then warnings and information, grouped by code.

    `examples` and `dev_examples` are from memory, in place of the files of `data`.
    """
    if isinstance(task, c.Forecast):
        yield from series_findings(task, data)
        return
    has_labels = task.target_type in ("label", "labels")
    rows = data.train if examples is None else given(examples)
    dev_rows = data.dev if dev_examples is None else given(dev_examples)
    with contextlib.suppress(DataError):  # `read` reports it as a defect
        data = detect_layout(rows, data, task.kind).fill(data)  # train decides for dev too
    letters = LetterClasses()
    train, dev = Scan(rows, data, task, letters), Scan(dev_rows, data, task, letters)
    texts = [text for text in task.texts(data.source) if isinstance(text.reader, c.Tokenizer)]
    texts = texts or [c.Source(c.Tokenizer(), ())]  # where nothing is text
    unseen_tokens = [UnseenTokens(text.reader) for text in texts]
    for block in dev.count_rows():  # before train, in which dev's tokens are looked up
        if isinstance(block, Block):
            for i, column in enumerate(block.columns):
                tokens = unseen_tokens[reader_of(i, texts)]
                for row, cell in zip(block.rows, column, strict=True):
                    tokens.add_dev(dev.where(row, i), cell)
    for block in train.count_rows():
        if isinstance(block, Defect):
            yield error(block)
            continue
        for i, column in enumerate(block.columns):
            unseen_tokens[reader_of(i, texts)].add_train(column)
    if dev_rows:
        yield from (error(row) for row in dev.rows() if isinstance(row, Defect))
    if train.skipped:
        # imported here: torch takes a second
        from saccade.check.media import media_findings, vector_findings

        if data.vector:
            yield from vector_findings(data, train.rows())
        yield from media_findings(task, data, train.rows(), dev.rows() if dev_rows else iter(()))
    if isinstance(task, c.NumberTask):
        from saccade.check.numbers import number_findings

        yield from number_findings(task, data, train.rows(), dev.rows() if dev_rows else iter(()))
    if dev_rows and has_labels:
        yield from map(error, unseen(train.labels, dev.rows()))
    if not len(train.tally):
        return
    sample = TokenizerSample(
        task, texts, train.skipped, len(train.tally), int(train.tally.source_len.sum())
    )
    for block in train.score(train):
        sample.add(block)
    for _ in dev.score(train):
        pass
    notes: dict[str, Group] = defaultdict(Group)
    _characters(notes, train, dev)
    _labels(notes, train)
    picks = [*_repeats(train, dev), *_lengths(train, dev), *_languages(train, dev)]
    _note_picks(notes, picks, train, dev)
    with contextlib.suppress(DataError):  # the sample may be too small, where all rows are enough
        notes["tokenizer"] = sample.group()
    unseen_groups = [tokens.group() for tokens in unseen_tokens]
    notes["unseen-token"] = merged(group for group, many in unseen_groups if many)
    for code in (code for code in ADVICE if notes[code].count):
        finding = notes[code].finding(code)
        if code == "tokenizer":
            key = _tokenizer_key(task, len(train.skipped) < len(data.source) or not data.source)
            finding = replace(finding, advice=finding.advice.format(key=key))
        yield finding
    few = merged(group for group, many in unseen_groups if not many)
    if few.count:
        yield few.finding("unseen-token", "info")


def _tokenizer_key(task: c.Task, text_source: bool) -> str:
    """The key of a task under which its first tokenizer is set."""
    fields = type(task).model_fields
    if not text_source:
        return "target" if "target" in fields else "tokenizer"
    return next(name for name in fields if isinstance(getattr(task, name), c.Tokenizer))


# --- checks ---------------------------------------------------------------------------------------


def _characters(notes: dict[str, Group], train: Scan, dev: Scan) -> None:
    """Suspicious characters of the first pass; and of two Unicode forms the rarer one."""
    for code in train.suspicious.keys() | dev.suspicious.keys():
        notes[code] = merged(scan.suspicious[code] for scan in (train, dev))
    for column in range(len(train.triples)):
        both = [merged(s.forms[column, form] for s in (train, dev)) for form in FORMS]
        if all(group.count for group in both):
            rarer = min(both, key=lambda group: group.count)
            notes["normalisation"] = merged([notes["normalisation"], rarer])


def _labels(notes: dict[str, Group], train: Scan) -> None:
    """Labels that are rare, imbalanced, or spelling variants of others."""
    labels = train.labels
    repeated = {label: n for label, n in labels.items() if n > 1}
    if len(train.tally) >= MIN_LABELLED_ROWS:
        for label in [label for label in labels if label not in repeated]:
            where, text = train.first[label]
            notes["rare-label"].add(where, f"the label {label!r} occurs once", text)
    if train.target_type == "label" and repeated and len(train.tally) >= MIN_LABELLED_ROWS:
        total = sum(repeated.values())
        top = max(repeated, key=repeated.__getitem__)
        low = min(repeated, key=repeated.__getitem__)
        if len(labels) == 1:
            where, text = train.first[top]
            message = f"all {total:,} examples have the label {top!r}"
            notes["one-label"].add(where, message, text)
        elif repeated[top] >= 0.9 * total or repeated[low] * 20 < total / len(repeated):
            low = min(labels, key=labels.__getitem__) if low == top else low  # one that occurs once
            of = counted(sum(labels.values()), "example")
            shares = f"{low!r} has {labels[low]:,} of {of}, {top!r} has {repeated[top]:,}"
            where, text = train.first[low]
            notes["imbalance"].add(where, shares, text)
    variants: dict[str, list[str]] = defaultdict(list)
    for label in labels:
        plain = unicodedata.normalize("NFKC", label).casefold()
        key = "".join(char for char in plain if char.isprintable() and char != " ")
        variants[key].append(label)
    for spellings in variants.values():
        usual, *rare = sorted(spellings, key=lambda label: (-labels[label], label))
        for label in rare:
            message = f"the label {visible(label)!r}, elsewhere {visible(usual)!r}"
            where, text = train.first[label]
            notes["label-spelling"].add(where, message, text)


def _repeats(train: Scan, dev: Scan) -> Iterator[Pick]:
    """Duplicates, rows in both train and dev, and sources with different targets."""
    shortest = PARAGRAPH_CHARACTERS if train.target_type == "none" else 0
    if not train.only_labels:  # labels as sources repeat
        rows, first = tally.leaks(train.tally, dev.tally, shortest)
        yield Pick("leak", dev, rows, _leaks, 0, first, train)
    for scan in (train, dev):
        rows, first = tally.repeats(scan.tally, shortest)
        yield Pick("duplicate", scan, rows, _repeated, 0, first, scan)
    rows, first, ceiling = tally.conflicts(train.tally)
    if train.target_type in ("label", "labels"):
        yield Pick("conflict", train, rows, _contradicts, 0, first, train)
    if len(rows) and train.target_type not in ("none", "numbers"):
        yield Pick("ceiling", train, rows[:1], _ceiling(ceiling, train.target_type))


def _lengths(train: Scan, dev: Scan) -> Iterator[Pick]:
    """Rows that are far longer than others, or than the other side; misaligned ranges."""
    text = train.target_type == "text"
    for scan in (train, dev):
        if train.skipped:  # a path's length means nothing
            break
        non_empty = train.tally.source_len[train.tally.source_len > 0]
        rows = np.flatnonzero(scan.tally.source_len > tally.longest_usual(non_empty))
        yield Pick("long", scan, rows, _long_source)
        if text:
            limit = tally.longest_usual(train.tally.target_len)
            rows = np.flatnonzero(scan.tally.target_len > limit)
            yield Pick("long", scan, rows, _long_target, len(scan.data.source))
            low, high = tally.usual_ratios(tally.ratios(train.tally))
            ratio = tally.ratios(scan.tally)
            yield Pick("ratio", scan, np.flatnonzero((ratio < low) | (ratio > high)), _unequal)
    if text and not train.skipped and (found := tally.shifted(train.tally)):
        first, last, by = found
        yield Pick(
            "shift",
            train,
            np.array([first]),
            _shifted(by),
            len(train.data.source),
            np.array([last]),
            train,
        )


def _languages(train: Scan, dev: Scan) -> Iterator[Pick]:
    """Rows whose letter triples are likelier on the other side, or unlikely on both."""
    last = len(train.scores) - 1
    usual = [profile.usual(own, size) for own, _, size in train.scores]
    two = train.target_type == "text" and all(profile.apart(*s) for s in train.scores[:: last or 1])
    for scan in (train, dev):
        none = [np.zeros(len(scan.tally), bool)] * len(scan.scores)
        other = list(none)
        for i, (own, theirs, size) in enumerate(scan.scores):
            if two and i in (0, last):
                other[i] = profile.fits_other(own, theirs, size)
            if (known := usual[i]) is not None:
                none[i] = profile.fits_none(own, size, known) & ~other[i]
        if two and other:
            swapped = other[0] & other[last]
            yield Pick("language", scan, np.flatnonzero(swapped), _swapped)
            for i in (0, last):
                rows = np.flatnonzero(other[i] & ~swapped)
                yield Pick("language", scan, rows, _foreign, i)
        for i, flags in enumerate(none):
            yield Pick("language", scan, np.flatnonzero(flags), _strange, i)


# --- messages -------------------------------------------------------------------------------------


def _note_picks(notes: dict[str, Group], picks: list[Pick], train: Scan, dev: Scan) -> None:
    """Fetch the rows to show, and note their problems."""
    wanted: dict[Scan, set[int]] = {train: set(), dev: set()}
    for pick in picks:
        wanted[pick.scan].update(pick.rows[:KEPT_PLACES].tolist())
        if pick.partners is not None:
            wanted[pick.home or pick.scan].update(pick.partners[:KEPT_PLACES].tolist())
    rows = {scan: scan.fetch(numbers) for scan, numbers in wanted.items()}
    for pick in picks:
        group = Group(len(pick.rows))
        for i, number in enumerate(pick.rows[:KEPT_PLACES].tolist()):
            row = partner = rows[pick.scan][number]
            if pick.partners is not None:
                partner = rows[pick.home or pick.scan][int(pick.partners[i])]
            message, text = pick.say(row, partner)
            group.places.append(Place(pick.scan.where(row, pick.column), message, text))
        notes[pick.code] = merged([notes[pick.code], group])


def _leaks(row: Example, first: Example) -> tuple[str, str]:
    return f"the same source is in the training data, at {first.where}", _source(row)


def _repeated(row: Example, first: Example) -> tuple[str, str]:
    return f"the same as {first.where}", _both(row)


def _contradicts(row: Example, first: Example) -> tuple[str, str]:
    if isinstance(row.target, str):
        return f"labelled {row.target!r}, but {first.target!r} at {first.where}", _source(row)
    pairs = zip(row.source, row.target or (), first.target or (), strict=False)
    word, tag, other = next((w, a, b) for w, a, b in pairs if a != b)
    return f"{word!r} is tagged {tag!r}, but {other!r} at {first.where}", _source(row)


def _ceiling(share: float, target_type: c.TargetType) -> Say:
    thing = {"label": "labels", "labels": "tags"}.get(target_type, "targets")

    def say(row: Example, _: Example) -> tuple[str, str]:
        best = floor(share * 10_000) / 100  # rounded down: not 100 % unless exact
        what = f"some sources have several {thing}: at most {best:.2f} % of the targets"
        return f"{what} can be guessed exactly", _both(row)

    return say


def _long_source(row: Example, _: Example) -> tuple[str, str]:
    return f"{counted(sum(map(len, row.source)), 'character')}, far more than usual", _source(row)


def _long_target(row: Example, _: Example) -> tuple[str, str]:
    target = str(row.target)
    return f"{counted(len(target), 'character')}, far more than usual", visible(target)


def _unequal(row: Example, _: Example) -> tuple[str, str]:
    source, target = sum(map(len, row.source)), len(str(row.target))
    message = f"{counted(source, 'character')} on the source side, {target:,} on the target side"
    return message, _both(row)


def _shifted(by: int) -> Say:
    side = "later" if by > 0 else "earlier"

    def say(row: Example, last: Example) -> tuple[str, str]:
        end = f"line {last.line}" if last.file == row.file else last.where
        what = f"from about here to {end} targets fit the source"
        return f"{what} {counted(abs(by), 'line')} {side}", _both(row)

    return say


def _swapped(row: Example, _: Example) -> tuple[str, str]:
    return "source and target seem to be swapped", _both(row)


def _foreign(row: Example, _: Example) -> tuple[str, str]:
    if row.target == row.source[0]:
        return "the same text on both sides", _source(row)
    return "reads like the other side", _both(row)


def _strange(row: Example, _: Example) -> tuple[str, str]:
    return "unlike the other lines, by its letters: another language?", _both(row)


def _source(row: Example) -> str:
    return visible(" ".join(row.source))


def _both(row: Example) -> str:
    if row.target is None:
        return _source(row)
    target = row.target if isinstance(row.target, str) else " ".join(row.target)
    return f"{_source(row)} → {visible(target)}"
