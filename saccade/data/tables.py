"""Tables as spreadsheets and programs write them: separators, quotes and headers.

A cell in quotes may hold the separator, line breaks, and quotes that are written twice. Every
function here looks at the first rows of a file, but `records`, which reads all of it.
"""

import csv
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence

from saccade.data.lines import Defect, defect_at

SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons"}
MAX_RECORD_LINES = 10_000  # after which a quote is taken for one that nobody closed
MIN_ROWS_LIKE = 10  # that a first row has to be unlike

csv.field_size_limit(2**31 - 1)  # a text may be longer than the module's own 128 KB

Numbered = tuple[int, str | Defect]  # a line, or what is wrong with it, and its number


def records(
    lines: Iterator[Numbered], name: str, separator: str
) -> Iterator[tuple[int, list[str] | Defect]]:
    """The cells of each row, and the number of the line where it begins.

    An empty line is one empty cell. After a row with malformed quotes reading goes on at its second
    line.
    """
    again: deque[Numbered] = deque()  # lines that such a row has taken too many

    def following() -> Numbered | None:
        return again.popleft() if again else next(lines, None)

    def rest_of(text: str, taken: list[Numbered]) -> Iterator[str]:
        yield text + "\n"
        while len(taken) < MAX_RECORD_LINES and (more := following()) is not None:
            taken.append(more)
            if isinstance(more[1], Defect):
                return
            yield more[1] + "\n"

    while (item := following()) is not None:
        number, text = item
        if isinstance(text, Defect):
            yield number, text
        elif '"' not in text:
            yield number, text.split(separator)
        else:
            taken: list[Numbered] = []
            try:
                rows = csv.reader(rest_of(text, taken), delimiter=separator, strict=True)
                yield number, next(rows)
            except csv.Error as error:
                again.extendleft(reversed(taken))
                unclosed = "end of data" in str(error)
                what = "a quote is not closed" if unclosed else "text follows a closing quote"
                yield number, defect_at("quotes", name, number, what, text)


def separator_of(lines: Sequence[str]) -> str | None:
    """What stands between the columns: nearly all of the first rows have as many of it, quotes
    honoured; None if nothing does."""
    best: tuple[tuple[float, float, int], str] | None = None
    for separator in SEPARATORS:
        found = records(iter(enumerate(lines, 1)), "", separator)
        rows = [row for _, row in found if row != [""]]
        widths = Counter(len(row) for row in rows if not isinstance(row, Defect))
        width, count = widths.most_common(1)[0] if widths else (0, 0)
        if width < 2 or count < 0.9 * len(rows):
            continue
        # of two that fit: a comma of a sentence has a blank after it
        cells = [cell for row in rows if not isinstance(row, Defect) for cell in row[1:]]
        tight = sum(cell[:1] != " " for cell in cells) / len(cells)
        key = (count / len(rows), tight, width)
        if best is None or key > best[0]:
            best = key, separator
    return best[1] if best else None


_CELL = re.compile(r'("[^"]*(?:""[^"]*)*"|[^\t\n"][^\t\n]*|)(\t|\n|\Z)')
_UNCLOSED = re.compile(r'"[^"]*(?:""[^"]*)*\Z')


def is_quoted(lines: Sequence[str]) -> bool:
    """Whether the quotes of lines with tabs are a spreadsheet's, and not part of the text.

    They are if they are sound throughout, no cell has a quote inside that is not itself in quotes,
    and there is a reason for them: a column that has them everywhere, a cell that could not be
    written otherwise, or commas, whose cells some programs put in quotes, all of them and no other.
    """
    text = "\n".join(lines)
    if '"' not in text:
        return False
    rows: list[list[str]] = [[]]
    at = 0
    while at < len(text):
        found = _CELL.match(text, at)
        if found is None:
            if _UNCLOSED.match(text, at) and len(rows) > 1:  # the sample ends amid a cell
                rows.pop()
                break
            return False
        rows[-1].append(found[1])
        if found[2] == "\n":
            rows.append([])
        at = found.end()
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
    """Whether the first of these rows, all of one width, names the columns: it is unlike the rest.

    Its cells are different names, none comes again in its column, and one of these holds: all are
    usual names of columns, or made of such words; a column has numbers from then on; a usual name
    stands over a column of few values, each of which comes again; or all are single words as in no
    other row, and one of them stands over a column of few values. Where a header is `likely`, as
    in CSV, any name may stand over values that come again, and nothing has to stand under words.
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
    alone = not any(all(_is_word(cell) for cell in row) for row in rows[1:])
    few = any(len(set(column)) <= len(column) // 5 for column in columns)
    unlike = enough and alone and all(map(_is_word, named))
    return unlike and (few or likely)


def _is_usual(name: str, known: set[str]) -> bool:
    """Whether a name is one of those known, or made of them: "question_id", "Review text"."""
    parts = re.split("[_ -]+", name.casefold())
    return "".join(parts) in known or all(part in known for part in parts)


def _is_word(cell: str) -> bool:
    return _NAME.fullmatch(cell) is not None and " " not in cell
