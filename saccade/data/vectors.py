"""Files of word vectors (word2vec's text and binary formats, GloVe's), and tests of such vectors.

Files are untrusted: every size in one is checked against the bytes that it has.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from saccade.data.corpora import Array
from saccade.data.lines import Defect, FileError, lines_of
from saccade.errors import ConfigError, DataError

MAX_WORDS, MAX_DIM = 10_000_000, 10_000
MAX_WORD_BYTES = 4096


def is_binary(path: str | os.PathLike[str]) -> bool:
    """Whether a file is in word2vec's binary format, by its suffix."""
    return os.fspath(path).endswith(".bin")


def read_vectors(path: str | os.PathLike[str]) -> tuple[list[str], Array]:
    """The words of a file, and their vectors (words, D); the first vector of a repeated word."""
    name = os.fspath(path)
    rows = _binary(name) if is_binary(name) else _text(name)
    words: dict[str, int] = {}
    vectors: list[Array] = []
    for word, vector in rows:
        if word not in words:
            words[word] = len(words)
            vectors.append(vector)
    if not words:
        raise DataError(f"{name}: contains no vectors")
    return list(words), np.stack(vectors)


def _text(name: str) -> Iterator[tuple[str, Array]]:
    """A word and its vector on each line; word2vec has a header line with count and dimension."""
    dim = 0
    for number, line in enumerate(_lines(name), 1):
        if not line.strip():
            continue
        parts = line.rstrip().split(" ")
        if number == 1 and len(parts) == 2 and all(part.isdecimal() for part in parts):
            dim = int(parts[1])
            continue
        dim = dim or len(parts) - 1
        # some words of GloVe's contain blanks
        word, numbers = " ".join(parts[:-dim]), parts[-dim:]
        if not word or not 0 < dim <= MAX_DIM or len(numbers) != dim:
            raise DataError(
                f"{name}:{number}: expected a word and {dim} numbers between blanks, found "
                f"{line[:60]!r}"
            )
        try:
            vector = np.array(numbers, np.float32)
        except ValueError:
            raise DataError(f"{name}:{number}: a number was expected: {line[:60]!r}") from None
        if not np.isfinite(vector).all():
            raise DataError(f"{name}:{number}: '{word[:60]}' has a number that is not finite")
        yield word, vector


def _binary(name: str) -> Iterator[tuple[str, Array]]:
    """A header line with count and dimension; then each word, a blank, and its float32 vector."""
    try:
        with Path(name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = file.readline(64).split()
            if len(header) != 2 or not all(part.isdigit() for part in header):
                raise DataError(f"{name}: not a binary word2vec file: its first line has no sizes")
            count, dim = map(int, header)
            if count > MAX_WORDS or not 0 < dim <= MAX_DIM or count * 4 * dim > size:
                raise DataError(f"{name}: {count:,} vectors of {dim:,} numbers are not in the file")
            for number in range(1, count + 1):
                word = _word(file)
                numbers = file.read(4 * dim)
                if word is None or len(numbers) < 4 * dim:
                    raise DataError(f"{name}: ends within word {number:,} of {count:,}")
                vector = np.frombuffer(numbers, "<f4").astype(np.float32)
                if not np.isfinite(vector).all():
                    raise DataError(f"{name}: '{word[:60]}' has a number that is not finite")
                yield word, vector
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror}") from None


def _word(file: BinaryIO) -> str | None:
    """The bytes up to the next blank, as text; None if there are too many, or the file ends."""
    word = bytearray()
    while (byte := file.read(1)) != b" ":
        if not byte or len(word) > MAX_WORD_BYTES:
            return None
        if byte != b"\n":  # which some writers put after a vector
            word += byte
    return word.decode(errors="replace")


def write_vectors(path: Path, words: Sequence[str], vectors: Array) -> None:
    """Write word vectors in word2vec's format: binary if the name ends in .bin, else text."""
    binary = is_binary(path)
    with path.open("wb") as file:
        file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors.astype("<f4"), strict=True):
            if binary:
                file.write(word.encode() + b" " + vector.tobytes() + b"\n")
            else:
                numbers = " ".join(f"{number:.6g}" for number in vector.tolist())
                file.write(f"{word} {numbers}\n".encode())


# --- tests ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Analogies:
    """Analogy questions, "a is to b as c is to d", in sections."""

    name: str
    questions: list[tuple[str, str, str, str]] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)  # of each question


@dataclass(frozen=True)
class Similarities:
    """Pairs of words with human judgements of their similarity."""

    name: str
    pairs: list[tuple[str, str]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


def read_tests(data: Sequence[Any]) -> list[Analogies | Similarities]:
    """The tests of word vectors in these files; empty if they are text."""
    results = [read_test(path) for path in data if isinstance(path, str | os.PathLike)]
    tests = [test for test in results if test is not None]
    if tests and len(tests) < len(data):
        raise ConfigError("some of these files are tests of word vectors, and some are text")
    return tests


def read_test(path: str | os.PathLike[str]) -> Analogies | Similarities | None:
    """The test of word vectors in a file; None if it holds something else.

    Analogies are in word2vec's format: sections begin with ": name". Similarities have two words
    and a number separated by tabs, with or without a header.
    """
    name = os.fspath(path)
    first = next((line for line in _lines(name) if line.strip()), "")
    if first.startswith(":"):
        return _analogies(name)
    head = [row for _, row in zip(range(3), _lines(name), strict=False)]
    if len(first.split("\t")) == 3 and any(_number(row.split("\t")[-1]) for row in head):
        return _similarities(name)
    return None


def _analogies(name: str) -> Analogies:
    test, section = Analogies(Path(name).stem), ""
    for number, line in enumerate(_lines(name), 1):
        if line.startswith(":"):
            section = line[1:].strip()
        elif line.strip():
            words = line.split()
            if len(words) != 4:
                raise DataError(f"{name}:{number}: a question has four words, found {len(words)}")
            test.questions.append((words[0], words[1], words[2], words[3]))
            test.sections.append(section)
    if not test.questions:
        raise DataError(f"{name}: contains no questions")
    return test


def _similarities(name: str) -> Similarities:
    test = Similarities(Path(name).stem)
    for number, line in enumerate(_lines(name), 1):
        cells = line.split("\t")
        if not line.strip() or (number == 1 and len(cells) == 3 and not _number(cells[2])):
            continue  # a header
        if len(cells) != 3 or not _number(cells[2]):
            raise DataError(f"{name}:{number}: expected two words and a number between tabs")
        test.pairs.append((cells[0].strip(), cells[1].strip()))
        test.scores.append(float(cells[2]))
    return test


def _number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _lines(name: str) -> Iterator[str]:
    try:
        for line in lines_of(name):
            if isinstance(line, Defect):
                raise DataError(str(line))
            yield line
    except FileError as error:
        raise DataError(str(error.defect)) from None
