"""Defaults for sources other than text: by their kind, the task, and the size of the data."""

import os
from collections.abc import Mapping
from contextlib import suppress
from math import ceil, sqrt
from statistics import median
from typing import Any

from saccade.config import VECTOR
from saccade.errors import DataError
from saccade.setup.survey import Survey

SHORT = 40  # characters: a shorter text is rather a name than a sentence
# Pictures read in a training: the dev loss still fell after 460,000 (emoji) and 480,000 (Flickr8k,
# five captions a photo).
PICTURE_READS = 600_000
SOUND_FRAMES = 3000  # of the longest training example: half a minute
DECODER = {"kind": "recurrent", "attention": "additive", "context": "cell", "num_layers": 1}


def media_defaults(
    kind: str, media: Mapping[str, Mapping[str, Any]], data: Mapping[str, Any], seen: Survey
) -> dict[str, Any]:
    """The tables of a configuration for these columns of media; `data` is what is known of them."""
    kinds = {str(reader.get("kind")) for reader in media.values()}
    texts = len(data["source"]) > len(media)
    n = seen.count
    dim = 128 if n < 3000 else 192 if n < 30_000 else 256
    if "picture" in kinds and kind == "classify":
        dim = min(dim, 128)  # classification needs less than captioning
    dropout = 0.3 if n < 10_000 else 0.2
    chosen: dict[str, Any] = {
        "task": {
            "columns": {name: _reader(name, dict(one), data, seen) for name, one in media.items()}
        },
        "encoder": _body(kinds, texts, dim, dropout),
        "data": {"max_len": SOUND_FRAMES if "sound" in kinds else 1024},
        "train": {
            "rate": _rate(kinds, texts),
            "average": 0.995,
            "warmup": 200,
            "workers": 1,
            "batch_tokens": _batch_tokens(kinds, n),
            "label_smoothing": 0.1,
        },
    }
    if kind == "classify":
        if VECTOR in media and len(media) == 1 and not texts:  # a vector and a label: two tokens
            chosen["train"]["batch_tokens"] = 64 if n < 2000 else 256 if n < 20_000 else 1024
        chosen["head"] = {"kind": "pooled", "pool": "attention", "dropout": dropout}
        chosen["task"]["tokenizer"] = {"kind": "word", "size": 10_000, "split_punctuation": True}
        chosen["train"] |= {"patience": 10, "epochs": _epochs(n, 60)}
        return chosen
    if kind == "tag":
        chosen["head"] = {"kind": "per_word", "dropout": dropout}
        chosen["train"] |= {"epochs": _epochs(n, 60)}
        return chosen
    chosen["decoder"] = DECODER | {"dim": dim, "dropout": dropout}
    if kinds == {"picture"} and seen.target_chars >= SHORT:  # 1.3 times as fast on sentences
        chosen["decoder"] |= {"attention": "general", "context": "output"}
    chosen["task"] |= _target(kinds, seen)
    if "sound" in kinds and not seen.symbols:
        chosen["task"]["metric"] = "word_error"
    chosen["train"] |= {"epochs": _epochs(n, 60)}
    if kinds == {"picture"}:  # a CNN trained from scratch needs many
        reads = PICTURE_READS // max(seen.targets, 1)
        chosen["train"]["epochs"] = min(200, max(20, reads))
    chosen["decode"] = {
        "max_len": int(min(1000, max(20, 1.5 * seen.longest_target + 10))),
        "max_ratio": 100.0,  # cells and frames hardly determine the length of a text
    }
    if kinds == {"picture"} and seen.target_chars < SHORT:
        # the likeliest name that is not empty: length normalisation favours long ones
        chosen["decode"] |= {"alpha": 0.0, "min_len": 1}
    return chosen


def media_tables(media: Mapping[Any, str], own: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of columns, with the kind of each column of media."""
    tables = dict(own)
    for name, kind in media.items():
        tables[str(name)] = {"kind": kind} | dict(own.get(str(name), {}))
    return tables


def _reader(
    name: str, reader: dict[str, Any], data: Mapping[str, Any], seen: Survey
) -> dict[str, Any]:
    """A reader with defaults; augmentation where examples are few."""
    n = seen.count
    match reader.get("kind"):
        case "picture":
            usual: dict[str, Any] = {"channels": 24, "crop": 0.1, "zoom": 0.1, "colour": 0.1}
            size = {"standardised": True} | _size(name, reader, data, seen)
            return (usual if n < 100_000 else {}) | size | reader
        case "sound":
            usual = {"band_masks": 2, "time_masks": 2, "time_share": 0.05}
            return (usual if n < 100_000 else {}) | reader
        case _:
            return reader


def _size(
    name: str, reader: Mapping[str, Any], data: Mapping[str, Any], seen: Survey
) -> dict[str, int]:
    """Pixels and cells for pictures like the first ones, which are not scaled up.

    Larger ones are squares, unless they are elongated, as lines of writing are.
    """
    from saccade.data.media import Cell  # here, as they import torch: `check` has to be quick
    from saccade.data.pictures import opened

    names = [str(column) for column in data["source"]]
    if {"height", "width"} & reader.keys() or name not in names:
        return {}
    sizes, number = [], names.index(name)
    for row in seen.first:
        cell = Cell(row.source[number], os.path.dirname(row.file), data.get("root", ""))
        with suppress(DataError), opened(cell) as image:  # a damaged one is refused later
            sizes.append(image.size)
    wide, high = (int(median(sides)) for sides in zip(*sizes, strict=True)) if sizes else (64, 64)
    side = min(64, wide, high)
    cell_side = 16 if side >= 48 else 8 if side >= 20 else 4
    longer = max(wide, high) / min(wide, high)
    long_side = min(256.0, side * longer) if longer > 2 else float(side)
    short, long = (ceil(one / cell_side) * cell_side for one in (side, long_side))
    height, width = (short, long) if wide >= high else (long, short)
    return {"height": height, "width": width, "cell": cell_side}


def _rate(kinds: set[str], texts: bool) -> float:
    if kinds != {"picture"}:
        return 1e-3
    return 2e-3 if texts else 3e-3


def _body(kinds: set[str], texts: bool, dim: int, dropout: float) -> dict[str, Any]:
    if kinds == {"picture"} and not texts:
        return {"kind": "none", "dim": dim, "dropout": dropout}
    if kinds == {"picture"} or texts:
        heads = {"num_heads": 4, "num_layers": 2, "ff_dim": 2 * dim}
        return {"kind": "transformer", "dim": dim, "dropout": min(dropout, 0.1)} | heads
    return {"kind": "recurrent", "dim": dim, "num_layers": 2, "dropout": dropout}


def _batch_tokens(kinds: set[str], n: int) -> int:
    if "sound" in kinds:
        return 2048 if n < 2000 else 6000
    return 1024 if n < 5000 else 2048


def _target(kinds: set[str], seen: Survey) -> dict[str, Any]:
    """The tokenizer of the target: symbols, characters of short texts, subwords of sentences.

    Captions are tokenised by words.
    """
    if seen.symbols:
        return {"target": {"kind": "word", "size": 2000}, "metric": "token_error"}
    if kinds == {"picture"} and seen.recurring_words:
        short = seen.target_chars < SHORT
        words = {"kind": "word", "size": 10_000, "min_count": 1 if short else 3}
        split = {} if short else {"split_punctuation": True}
        return {"target": words | split, "metric": "token_error" if short else "cider"}
    if seen.target_chars < SHORT:
        return {"target": {"kind": "char", "size": 2000}, "metric": "token_error"}
    pieces = int(min(8000, max(500, 60 * sqrt(seen.count)))) // 100 * 100
    return {"target": {"kind": "bpe", "size": pieces}, "metric": "bleu"}


def _epochs(n: int, most: int) -> int:
    return int(min(most, max(4, round(2000 / sqrt(max(n, 1))))))
