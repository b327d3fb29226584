"""Older files of published vocabularies as the tokenizer.json that they would have today.

WordPiece's vocab.txt, byte-level BPE's vocab.json and merges.txt, and models of SentencePiece,
which are Protocol Buffers: of these only the pieces, their scores and the normalisation are read.
"""

import base64
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

UNIGRAM, BPE = 1, 2  # kinds of SentencePiece models
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # of its pieces


def wordpiece(text: str, lowercase: bool, names: Sequence[str]) -> dict[str, Any]:
    """That of BERT: a vocab.txt has a piece a line. `names` are pad, unk, cls, sep and mask."""
    pieces = text.removesuffix("\n").split("\n")  # some pieces are line breaks of other kinds
    vocab = {piece: i for i, piece in enumerate(pieces)}
    _, unknown, first, last, _ = names
    return {
        "added_tokens": special_tokens(vocab, names),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template(vocab, [first], [last], [last]),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "vocab": vocab,
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    }


def byte_level(vocab: Mapping[str, int], merges: str, names: Sequence[str]) -> dict[str, Any]:
    """That of GPT-2, RoBERTa and BART; `names` are those of special tokens.

    With <s> and </s> among them, these stand around a text, as RoBERTa and BART expect.
    """
    pairs = [line.split(" ") for line in merges.split("\n") if line[:8] not in ("", "#version")]
    around = {"<s>", "</s>"} <= {*names} and {"<s>", "</s>"} <= vocab.keys()
    post = template(vocab, ["<s>"], ["</s>"], ["</s>", "</s>"]) if around else None
    byte = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "added_tokens": special_tokens(vocab, names),
        "normalizer": None,
        "pre_tokenizer": byte,
        "post_processor": post,
        "decoder": byte,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "vocab": dict(vocab),
            "merges": [pair for pair in pairs if len(pair) == 2],
        },
    }


class Pieces(NamedTuple):
    """What is read of a SentencePiece model."""

    pieces: list[tuple[str, float, int]]  # with score and kind
    kind: int
    charsmap: bytes
    dummy_prefix: bool


def sentencepiece(content: bytes) -> Pieces:
    """The pieces of a SentencePiece model; ValueError if it is none."""
    pieces: list[tuple[str, float, int]] = []
    kind, charsmap, prefix = UNIGRAM, b"", True
    for number, value in _message(content):
        if number == 1 and isinstance(value, bytes):
            text, score, sort = "", 0.0, NORMAL
            for inner, part in _message(value):
                if inner == 1 and isinstance(part, bytes):
                    text = part.decode()
                elif inner == 2 and isinstance(part, bytes):
                    (score,) = struct.unpack("<f", part)
                elif inner == 3 and isinstance(part, int):
                    sort = part
            pieces.append((text, score, sort))
        elif number == 2 and isinstance(value, bytes):
            kind = next((int(p) for n, p in _message(value) if n == 3 and p in (1, 2, 3, 4)), kind)
        elif number == 3 and isinstance(value, bytes):
            for inner, part in _message(value):
                charsmap = part if inner == 2 and isinstance(part, bytes) else charsmap
                prefix = bool(part) if inner == 3 else prefix
    if not pieces or kind not in (UNIGRAM, BPE):
        raise ValueError("not a SentencePiece model, or one of words or characters")
    return Pieces(pieces, kind, charsmap, prefix)


def _message(content: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a message of Protocol Buffers: numbers, and bytes or whole numbers."""
    at, end = 0, len(content)

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= end or shift > 63:
                raise ValueError("it ends inside a number")
            byte = content[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < end:
        key = varint()
        wire = key & 7
        if wire == 0:
            yield key >> 3, varint()
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"a field of wire type {wire}")
        size = varint() if wire == 2 else {1: 8, 5: 4}[wire]
        if at + size > end:
            raise ValueError("it ends inside a field")
        yield key >> 3, content[at : at + size]
        at += size


def unigram(
    found: Pieces, unknown: str, end: str, ids: Mapping[str, int] | None = None, extra: int = 0
) -> dict[str, Any]:
    """That of T5 and Marian. `ids` are those of the network where they are not the pieces' own.

    Pieces of `ids` that this model has not (the other language's) keep their place under a name
    that no text has. `extra` are T5's sentinels, behind all.
    """
    scores = {piece: score for piece, score, _ in found.pieces}
    order = [piece for piece, _, _ in found.pieces]
    if ids is not None:
        order = sorted(ids, key=ids.__getitem__)
        if [ids[piece] for piece in order] != list(range(len(order))):
            raise ValueError("vocab.json: its ids are not the numbers from 0 on")
    order = [*order, *(f"<extra_id_{i}>" for i in reversed(range(extra)))]
    vocab = [[p if p in scores else f"< {i} >", scores.get(p, 0.0)] for i, p in enumerate(order)]
    names = {piece: i for i, piece in enumerate(order)}
    for name in (unknown, end):
        if name not in names:
            raise ValueError(f"there is no piece {name!r}")
        vocab[names[name]][0] = name
    special = [name for name in names if name in (unknown, end, "<pad>")]
    special += [name for name in names if name.startswith("<extra_id_")]
    for name in special:
        vocab[names[name]][0] = name
    return _spm(found) | {
        "added_tokens": special_tokens(names, special),
        "post_processor": template(names, [], [end], [end]),
        "decoder": META,
        "pre_tokenizer": META,
        "model": {"type": "Unigram", "unk_id": names[unknown], "vocab": vocab},
    }


META = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def _spm(found: Pieces) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if found.charsmap:
        text = base64.b64encode(found.charsmap).decode()
        parts.append({"type": "Precompiled", "precompiled_charsmap": text})
    parts.append({"type": "Strip", "strip_left": False, "strip_right": True})
    parts.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return {"normalizer": {"type": "Sequence", "normalizers": parts}}


def scored_bpe(
    pieces: Sequence[tuple[str, float, int]], dummy_prefix: bool = True
) -> dict[str, Any]:
    """That of Llama: BPE of SentencePiece, whose merges are those with the best scores first.

    What has no piece is written as bytes.
    """
    vocab = {piece: i for i, (piece, _, _) in enumerate(pieces)}
    if len(vocab) < len(pieces):
        raise ValueError("a piece comes twice")
    merges = []
    for piece, score, kind in pieces:
        if kind not in (NORMAL, USER):
            continue
        for cut in range(1, len(piece)):
            if piece[:cut] in vocab and piece[cut:] in vocab:
                merges.append((-score, vocab[piece[:cut]], vocab[piece[cut:]], cut, piece))
    merges.sort(key=lambda merge: merge[:3])
    names = [piece for piece, _, kind in pieces if kind in (UNKNOWN, CONTROL)]
    unknown = next((piece for piece, _, kind in pieces if kind == UNKNOWN), None)
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    first = [{"type": "Prepend", "prepend": "▁"}] if dummy_prefix else []
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if dummy_prefix else []
    return {
        "added_tokens": special_tokens(vocab, names),
        "normalizer": {"type": "Sequence", "normalizers": [*first, space]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *after],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": any(kind == BYTE for _, _, kind in pieces),
            "vocab": vocab,
            "merges": [[piece[:cut], piece[cut:]] for *_, cut, piece in merges],
        },
    }


def special_tokens(vocab: Mapping[str, int], names: Sequence[str]) -> list[dict[str, Any]]:
    """The entries of special tokens."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    known = sorted({name for name in names if name in vocab}, key=lambda name: vocab[name])
    return [{"id": vocab[n], "content": n, "special": True, **flags} for n in known]


def template(
    vocab: Mapping[str, int], before: Sequence[str], after: Sequence[str], between: Sequence[str]
) -> dict[str, Any]:
    """The part that puts marks around texts."""

    def marks(names: Sequence[str]) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": name, "type_id": 0}} for name in names]

    one = {"Sequence": {"id": "A", "type_id": 0}}
    two = {"Sequence": {"id": "B", "type_id": 0}}
    names = dict.fromkeys([*before, *after, *between])
    for name in names:
        if name not in vocab:
            raise ValueError(f"there is no piece {name!r}")
    return {
        "type": "TemplateProcessing",
        "single": [*marks(before), one, *marks(after)],
        "pair": [*marks(before), one, *marks(between), two, *marks(after)],
        "special_tokens": {n: {"id": n, "ids": [vocab[n]], "tokens": [n]} for n in names},
    }


def vocabulary(text: str) -> dict[str, int]:
    """The pieces of a vocab.json with their ids."""
    found = json.loads(text)
    if not isinstance(found, dict) or {*map(type, found.values())} != {int}:
        raise ValueError("no pieces with their ids")
    return found
