"""Which columns of a file hold media, by sampling their cells, and which one is the target."""

import json
import re
from collections.abc import Mapping, Sequence

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
SOUNDS = (".wav", ".flac", ".ogg", ".oga")
ARRAYS = (".npy", ".npz")
SUFFIXES = {"picture": PICTURES, "sound": SOUNDS, "numbers": ARRAYS}
CALLED = {"picture": "pictures", "sound": "sounds", "numbers": "numbers"}
LOOKED_AT = 20  # cells that are sampled for lists of numbers
_MEMBER = re.compile(r"\.npz#", re.IGNORECASE)

# the usual names of the target in files with media, the most reliable first
TARGETS = """target tgt label caption captions answer answers transcript transcription output
    summary response class category digit intent sentiment text sentence"""
TEXTS = "question prompt query instruction text sentence"  # text sources in files with media


def media_kind(cells: Sequence[str]) -> str | None:
    """The kind of media that nearly all of these cells hold or name; None if they are text."""
    present = [cell for cell in cells if cell.strip()]
    for kind, suffixes in SUFFIXES.items():
        if present and sum(_suffixed(cell, suffixes) for cell in present) >= 0.9 * len(present):
            return kind
    sample = present[:LOOKED_AT]
    return "numbers" if sample and all(map(is_numbers, sample)) else None


def is_media(cell: str) -> bool:
    """Whether a cell looks like the path of a media file."""
    return any(_suffixed(cell, suffixes) for suffixes in SUFFIXES.values())


def _suffixed(cell: str, suffixes: tuple[str, ...]) -> bool:
    return array_path(cell)[0].lower().endswith(suffixes)


def array_path(cell: str) -> tuple[str, str]:
    """The path in a cell, and the name of the array in it (what follows .npz#), or ""."""
    match = _MEMBER.search(cell)
    return (cell[: match.end() - 1], cell[match.end() :]) if match else (cell, "")


def is_array(cell: str) -> bool:
    """Whether a cell names a file of arrays, or an array in one."""
    return _suffixed(cell, ARRAYS)


def is_series(cell: str) -> bool:
    """Whether a cell holds or names a series of vectors."""
    return (cell[:2] == "[[" and is_numbers(cell)) or is_array(cell)


def is_numbers(cell: str) -> bool:
    """Whether a cell is a list of numbers, or of lists of them."""
    if cell[:1] != "[":
        return False
    try:
        return numeric(json.loads(cell))
    except (ValueError, RecursionError):
        return False


def are_series(cells: Sequence[str]) -> bool:
    """Whether nearly all cells are lists of numbers, null among them, or array files."""
    present = [cell for cell in cells if cell.strip()][: 10 * LOOKED_AT]
    return bool(present) and sum(map(_is_series, present)) >= 0.9 * len(present)


def _is_series(cell: str) -> bool:
    return is_array(cell) or is_numbers(re.sub("None|null|nan|NaN", "0", cell))


def numeric(value: object) -> bool:
    """Whether a JSON value is a list of numbers, or of lists of them."""
    if not isinstance(value, list) or not value:
        return False
    if isinstance(value[0], list):
        return all(isinstance(row, list) and row and _all_numbers(row) for row in value)
    return _all_numbers(value)


def _all_numbers(row: Sequence[object]) -> bool:
    return all(type(value) in (int, float) for value in row)


def media_columns(columns: Mapping[int | str, Sequence[str]]) -> dict[int | str, str]:
    """The columns that hold media, and of which kind."""
    kinds = {column: media_kind(cells) for column, cells in columns.items()}
    return {column: kind for column, kind in kinds.items() if kind is not None}


def target_beside(columns: Sequence[int | str], media: Mapping[int | str, str]) -> int | str | None:
    """The target of a file with media: by its name, or the first column without media."""
    rest = {str(column).casefold(): column for column in columns if column not in media}
    named = next((rest[name] for name in TARGETS.split() if name in rest), None)
    if named is None and (len(rest) == 1 or not any(isinstance(one, str) for one in columns)):
        return next(iter(rest.values()), None)
    return named


def texts_beside(
    columns: Sequence[int | str], media: Mapping[int | str, str], target: int | str | None
) -> list[int | str]:
    """The columns of text that are sources beside media, by their usual names."""
    names = TEXTS.split()
    return [
        column
        for column in columns
        if column not in media and column != target and str(column).casefold() in names
    ]
