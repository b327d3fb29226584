"""Text to ids and back, by words, characters or trained pieces.

A text is first cut into units (words, or characters), in Python; HF `tokenizers` trains the pieces
and cuts a unit into them, once for each different unit of a call: several times as fast as leaving
it all to HF. The blank between two words is part of a unit, so that a piece knows whether a word
ends (bpe: "est ") or begins (unigram: " low") with it.
"""

import json
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self, assert_never

import tokenizers as hf
from tokenizers import models, trainers

from saccade import config as c
from saccade.errors import CheckpointError, ConfigError, DataError
from saccade.text.vocab import SPECIALS, Inventory, Specials

# The threads of HF do not survive a fork, and older versions warn of that: from the first fork on,
# use none. Read at every call, so nothing is lost before.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: os.environ.setdefault("TOKENIZERS_PARALLELISM", "false"))

# What the specials are called inside HF. No unit has a blank between two other characters, so no
# text can produce one of them; "<eos>" itself is an ordinary string.
_HIDDEN = tuple(f"{name[:-1]} >" for name in SPECIALS)
_UNK = _HIDDEN[SPECIALS.index("<unk>")]

# As in GPT-2, a blank goes with the word after it, but \w would tear words at their vowel signs
# (Hindi, Thai). Every character is in some alternative, so that nothing is lost.
_MARKS = r"!-/:-@\[-`{-~¡-¿\u2010-\u2027\u2030-\u205e\u3001-\u303f\uff01-\uff0f"
_CHUNK = re.compile(rf" ?[^\s{_MARKS}]+| ?[{_MARKS}]+|\s+(?!\S)|\s")


class Tokenizer:
    """A trained tokenizer, with its special ids: no text ever yields one of them but `unk`."""

    def __init__(self, config: c.Tokenizer, model: hf.Tokenizer) -> None:
        self.config = config
        self._hf = model
        self._ids: dict[str, int] = model.get_vocab()
        self._pieces = sorted(self._ids, key=self._ids.__getitem__)
        gapless = sorted(self._ids.values()) == list(range(len(self._ids)))
        if not gapless or not self._ids.keys() >= set(_HIDDEN):
            raise ValueError("its ids have gaps, or it lacks a special one")
        self.specials = Specials(*(self._ids[name] for name in _HIDDEN))
        for i, name in zip(self.specials, SPECIALS, strict=True):
            self._pieces[i] = name

    @classmethod
    def train(cls, config: c.Tokenizer, lines: Iterable[str]) -> Self:
        """A tokenizer with the vocabulary of `lines`, which are read once and not kept.

        Words (word) or characters (char, bpe, unigram) rarer than `min_count` are unknown, and so
        are the rarest where `size` leaves no room. Pieces of bpe and bytes occur at least twice.
        """
        pieces = config.size - len(SPECIALS) - (255 if config.kind == "bytes" else 0)
        if pieces < 1:
            least = config.size - pieces + 1
            raise ConfigError(f"tokenizer: {config.kind} needs a size of at least {least}")

        counts: Counter[str] = Counter()  # of words, or of characters
        whole = config.kind in ("word", "char")

        def stream() -> Iterator[list[str] | str]:
            for line in lines:
                units = _units(config, line)
                counts.update(units if whole else chain.from_iterable(units))
                yield units

        trained = _train(config, stream(), counts)
        if config.kind == "word":
            for name in SPECIALS:  # so that WikiText's own "<unk>" is unknown, not a word
                del counts[name]
        frequent = [unit for unit, n in counts.items() if n >= config.min_count]
        frequent.sort(key=lambda unit: (-counts[unit], unit))
        if not frequent:
            raise DataError(
                "tokenizer: nothing to learn a vocabulary from: the training text is empty"
                + (f", or all in it is rarer than min_count = {config.min_count}" if counts else "")
            )
        alphabet = frequent[: config.size - len(SPECIALS)]
        return cls(config, hf.Tokenizer(_model(config, alphabet, trained)))

    def save(self, path: str | Path) -> None:
        content = {"saccade": self.config.model_dump(), "tokenizer": json.loads(self._hf.to_str())}
        Path(path).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The tokenizer that `save` wrote."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            config = c.Tokenizer.model_validate(content["saccade"])
            return cls(config, hf.Tokenizer.from_str(json.dumps(content["tokenizer"])))
        except Exception as error:  # HF raises no narrower class
            raise CheckpointError(f"{path}: no readable tokenizer: {error}") from None

    def __len__(self) -> int:
        """The size of the vocabulary, specials included."""
        return len(self._pieces)

    @property
    def inventory(self) -> Inventory:
        return Inventory(len(self), tuple(self.specials), self.specials.unk)

    def agrees(self, other: "Tokenizer") -> bool:
        """Whether the ids of both mean the same."""
        return self.config.kind == other.config.kind and self._pieces == other._pieces

    @property
    def lossless(self) -> bool:
        """Whether `decode(encode(text))` is `text`.

        bytes: for every text; char: for every text of known characters. The others turn every run
        of whitespace into one blank, none at the ends, and with `split_punctuation` set blanks
        around punctuation; else word keeps known words, bpe and unigram all known characters.
        `lowercase` loses the case.
        """
        return self.config.kind in ("char", "bytes") and not self.config.lowercase

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, no specials added. A list at once is faster than each alone."""
        if self.config.kind in ("word", "char"):
            get = self._ids.get
            unk = self.specials.unk
            return [[get(unit, unk) for unit in _units(self.config, text)] for text in texts]
        known: dict[str, list[int]] = {}
        ids: list[list[int]] = []
        for start in range(0, len(texts), 4096):  # a million lists of strings at once would be slow
            rows = [_units(self.config, text) for text in texts[start : start + 4096]]
            new = [unit for unit in dict.fromkeys(chain.from_iterable(rows)) if unit not in known]
            for unit, encoding in zip(new, self._hf.encode_batch_fast(new), strict=True):
                known[unit] = encoding.ids
            ids += [list(chain.from_iterable(map(known.__getitem__, row))) for row in rows]
        return ids

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], list[int]]]:
        """The ids of each sentence, and for each id the index of its word; no word is without one.

        The ids are those of the words joined by blanks; a blank that is a character of its own
        (char, bytes) belongs to the word after it.
        """
        gap = " " if self.config.kind in ("char", "bytes") else ""
        rows = [words[:1] + [gap + word for word in words[1:]] for words in map(list, sentences)]
        words = list(dict.fromkeys(chain.from_iterable(rows)))
        known = {
            word: ids or [self.specials.unk]
            for word, ids in zip(words, self.encode(words), strict=True)
        }
        return [
            (
                [i for word in row for i in known[word]],
                [index for index, word in enumerate(row) for _ in known[word]],
            )
            for row in rows
        ]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids; specials are left out, but for "<unk>"."""
        dropped = {*self.specials} - {self.specials.unk}
        rows = ([self._pieces[i] for i in row if i not in dropped] for row in ids)
        match self.config.kind:
            case "word":
                return [" ".join(row) for row in rows]
            case "char":
                return ["".join(row) for row in rows]
            case "bpe" | "unigram":
                return ["".join(row).strip(" ") for row in rows]
            case "bytes":  # a model may write half a character: that is U+FFFD
                return ["".join(row).encode("latin-1").decode(errors="replace") for row in rows]
            case _:
                assert_never(self.config.kind)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id, to be shown: est</w> (bpe), ▁low (unigram), \\xf0 (a lone byte)."""
        pieces = [self._pieces[i] for i in ids]
        match self.config.kind:
            case "word" | "char":
                return pieces
            case "bpe":
                return [piece.replace(" ", "</w>") for piece in pieces]
            case "unigram":
                return [piece.replace(" ", "▁") for piece in pieces]
            case "bytes":
                return [p.encode("latin-1").decode(errors="backslashreplace") for p in pieces]
            case _:
                assert_never(self.config.kind)


def _units(config: c.Tokenizer, text: str) -> list[str] | str:
    """What `text` is cut into without any training: words, each with its blank, or characters."""
    if not text.isascii():  # JSON can hold half a surrogate pair, UTF-8 cannot
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if config.lowercase:
        text = text.lower()
    if config.split_punctuation and config.kind in ("word", "bpe", "unigram"):
        text = text.translate(_APART).replace(" < unk > ", " <unk> ")
    match config.kind:
        case "word":
            return text.split()
        case "char":
            return text
        case "bpe":
            return [word + " " for word in text.split()]
        case "unigram":
            return [" " + word for word in text.split()]
        case "bytes":  # a character for each byte
            return [chunk.encode().decode("latin-1") for chunk in _CHUNK.findall(text)]
        case _:
            assert_never(config.kind)


def alphabet(config: c.Tokenizer, text: str) -> Sequence[str]:
    """What `text` has that a vocabulary can lack: words (word), characters, or nothing (bytes)."""
    if config.kind == "bytes":
        return ""
    if config.kind == "word":
        return _units(config, text)
    return text.lower() if config.lowercase else text


class _Apart(dict[int, str]):
    """For `str.translate`: blanks around punctuation and symbols; filled as characters are met."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        self[code] = f" {char} " if unicodedata.category(char)[0] in "PS" else char
        return self[code]


_APART = _Apart()


def _train(
    config: c.Tokenizer, stream: Iterator[Sequence[str]], counts: Counter[str]
) -> dict[str, Any]:
    """What HF learns from the stream, as in its JSON; nothing where counting is all there is."""
    size = config.size - len(SPECIALS)
    match config.kind:
        case "word" | "char":
            for _ in stream:
                pass
            return {}
        case "bpe" | "bytes":
            model = hf.Tokenizer(models.BPE())
            trainer: trainers.Trainer = trainers.BpeTrainer(
                vocab_size=size,
                min_frequency=2,
                show_progress=False,
                initial_alphabet=_BYTES if config.kind == "bytes" else [],
            )
        case "unigram":
            model = hf.Tokenizer(models.Unigram())
            trainer = trainers.UnigramTrainer(vocab_size=size, show_progress=False)
        case _:
            assert_never(config.kind)
    try:
        model.train_from_iterator(stream, trainer)
    except Exception as error:
        if type(error) is not Exception:  # not HF's, but what reading the lines has raised
            raise
        if config.kind == "unigram" and len(counts) >= size:  # no room for more than characters
            return {"vocab": [(char, math.log(n / counts.total())) for char, n in counts.items()]}
        raise DataError(f"tokenizer: {config.kind} fails on this text ({error}); try bpe") from None
    trained: dict[str, Any] = json.loads(model.to_str())["model"]
    return trained


_BYTES = [chr(byte) for byte in range(256)]


def _model(config: c.Tokenizer, alphabet: list[str], trained: dict[str, Any]) -> models.Model:
    """The HF model: the specials, the alphabet, and the learned pieces that it can stream_text."""
    match config.kind:
        case "word" | "char":
            return models.WordLevel(_number([*_HIDDEN, *alphabet]), unk_token=_UNK)
        case "bpe" | "bytes":
            letters = set(_BYTES if config.kind == "bytes" else alphabet)
            merges = [(a, b) for a, b in trained["merges"] if letters.issuperset(a + b)]
            pieces = [*_HIDDEN, *sorted(letters), *(a + b for a, b in merges)]
            return models.BPE(_number(pieces), merges, unk_token=_UNK)
        case "unigram":
            letters = set(alphabet)
            scores = _settle(
                {piece: n for piece, n in trained["vocab"] if letters.issuperset(piece)}
            )
            ranked = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
            return models.Unigram(
                [(name, 0.0) for name in _HIDDEN] + ranked, unk_id=_HIDDEN.index(_UNK)
            )
        case _:
            assert_never(config.kind)


def _number(pieces: list[str]) -> dict[str, int]:
    # Two merges may stream_text the same piece, which has one id.
    return {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}


def _settle(scores: dict[str, float]) -> dict[str, float]:
    """The scores without what HF leaves to chance.

    Its hash order moves their last digits; and of the characters that pruning has left without a
    score, the first in that order gets the lowest, the next 0.0001 more: here all get the lowest.
    """
    low = min(scores.values())
    step = 0.0001 * sum(len(piece) == 1 for piece in scores)
    return {
        piece: round(low if len(piece) == 1 and score < low + step else score, 6)
        for piece, score in scores.items()
    }
