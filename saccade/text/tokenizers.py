"""Text to ids and back, by words, characters or trained pieces.

A text is first cut into units (words, or characters), in Python; HF `tokenizers` trains the pieces
and cuts units into them, once for each distinct unit of a call: several times as fast as leaving
it all to HF. The blank between two words is part of a unit, so that a piece shows whether it ends
a word (bpe: "est ") or begins one (unigram: " low").

Files that `load` reads are untrusted. HF is given only their pieces, merges and scores, each
checked; whatever else HF could do (normalise, pad, add tokens) is refused.
"""

import json
import math
import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, NamedTuple, Self, assert_never

import tokenizers as hf
from tokenizers import models, trainers

from saccade import config as c
from saccade.errors import CheckpointError, ConfigError, DataError
from saccade.text.vocab import MASK, SPECIALS, Inventory, Specials

MAX_FILE_BYTES = 1 << 25  # of a saved tokenizer
MAX_PIECE_CHARACTERS = 512  # bounds the text that a few tokens decode to
MAX_TRIE_NODES = 1 << 18  # of a unigram model: HF takes about 450 bytes for each

# HF's threads do not survive a fork, and older versions warn of that: use none from the first fork
# on. HF reads the variable at every call, so until then it uses threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: os.environ.setdefault("TOKENIZERS_PARALLELISM", "false"))

# The names of the specials inside HF. No unit has a blank between two other characters, so no text
# can produce one; "<eos>" in a text is an ordinary string.
_UNK = "<unk >"
_UNK_ID = SPECIALS.index("<unk>")
REPEATED_AT_ONCE = 1000  # copies of one unit in a chunk that is given to HF

# As in GPT-2, a blank belongs to the word after it, but \w would split words at vowel signs (Hindi,
# Thai). Every character matches some alternative, so that nothing is lost.
_MARKS = r"!-/:-@\[-`{-~¡-¿\u2010-\u2027\u2030-\u205e\u3001-\u303f\uff01-\uff0f"
CHUNK = re.compile(rf" ?[^\s{_MARKS}]+| ?[{_MARKS}]+|\s+(?!\S)|\s")


class Frame(NamedTuple):
    """The special tokens around texts: before and after a source, and between two texts."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    start: tuple[int, ...] = ()  # before a decoder's target, which ends with `eos`
    line: tuple[int, ...] = ()  # before the first token of a language model


class Tokenizer:
    """A trained tokenizer and its special ids, of which encoding yields `unk` alone."""

    def __init__(self, config: c.Tokenizer, model: hf.Tokenizer) -> None:
        self.config = config
        self._hf = model
        self._ids: dict[str, int] = model.get_vocab()
        self._pieces = sorted(self._ids, key=self._ids.__getitem__)
        gapless = sorted(self._ids.values()) == list(range(len(self._ids)))
        if not gapless or not self._ids.keys() >= set(_hf_names(config)):
            raise ValueError("its ids have gaps, or it lacks a special one")
        self.specials = _specials(config, [self._ids[name] for name in _hf_names(config)])
        for i, name in zip(self.specials.ids, special_names(config), strict=True):
            self._pieces[i] = name
        self._known: set[str] = set()  # cache of `unknown`: units that have a token
        self._dropped = {*self.specials.ids} - {self.specials.unk}  # ids that are not decoded
        sep, bos, eos = (self.specials.sep,), (self.specials.bos,), (self.specials.eos,)
        self.frame = Frame((), sep, eos, bos, eos)

    @classmethod
    def train(cls, config: c.Tokenizer, lines: Iterable[str]) -> Self:
        """A tokenizer trained on `lines`, which are read once and not kept in memory."""
        counts = Counts(config)
        for line in lines:
            counts.add(line)
        return cls.from_counts(counts)

    @classmethod
    def from_counts(cls, counts: "Counts") -> Self:
        """A tokenizer trained on counted units; the counts are consumed.

        Words (word) or characters (char, bpe, unigram) rarer than `min_count` are unknown, and so
        are the rarest beyond `size`, and words longer than MAX_PIECE_CHARACTERS. Pieces of bpe and
        bytes occur at least twice.
        """
        config, alphabet = counts.config, counts.alphabet()
        trained = _train(config, counts, alphabet)
        long = [unit for unit in alphabet if len(unit) > MAX_PIECE_CHARACTERS]
        if config.kind == "word":
            for name in (*special_names(config), *long):  # "<unk>" in a text is not a word
                del alphabet[name]
        frequent = [unit for unit, n in alphabet.items() if n >= config.min_count]
        frequent.sort(key=lambda unit: (-alphabet[unit], unit))
        if not frequent:
            rare = f", or all in it is rarer than min_count = {config.min_count}"
            raise DataError(
                "tokenizer: nothing to learn a vocabulary from: the training text is empty"
                + (rare if alphabet else "")
                + (f", or longer than {MAX_PIECE_CHARACTERS} characters" if long else "")
            )
        known = frequent[: config.size - len(special_names(config))]
        return cls(config, hf.Tokenizer(_model(config, known, trained)))

    def save(self, path: str | Path) -> None:
        content = {"saccade": self.config.model_dump(), "tokenizer": json.loads(self._hf.to_str())}
        Path(path).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The tokenizer that `save` wrote; CheckpointError if it holds anything else."""
        try:
            info = Path(path).stat()
            if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_FILE_BYTES:
                limit = f"{MAX_FILE_BYTES >> 20} MB"
                raise ValueError(f"not a regular file, or larger than {limit}")
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            config = c.Tokenizer.model_validate(content["saccade"])
            if config.kind == "imported":
                from saccade.text.imported import Imported  # a subclass

                return Imported.restored(config, content)  # type: ignore[return-value]
            return cls(config, hf.Tokenizer(_vetted_model(config, content["tokenizer"])))
        except Exception as error:  # HF raises no narrower class
            message = str(error)[:300]
            raise CheckpointError(f"{path}: not a readable tokenizer: {message}") from None

    @property
    def model_json(self) -> str:
        """The HF model as JSON."""
        return self._hf.to_str()

    def __len__(self) -> int:
        """The size of the vocabulary, specials included."""
        return len(self._pieces)

    @property
    def inventory(self) -> Inventory:
        special, unk = self.specials.ids, self.specials.unk
        return Inventory(len(self), special, unk, self.config.ordered, self.config.spelled)

    def agrees(self, other: "Tokenizer") -> bool:
        """Whether both have the same ids."""
        return self.config.kind == other.config.kind and self._pieces == other._pieces

    @property
    def lossless(self) -> bool:
        """Whether `decode(encode(text))` is `text`.

        bytes: for every text; char: for every text of known characters. The others normalise
        whitespace to single blanks, none at the ends, and with `split_punctuation` put blanks
        around punctuation; otherwise word keeps known words, bpe and unigram all known characters.
        Not with `lowercase`, which loses the case, nor with `decompose`, which loses any form but
        NFC.
        """
        exact = not self.config.lowercase and not self.config.decompose
        return self.config.kind in ("char", "bytes") and exact

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without specials. One call with many texts is faster than many."""
        if self.config.kind in ("word", "char"):
            get = self._ids.get
            unk = self.specials.unk
            return [[get(unit, unk) for unit in _units(self.config, text)] for text in texts]
        cache: dict[str, list[int]] = {}
        ids: list[list[int]] = []
        for start in range(0, len(texts), 4096):  # in chunks: a million lists of strings are slow
            rows = [_units(self.config, text) for text in texts[start : start + 4096]]
            new = [unit for unit in dict.fromkeys(chain.from_iterable(rows)) if unit not in cache]
            for unit, encoding in zip(new, self._hf.encode_batch_fast(new), strict=True):
                cache[unit] = encoding.ids
            ids += [list(chain.from_iterable(map(cache.__getitem__, row))) for row in rows]
        return ids

    def unknown(self, text: str) -> list[str]:
        """The words (or characters) of a text that have no token, repetitions included.

        With `spelled`, only characters can be unknown. Known ones are cached over all calls.
        """
        units = alphabet(self.config, text)
        if self.config.spelled:
            units = [unit for unit in _units(self.config, text) if unit[0] == " "]
        new = [unit for unit in dict.fromkeys(units) if unit not in self._known]
        if not new:
            return []
        unk = self.specials.unk
        encodings = self._hf.encode_batch_fast(new)
        pairs = zip(new, encodings, strict=True)
        missing = {unit for unit, encoding in pairs if unk in encoding.ids}
        self._known.update(unit for unit in new if unit not in missing)
        found = [unit for unit in units if unit in missing] if missing else []
        return [unit[1:] for unit in found] if self.config.spelled else found

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], list[int]]]:
        """The ids of each sentence, and for each id the index of its word; every word has an id.

        The ids are those of the words joined by blanks; a blank that is a token of its own (char,
        bytes) belongs to the word after it.
        """
        gap = " " if self.config.kind in ("char", "bytes", "imported") else ""
        rows = [words[:1] + [gap + word for word in words[1:]] for words in map(list, sentences)]
        words = list(dict.fromkeys(chain.from_iterable(rows)))
        word_ids = {
            word: ids or [self.specials.unk]
            for word, ids in zip(words, self.encode(words), strict=True)
        }
        return [
            (
                [i for word in row for i in word_ids[word]],
                [index for index, word in enumerate(row) for _ in word_ids[word]],
            )
            for row in rows
        ]

    @property
    def letters(self) -> list[int]:
        """The ids of single letters, without blanks, digits, marks and punctuation."""
        ids = range(len(self._pieces))
        return [i for i in ids if len(self._pieces[i]) == 1 and self._pieces[i].isalpha()]

    def word_breaks(self) -> tuple[list[bool], list[bool]]:
        """For each id whether there is a word boundary before it, and whether there is one after.

        A special id is a word of its own; a blank that is a token belongs to the word after it.
        """
        special, kind = {*self.specials.ids}, self.config.kind
        before, after = [], []
        for i, piece in enumerate(self._pieces):
            alone = i in special or kind == "word"
            before.append(alone or (kind != "bpe" and piece[:1].isspace()))
            after.append(alone or (kind == "bpe" and piece[-1:] == " "))
        return before, after

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids, without specials other than "<unk>"."""
        rows = ([self._pieces[i] for i in row if i not in self._dropped] for row in ids)
        match self.config.kind:
            case "word":
                return [(self.config.separator or " ").join(row) for row in rows]
            case "char":
                texts = ["".join(row) for row in rows]
                if self.config.decompose:
                    return [unicodedata.normalize("NFC", text) for text in texts]
                return texts
            case "bpe" | "unigram":
                return ["".join(row).strip(" ") for row in rows]
            case "bytes":  # incomplete UTF-8 becomes U+FFFD
                return ["".join(row).encode("latin-1").decode(errors="replace") for row in rows]
            case "imported":
                raise AssertionError("a published tokenizer overrides decode")
            case _:
                assert_never(self.config.kind)

    def written(self) -> list[str]:
        """What each token adds to a decoded text: its piece, with the blank that separates it."""
        if self.config.kind == "word":
            return [(self.config.separator or " ") + piece for piece in self._pieces]
        if self.config.kind == "imported":
            return [re.sub("[▁Ġ]", " ", piece) for piece in self.tokens(range(len(self)))]
        return list(self._pieces)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id, for display: est</w> (bpe), ▁low (unigram), \\xf0 (a lone byte)."""
        pieces = [self._pieces[i] for i in ids]
        match self.config.kind:
            case "word" | "char" | "imported":
                return pieces
            case "bpe":
                return [piece.replace(" ", "</w>") for piece in pieces]
            case "unigram":
                return [piece.replace(" ", "▁") for piece in pieces]
            case "bytes":
                return [p.encode("latin-1").decode(errors="backslashreplace") for p in pieces]
            case _:
                assert_never(self.config.kind)


def special_names(config: c.Tokenizer) -> tuple[str, ...]:
    """The names of a tokenizer's special ids, from id 0 on."""
    masks = (MASK,) if config.mask else ()
    return (*SPECIALS, *masks, *(f"<{i}>" for i in range(config.sentinels)))


def _specials(config: c.Tokenizer, ids: list[int]) -> Specials:
    """The special ids, in the order of their names."""
    pad, unk, bos, eos, sep, *others = ids
    mask = others.pop(0) if config.mask else None
    return Specials(pad, unk, bos, eos, sep, mask, tuple(others))


def _hf_names(config: c.Tokenizer) -> tuple[str, ...]:
    """The names of the special ids inside HF."""
    return tuple(f"{name[:-1]} >" for name in special_names(config))


def _units(config: c.Tokenizer, text: str) -> list[str] | str:
    """`text` cut without any training: into words, each with its blank, or into characters."""
    text = well_formed(text)
    if config.lowercase:
        text = text.lower()
    if config.decompose:
        text = unicodedata.normalize("NFD", text)
    if config.split_punctuation and config.kind in ("word", "bpe", "unigram"):
        text = text.translate(_PUNCTUATION).replace(" < unk > ", " <unk> ")
    match config.kind:
        case "word":
            words = [word for word in text.split(config.separator or None) if word]
            if config.spelled:  # characters are marked by a blank, with which no word begins
                return [unit for word in words for unit in (word, *(f" {char}" for char in word))]
            return words
        case "char":
            return text
        case "bpe":
            return [word + " " for word in text.split()]
        case "unigram":
            return [" " + word for word in text.split()]
        case "imported":  # HF's own pre-tokenizer does it
            return [text]
        case "bytes":  # latin-1: one character per byte
            return [chunk.encode().decode("latin-1") for chunk in CHUNK.findall(text)]
        case _:
            assert_never(config.kind)


def well_formed(text: str) -> str:
    """A text with lone surrogates, which JSON can hold but UTF-8 cannot, replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def alphabet(config: c.Tokenizer, text: str) -> Sequence[str]:
    """The units of `text` that may be unknown: words (word), characters, or nothing (bytes)."""
    if config.kind == "bytes":
        return ""
    if config.kind in ("word", "char"):
        units = _units(config, text)
        return [unit for unit in units if unit[0] != " "] if config.spelled else units
    return text.lower() if config.lowercase else text


class _PunctuationTable(dict[int, str]):
    """For `str.translate`: blanks around punctuation and symbols; filled lazily."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        self[code] = f" {char} " if unicodedata.category(char)[0] in "PS" else char
        return self[code]


_PUNCTUATION = _PunctuationTable()


class Counts:
    """Counts the units of texts, from which a tokenizer is trained."""

    def __init__(self, config: c.Tokenizer):
        if config.kind == "imported":
            raise ConfigError(
                "tokenizer: kind 'imported' is that of a published model, and is not trained: use "
                "bpe, or start from the model"
            )
        pieces = config.size - len(special_names(config)) - (255 if config.kind == "bytes" else 0)
        if pieces < 1:
            least = config.size - pieces + 1
            raise ConfigError(f"tokenizer: {config.kind} needs a size of at least {least}")
        self.config = config
        self.units: Counter[str] = Counter()

    def add(self, text: str) -> None:
        self.units.update(_units(self.config, text))

    def alphabet(self) -> Counter[str]:
        """The counts of the units that may be unknown: words, or characters."""
        if self.config.kind in ("word", "char"):
            return self.units
        characters: Counter[str] = Counter()
        for unit, count in self.units.items():
            for char in unit:
                characters[char] += count
        return characters

    def drain(self) -> Iterator[list[str]]:
        """Every unit, repeated as often as it was counted, in chunks; frees the counts."""
        while self.units:
            unit, count = self.units.popitem()
            for start in range(0, count, REPEATED_AT_ONCE):
                yield [unit] * min(REPEATED_AT_ONCE, count - start)


def _train(config: c.Tokenizer, counts: Counts, alphabet: Counter[str]) -> dict[str, Any]:
    """The model that HF trains on the counts, as JSON; empty for kinds that are only counted."""
    size = config.size - len(special_names(config))
    match config.kind:
        case "word" | "char":
            return {}
        case "bpe" | "bytes":
            model = hf.Tokenizer(models.BPE())
            trainer: trainers.Trainer = trainers.BpeTrainer(
                vocab_size=size,
                min_frequency=2,
                show_progress=False,
                initial_alphabet=_BYTES if config.kind == "bytes" else [],
                max_token_length=MAX_PIECE_CHARACTERS,
            )
        case "unigram":
            model = hf.Tokenizer(models.Unigram())
            trainer = trainers.UnigramTrainer(vocab_size=size, show_progress=False)
        case "imported":
            raise AssertionError("a published tokenizer is not trained")
        case _:
            assert_never(config.kind)
    try:
        model.train_from_iterator(counts.drain(), trainer)
    except Exception as error:  # HF raises no narrower class
        if config.kind == "unigram" and len(alphabet) >= size:  # no room for more than characters
            total = alphabet.total()
            return {"vocab": [(char, math.log(n / total)) for char, n in alphabet.items()]}
        raise DataError(f"tokenizer: {config.kind} fails on this text ({error}); try bpe") from None
    trained: dict[str, Any] = json.loads(model.to_str())["model"]
    return trained


_BYTES = [chr(byte) for byte in range(256)]


def _model(config: c.Tokenizer, alphabet: list[str], trained: dict[str, Any]) -> models.Model:
    """The HF model: the specials, the alphabet, and the learned pieces within the alphabet."""
    names = _hf_names(config)
    match config.kind:
        case "word" | "char":
            return models.WordLevel(_number([*names, *alphabet]), unk_token=_UNK)
        case "bpe" | "bytes":
            letters = set(_BYTES if config.kind == "bytes" else alphabet)
            merges = [(a, b) for a, b in trained["merges"] if letters.issuperset(a + b)]
            pieces = [*names, *sorted(letters), *(a + b for a, b in merges)]
            return models.BPE(_number(pieces), merges, unk_token=_UNK)
        case "unigram":
            letters = set(alphabet)
            scores = _deterministic_scores(
                {piece: n for piece, n in trained["vocab"] if letters.issuperset(piece)}
            )
            ranked = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
            if trie_nodes(scores) > MAX_TRIE_NODES:
                raise ConfigError(
                    f"tokenizer: unigram: {len(scores):,} pieces are more than can be loaded "
                    "again: set a smaller size, or use bpe"
                )
            return models.Unigram([(name, 0.0) for name in names] + ranked, unk_id=_UNK_ID)
        case "imported":
            raise AssertionError("a published tokenizer is not trained")
        case _:
            assert_never(config.kind)


def _number(pieces: list[str]) -> dict[str, int]:
    # two merges may give the same piece, which has one id
    return {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}


def _deterministic_scores(scores: dict[str, float]) -> dict[str, float]:
    """The scores without HF's nondeterminism.

    Hash order changes their last digits; and of the characters that pruning has left without a
    score, the first in that order gets the lowest, the next 0.0001 more: here all get the lowest.
    """
    low = min(scores.values())
    step = 0.0001 * sum(len(piece) == 1 for piece in scores)
    return {
        piece: round(low if len(piece) == 1 and score < low + step else score, 6)
        for piece, score in scores.items()
    }


# --- checks of untrusted files --------------------------------------------------------------------

_TYPES = {
    "word": "WordLevel", "char": "WordLevel", "bpe": "BPE", "bytes": "BPE", "unigram": "Unigram",
}  # fmt: skip
# The parts of a model that HF is given; every other setting of HF's must be off.
_PARTS = {
    "WordLevel": {"type", "vocab", "unk_token"},
    "BPE": {"type", "vocab", "merges", "unk_token"},
    "Unigram": {"type", "vocab", "unk_id"},
}


def _vetted_model(config: c.Tokenizer, saved: Any) -> models.Model:
    """The HF model of a saved tokenizer; ValueError if it has a part that `save` never writes."""
    _refuse_parts(saved, {"version", "model"}, "tokenizer")
    model, kind = saved["model"], _TYPES[config.kind]
    if not isinstance(model, dict) or model.get("type") != kind:
        raise ValueError(f"tokenizer.model.type: the kind '{config.kind}' needs '{kind}'")
    _refuse_parts(model, _PARTS[kind], "tokenizer.model")
    if kind == "Unigram":
        scores = _vetted_scores(model["vocab"])
        if model.get("unk_id") != _UNK_ID:
            raise ValueError(f"tokenizer.model.unk_id: must be {_UNK_ID}")
        _vet_pieces(config, [piece for piece, _ in scores])
        return models.Unigram(scores, unk_id=_UNK_ID)
    vocab = model["vocab"]
    ids = list(vocab.values()) if isinstance(vocab, dict) else []
    if {*map(type, ids)} != {int} or not {*ids} == {*range(len(ids))}:
        raise ValueError("tokenizer.model.vocab: its ids are not the numbers from 0 on")
    if model.get("unk_token") != _UNK:
        raise ValueError(f"tokenizer.model.unk_token: must be '{_UNK}'")
    _vet_pieces(config, vocab)
    if kind == "WordLevel":
        return models.WordLevel(vocab, unk_token=_UNK)
    return models.BPE(vocab, _vetted_merges(model["merges"], vocab), unk_token=_UNK)


def _refuse_parts(table: Any, known: set[str], where: str) -> None:
    """ValueError if a table has a part that is not known, unless it is off."""
    if not isinstance(table, dict):
        raise ValueError(f"{where}: expected a JSON object")
    for name, value in table.items():
        if name not in known and value not in (None, False, [], {}):
            raise ValueError(f"{where}.{name[:40]}: unsupported field")


def _vetted_scores(vocab: Any) -> list[tuple[str, float]]:
    scores = []
    for piece, score in vocab:
        if not isinstance(piece, str) or not isinstance(score, int | float):
            raise ValueError("tokenizer.model.vocab: expected [piece, log-probability] pairs")
        if not -1e6 < score <= 0.0:  # also refuses NaN
            raise ValueError("tokenizer.model.vocab: a score is not a log-probability")
        scores.append((piece, float(score)))
    return scores


def _vetted_merges(merges: Any, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """The merges, deduplicated; ValueError if one is of unknown pieces."""
    unique: dict[tuple[str, str], None] = {}
    for pair in merges:
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        if not {left, right, left + right} <= vocab.keys():
            raise ValueError("tokenizer.model.merges: a merge of something that is not a piece")
        unique[left, right] = None
    return list(unique)


def _vet_pieces(config: c.Tokenizer, pieces: Iterable[str]) -> None:
    """ValueError for pieces that this kind of tokenizer cannot have, or that are too large."""
    where = "tokenizer.model.vocab"
    special = set(_hf_names(config))
    ordinary = [piece for piece in pieces if piece not in special]
    if max(map(len, ordinary), default=0) > MAX_PIECE_CHARACTERS:
        raise ValueError(f"{where}: a piece has more than {MAX_PIECE_CHARACTERS} characters")
    if config.kind == "bytes" and max(map(max, filter(None, ordinary)), default="") > "\xff":
        raise ValueError(f"{where}: a piece is not made of bytes")
    if config.kind == "unigram" and trie_nodes(ordinary) > MAX_TRIE_NODES:
        raise ValueError(f"{where}: the pieces take more than {MAX_TRIE_NODES:,} nodes of a tree")


def trie_nodes(pieces: Iterable[str]) -> int:
    """The number of nodes in a trie of these pieces by bytes, as HF builds it."""
    nodes, before = 0, b""
    for piece in sorted(piece.encode() for piece in pieces):
        common = takewhile(lambda pair: pair[0] == pair[1], zip(piece, before, strict=False))
        nodes, before = nodes + len(piece) - sum(1 for _ in common), piece
    return nodes
