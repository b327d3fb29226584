"""Converts older vocabulary files of published models to the content of a tokenizer.json.

These are WordPiece's vocab.txt, byte-level BPE's vocab.json and merges.txt, and SentencePiece
models (Protocol Buffers), of which only pieces, scores and normalisation are read.
"""

import base64
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

UNIGRAM, BPE = 1, 2  # types of SentencePiece models
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # types of their pieces


def wordpiece(text: str, lowercase: bool, names: Sequence[str]) -> dict[str, Any]:
    """BERT's, of a vocab.txt with a piece per line. `names` are pad, unk, cls, sep and mask."""
    pieces = text.removesuffix("\n").split("\n")  # not splitlines: pieces may be U+2028 and such
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
    """GPT-2's, RoBERTa's and BART's; `names` are those of special tokens.

    If <s> and </s> are among them, they are put around a text, as RoBERTa and BART expect.
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
    """The parts of a SentencePiece model that are used."""

    pieces: list[tuple[str, float, int]]  # with score and type
    kind: int
    charsmap: bytes
    dummy_prefix: bool


def sentencepiece(content: bytes) -> Pieces:
    """The pieces of a SentencePiece model; ValueError for anything else."""
    pieces: list[tuple[str, float, int]] = []
    kind, charsmap, prefix = UNIGRAM, b"", True
    for number, value in _message(content):
        if number == 1 and isinstance(value, bytes):
            text, score, piece_type = "", 0.0, NORMAL
            for inner, part in _message(value):
                if inner == 1 and isinstance(part, bytes):
                    text = part.decode()
                elif inner == 2 and isinstance(part, bytes):
                    (score,) = struct.unpack("<f", part)
                elif inner == 3 and isinstance(part, int):
                    piece_type = part
            pieces.append((text, score, piece_type))
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
    """The fields of a Protocol Buffers message: field number, and bytes or an integer."""
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
    model: Pieces, unknown: str, end: str, ids: Mapping[str, int] | None = None, extra: int = 0
) -> dict[str, Any]:
    """T5's and Marian's. `ids` are the network's ids, where they are not those of the model.

    Pieces of `ids` that are not in this model (the other language's) keep their id under a name
    that occurs in no text. `extra` is the number of T5's sentinels, which come last.
    """
    scores = {piece: score for piece, score, _ in model.pieces}
    order = [piece for piece, _, _ in model.pieces]
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
    return _spm(model) | {
        "added_tokens": special_tokens(names, special),
        "post_processor": template(names, [], [end], [end]),
        "decoder": META,
        "pre_tokenizer": META,
        "model": {"type": "Unigram", "unk_id": names[unknown], "vocab": vocab},
    }


META = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def _spm(model: Pieces) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if model.charsmap:
        text = base64.b64encode(model.charsmap).decode()
        parts.append({"type": "Precompiled", "precompiled_charsmap": text})
    parts.append({"type": "Strip", "strip_left": False, "strip_right": True})
    parts.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return {"normalizer": {"type": "Sequence", "normalizers": parts}}


def scored_bpe(
    pieces: Sequence[tuple[str, float, int]], dummy_prefix: bool = True
) -> dict[str, Any]:
    """Llama's: BPE of SentencePiece, whose merges are ordered by score.

    Characters without a piece fall back to bytes.
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
    """The `added_tokens` of a tokenizer.json."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    known = sorted({name for name in names if name in vocab}, key=lambda name: vocab[name])
    return [{"id": vocab[n], "content": n, "special": True, **flags} for n in known]


def template(
    vocab: Mapping[str, int], before: Sequence[str], after: Sequence[str], between: Sequence[str]
) -> dict[str, Any]:
    """The post-processor that puts special tokens around texts."""

    def entries(names: Sequence[str]) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": name, "type_id": 0}} for name in names]

    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 0}}
    names = dict.fromkeys([*before, *after, *between])
    for name in names:
        if name not in vocab:
            raise ValueError(f"there is no piece {name!r}")
    return {
        "type": "TemplateProcessing",
        "single": [*entries(before), first, *entries(after)],
        "pair": [*entries(before), first, *entries(between), second, *entries(after)],
        "special_tokens": {n: {"id": n, "ids": [vocab[n]], "tokens": [n]} for n in names},
    }


def vocabulary(text: str) -> dict[str, int]:
    """The pieces of a vocab.json with their ids."""
    vocab = json.loads(text)
    if not isinstance(vocab, dict) or {*map(type, vocab.values())} != {int}:
        raise ValueError("no pieces with their ids")
    return vocab
