"""Tokenizers of published models, run by HF `tokenizers` from their tokenizer.json.

Pieces, pre-tokenization and the special tokens around a text stay as published. The file is
untrusted: only parts that published tokenizers have are permitted, of bounded size, and only a few
known regular expressions.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import tokenizers as hf

from saccade import config as c
from saccade.errors import CheckpointError
from saccade.text.tokenizers import (
    MAX_PIECE_CHARACTERS,
    Frame,
    Tokenizer,
    trie_nodes,
    well_formed,
)
from saccade.text.vocab import Inventory, Specials

MAX_VOCABULARY = 1 << 20
MAX_NODES = 1 << 20  # of the trie of a unigram model
MAX_PARTS = 64  # of a normalizer, pre-tokenizer or decoder
MAX_CHARSMAP_CHARACTERS = 1 << 22
# Regular expressions backtrack, so an untrusted one could take exponential time: these do not.
KNOWN_PATTERNS = {
    r" {2,}",
    r"\s+",
    r"\n",
    # GPT-2, and GPT-4 as in Llama 3
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
KNOWN_PARTS = {
    "normalizer": {
        *("Sequence", "BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt"),
        *("StripAccents", "Strip", "Replace", "Prepend", "Precompiled", "ByteLevel"),
    },
    "pre_tokenizer": {
        *("Sequence", "BertPreTokenizer", "ByteLevel", "Metaspace", "WhitespaceSplit"),
        *("Whitespace", "Split", "Digits", "Punctuation"),
    },
    "post_processor": {
        *("Sequence", "TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel"),
    },
    "decoder": {
        *("Sequence", "WordPiece", "ByteLevel", "Metaspace", "BPEDecoder", "ByteFallback"),
        *("Fuse", "Strip", "Replace"),
    },
}
KNOWN_MODELS = ("WordPiece", "BPE", "Unigram", "WordLevel")


class Imported(Tokenizer):
    """A published tokenizer, its special ids, and its frame.

    A network may have more embedding rows than the tokenizer has pieces: the rest are not used.
    """

    def __init__(
        self,
        config: c.Tokenizer,
        content: Mapping[str, Any],
        specials: Specials,
        frame: Frame,
        dropped: Iterable[int] = (),
    ):
        self.config = config
        self.specials = specials
        self.frame = frame
        self._content = vetted(content, config.size)
        self._hf = hf.Tokenizer.from_str(json.dumps(self._content))
        self._hf.encode_special_tokens = True  # "[SEP]" in a text is five characters
        self._ids = self._hf.get_vocab(with_added_tokens=True)
        self._pieces = [f"<{i}>" for i in range(config.size)]
        for piece, i in self._ids.items():
            self._pieces[i] = piece
        self._known = set()
        self._dropped = {*dropped, *specials.ids}
        special = {*self._dropped, *frame.before, *frame.between, *frame.after, *frame.start}
        if not all(0 <= i < config.size for i in special):
            raise ValueError("a special token id is outside the vocabulary")

    def save(self, path: str | Path) -> None:
        extra = {
            "specials": list(self.specials),
            "frame": {name: list(ids) for name, ids in self.frame._asdict().items()},
            "dropped": sorted(self._dropped),
        }
        content = {
            "saccade": self.config.model_dump(),
            "tokenizer": self._content,
            "imported": extra,
        }
        Path(path).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def restored(cls, config: c.Tokenizer, content: Mapping[str, Any]) -> Self:
        """The tokenizer that `save` wrote; ValueError, or an error of HF's, if it is invalid."""
        extra = content["imported"]
        *marks, sentinels = extra["specials"]
        numbers = [*marks, *sentinels, *extra["dropped"], *chain(*extra["frame"].values())]
        if len(extra["specials"]) != len(Specials._fields) or len(numbers) > MAX_VOCABULARY:
            raise ValueError("imported: malformed special token ids")
        if not all(i is None or type(i) is int for i in numbers):
            raise ValueError("imported: special token ids must be integers")
        frame = Frame(**{name: tuple(ids) for name, ids in extra["frame"].items()})
        try:
            specials = Specials._make([*marks, tuple(sentinels)])
            return cls(config, content["tokenizer"], specials, frame, extra["dropped"])
        except BaseException as error:
            raise _as_value_error(error) from None

    def __len__(self) -> int:
        return self.config.size

    @property
    def inventory(self) -> Inventory:
        return Inventory(self.config.size, self.specials.ids, self.specials.unk)

    @property
    def content(self) -> dict[str, Any]:
        """The content of its tokenizer.json."""
        return self._content

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        cleaned = [well_formed(text) for text in texts]
        return [one.ids for one in self._hf.encode_batch_fast(cleaned, add_special_tokens=False)]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        rows = [[i for i in row if i not in self._dropped] for row in ids]
        return list(self._hf.decode_batch(rows, skip_special_tokens=False))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces[i] for i in ids]


def _as_value_error(error: BaseException) -> BaseException:
    """A panic of HF's Rust code, which is not an Exception, as a ValueError; others unchanged."""
    if type(error).__name__ == "PanicException":
        return ValueError(f"HF tokenizers cannot read it: {error}")
    return error


def imported(
    content: Mapping[str, Any],
    rows: int,
    specials: Specials,
    *,
    start: Sequence[int] = (),
    line: Sequence[int] = (),
    where: str = "tokenizer.json",
) -> Imported:
    """The tokenizer of a tokenizer.json, for a network with so many embedding rows.

    Its post-processor gives the special tokens around a source; `start` are those before a target,
    `line` those before the first token of a language model.
    """
    try:
        parts: dict[str, Any] = {"version": "1.0"} | {key: content.get(key) for key in PARTS}
        content = parts | {"added_tokens": parts["added_tokens"] or []}
        vetted(content, rows)
        frame = _frame(content, specials)
        frame = frame._replace(start=tuple(start) or (specials.bos,), line=tuple(line))
        config = c.Tokenizer(kind="imported", size=rows, mask=specials.mask is not None)
        dropped = [one["id"] for one in content.get("added_tokens") or () if one.get("special")]
        return Imported(config, content, specials, frame, dropped)
    except BaseException as error:  # HF raises no narrower class
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise CheckpointError(f"{where}: not a readable tokenizer: {str(error)[:300]}") from None


PARTS = (
    *("added_tokens", "normalizer", "pre_tokenizer"),
    *("post_processor", "decoder", "model"),
)


def _frame(content: Mapping[str, Any], specials: Specials) -> Frame:
    """The special tokens that the post-processor puts around one text, and between two."""
    tokenizer = hf.Tokenizer.from_str(json.dumps(content))
    plain: list[int] = []
    for text in ("a", "the", "0", "."):
        plain = plain or tokenizer.encode(text, add_special_tokens=False).ids
        if plain:
            break
    single, pair = tokenizer.encode(text).ids, tokenizer.encode(text, text).ids
    n = len(plain)
    for begin in range(len(single) - n + 1):
        before, after = single[:begin], single[begin + n :]
        second = len(pair) - len(after) - n
        fits = single[begin : begin + n] == plain == pair[begin : begin + n]
        if fits and second >= begin:
            return Frame(tuple(before), tuple(pair[begin + n : second]), tuple(after))
    return Frame((), (specials.sep,), (specials.eos,))


# --- checks of untrusted files --------------------------------------------------------------------


def vetted(content: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """A tokenizer.json reduced to what is needed; ValueError for what no published one has."""
    model = content.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") not in KNOWN_MODELS:
        kind = model.get("type") if isinstance(model, dict) else model
        raise ValueError(f"model.type: {str(kind)[:40]!r} is none of {', '.join(KNOWN_MODELS)}")
    if not 0 < rows <= MAX_VOCABULARY:
        raise ValueError(f"a vocabulary of {rows:,}; the limit is {MAX_VOCABULARY:,}")
    if model.get("dropout"):
        raise ValueError("model.dropout: random segmentation is not supported")
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        ids = {*vocab.values()}
        if {*map(type, ids)} != {int} or not 0 <= min(ids) <= max(ids) < rows:
            raise ValueError(
                f"model.vocab: an id is out of range: the network has {rows:,} embedding rows"
            )
        pieces: list[Any] = list(vocab)
    elif isinstance(vocab, list) and all(isinstance(p, list) and len(p) == 2 for p in vocab):
        pieces = [piece for piece, _ in vocab]
    else:
        raise ValueError("model.vocab: no pieces")
    if len(pieces) > rows:
        raise ValueError(f"{len(pieces):,} pieces, and the network has {rows:,} rows")
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or len(added) > rows:
        raise ValueError("added_tokens: expected a list of tokens")
    for token in added:
        if not isinstance(token, dict) or type(token.get("id")) is not int:
            raise ValueError("added_tokens: a token without an id")
        if not 0 <= token["id"] < rows:
            raise ValueError(f"added_tokens: {token['id']} is none of the network's {rows:,} rows")
        pieces.append(token.get("content"))
    if not all(isinstance(piece, str) for piece in pieces):
        raise ValueError("model.vocab: a piece is not a string")
    if max(map(len, pieces)) > MAX_PIECE_CHARACTERS:
        raise ValueError(f"a piece has more than {MAX_PIECE_CHARACTERS} characters")
    if model.get("type") == "Unigram" and trie_nodes(pieces) > MAX_NODES:
        raise ValueError(f"model.vocab: the pieces take more than {MAX_NODES:,} nodes of a tree")
    for name, known in KNOWN_PARTS.items():
        _vet_part(content.get(name), name, known, [])
    keep = {name: content.get(name) for name in PARTS if name != "post_processor"}
    return {"version": "1.0", **keep, "added_tokens": added}


def _vet_part(part: Any, where: str, known: set[str], seen: list[str]) -> None:
    """ValueError for an unknown part of a tokenizer, or for too many parts."""
    if part is None:
        return
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in known:
        raise ValueError(f"{where}.type: {str(kind)[:40]!r} is not supported")
    seen.append(kind)
    if len(seen) > MAX_PARTS:
        raise ValueError(f"{where}: more than {MAX_PARTS} parts")
    if kind == "Sequence":
        for inner in part.values():
            for step in inner if isinstance(inner, list) else ():
                _vet_part(step, where, known, seen)
    pattern = part.get("pattern")
    if isinstance(pattern, dict) and "Regex" in pattern and pattern["Regex"] not in KNOWN_PATTERNS:
        raise ValueError(f"{where}.pattern: {str(pattern['Regex'])[:60]!r} is not supported")
    for value in part.values():
        limit = MAX_CHARSMAP_CHARACTERS if isinstance(value, str) else MAX_PARTS
        if isinstance(value, str | list | dict) and len(value) > limit:
            raise ValueError(f"{where}: {len(value):,} entries exceed the limit of {limit:,}")
