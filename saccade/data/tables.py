"""CSV and TSV tables: separators, quotes and headers.

A cell in quotes may hold the separator, line breaks, and doubled quotes. `records` reads a whole
file; all other functions look at its first rows only.
"""

import csv
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence

from saccade.data.lines import Defect, defect_at

SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons"}
MAX_RECORD_LINES = 10_000  # of one row; a longer one has a quote that is not closed
MIN_ROWS_LIKE = 10  # needed to judge that the first row is unlike the rest

csv.field_size_limit(2**31 - 1)  # the module's default is 128 KB

Numbered = tuple[int, str | Defect]  # a line, or what is wrong with it, and its number


def records(
    lines: Iterator[Numbered], name: str, separator: str
) -> Iterator[tuple[int, list[str] | Defect]]:
    """The cells of each row, and the number of the line where it begins.

    An empty line is one empty cell. After a row with malformed quotes, reading resumes at its
    second line.
    """
    pushed_back: deque[Numbered] = deque()  # lines that were consumed by a malformed row

    def next_line() -> Numbered | None:
        return pushed_back.popleft() if pushed_back else next(lines, None)

    def lines_from(text: str, consumed: list[Numbered]) -> Iterator[str]:
        yield text + "\n"
        while len(consumed) < MAX_RECORD_LINES and (item := next_line()) is not None:
            consumed.append(item)
            if isinstance(item[1], Defect):
                return
            yield item[1] + "\n"

    while (item := next_line()) is not None:
        number, text = item
        if isinstance(text, Defect):
            yield number, text
        elif '"' not in text:
            yield number, text.split(separator)
        else:
            consumed: list[Numbered] = []
            try:
                rows = csv.reader(lines_from(text, consumed), delimiter=separator, strict=True)
                yield number, next(rows)
            except csv.Error as error:
                pushed_back.extendleft(reversed(consumed))
                unclosed = "end of data" in str(error)
                message = "a quote is not closed" if unclosed else "text follows a closing quote"
                yield number, defect_at("quotes", name, number, message, text)


def separator_of(lines: Sequence[str]) -> str | None:
    """The separator that gives nearly all of the first rows the same number of columns, with quotes
    honoured; None if none does."""
    best: tuple[tuple[float, float, int], str] | None = None
    for separator in SEPARATORS:
        numbered = records(iter(enumerate(lines, 1)), "", separator)
        rows = [row for _, row in numbered if row != [""]]
        widths = Counter(len(row) for row in rows if not isinstance(row, Defect))
        width, count = widths.most_common(1)[0] if widths else (0, 0)
        if width < 2 or count < 0.9 * len(rows):
            continue
        # tie-breaker: a comma in a sentence is followed by a blank
        cells = [cell for row in rows if not isinstance(row, Defect) for cell in row[1:]]
        tight = sum(cell[:1] != " " for cell in cells) / len(cells)
        key = (count / len(rows), tight, width)
        if best is None or key > best[0]:
            best = key, separator
    return best[1] if best else None


_CELL = re.compile(r'("[^"]*(?:""[^"]*)*"|[^\t\n"][^\t\n]*|)(\t|\n|\Z)')
_UNCLOSED = re.compile(r'"[^"]*(?:""[^"]*)*\Z')


def is_quoted(lines: Sequence[str]) -> bool:
    """Whether the quotes in tab-separated lines are CSV quoting, and not part of the text.

    They are if all are well-formed, no unquoted cell has a quote inside, and quoting is explained:
    a column is quoted throughout, a cell needs it (it holds a quote, a tab or a line break), or
    exactly the cells with commas are quoted, as some programs do.
    """
    text = "\n".join(lines)
    if '"' not in text:
        return False
    rows: list[list[str]] = [[]]
    at = 0
    while at < len(text):
        match = _CELL.match(text, at)
        if match is None:
            if _UNCLOSED.match(text, at) and len(rows) > 1:  # the sample ends inside a cell
                rows.pop()
                break
            return False
        rows[-1].append(match[1])
        if match[2] == "\n":
            rows.append([])
        at = match.end()
    rows = [row for row in rows if any(row)]
    cells = [cell for row in rows for cell in row]
    quoted = [cell for cell in cells if cell[:1] == '"']
    if len({len(row) for row in rows}) != 1 or len(rows[0]) < 2 or not quoted:
        return False
    if any('"' in cell for cell in cells if cell[:1] != '"'):
        return False
    if any(mark in cell[1:-1] for cell in quoted for mark in '"\t\n'):
        return True
    if any(
        all(cell[:1] == '"' for cell in column[1:] or column) for column in zip(*rows, strict=True)
    ):
        return True
    return len(quoted) > 1 and quoted == [cell for cell in cells if "," in cell]


# --- headers --------------------------------------------------------------------------------------

_HEADER_WORDS = """
    answer answers arpabet author bash body caption category class code command comment comments
    completion compression content context count customer date description document english example
    feats features feedback form french frequency gender german gloss grapheme graphemes group
    headline hypothesis id idx index inflection input intent ipa key label labels lang language
    lemma lyrics meaning message name nr number original output paragraph phone phoneme phonemes
    phones phrase pos post premise product prompt pron pronunciation query question question1
    question2 rating ratings reference reply response result review reviews row score sentence
    sentence1 sentence2 sentiment simplified snippet source spanish spelling split sql src stars
    subject summary tag tags target text texts tgt title token tokens topic transcription
    translation tree tweet type url user utterance value verb word words year"""
HEADER_NAMES = set(_HEADER_WORDS.split())
LANGUAGES = {
    "ar",
    "de",
    "en",
    "es",
    "fi",
    "fr",
    "it",
    "ja",
    "nl",
    "pl",
    "pt",
    "ru",
    "sv",
    "tr",
    "zh",
}
_NAME = re.compile(r"[^\W\d][\w .:/()#-]{0,39}")
_NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)(e[-+]?\d+)?%?", re.IGNORECASE)
MISSING = {"", "na", "n/a", "nan", "none", "null", "-", "?"}


def has_header(rows: Sequence[Sequence[str]], likely: bool) -> bool:
    """Whether the first of these rows, all of one width, is a header.

    Its cells must be distinct names, none of which recurs in its column, and one of these must
    hold: all are usual names of columns, or made of such words; the rest of a column is numbers; a
    usual name stands over a column whose few values all recur; or the first row alone is all single
    words, and a column has few distinct values. Where a header is `likely`, as in CSV, any name may
    stand over values that recur, and the last needs no column of few values.
    """
    if len(rows) < 2:
        return False
    first = [cell.strip() for cell in rows[0]]
    columns = [[row[i].strip() for row in rows[1:]] for i in range(len(first))]
    named = [name for name in first if name]
    if len(set(named)) < len(first) - (not first[0]) or not named:  # the first may be an index
        return False
    if any(not _NAME.fullmatch(name) or name.casefold() in MISSING for name in named):
        return False
    if any(name in column for name, column in zip(first, columns, strict=True) if name):
        return False
    known = HEADER_NAMES | LANGUAGES if likely else HEADER_NAMES  # "it" is a word, too
    if all(_is_usual(name, known) for name in named):
        return True
    filled = [[cell for cell in column if cell.casefold() not in MISSING] for column in columns]
    if any(column and all(map(_NUMBER.fullmatch, column)) for column in filled):
        return True
    enough = len(rows) > MIN_ROWS_LIKE
    for name, column in zip(first, columns, strict=True):
        values = Counter(column)
        recur = len(values) <= len(column) // 5 and min(values.values()) > 1
        if enough and name and recur and (likely or _is_usual(name, known)):
            return True
    only_words = not any(all(_is_word(cell) for cell in row) for row in rows[1:])
    few_values = any(len(set(column)) <= len(column) // 5 for column in columns)
    unlike = enough and only_words and all(map(_is_word, named))
    return unlike and (few_values or likely)


def _is_usual(name: str, known: set[str]) -> bool:
    """Whether a name is one of those known, or made of them: "question_id", "Review text"."""
    parts = re.split("[_ -]+", name.casefold())
    return "".join(parts) in known or all(part in known for part in parts)


def _is_word(cell: str) -> bool:
    return _NAME.fullmatch(cell) is not None and " " not in cell
