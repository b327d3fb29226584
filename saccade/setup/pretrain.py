"""Defaults of pre-training, by the size of the text."""

from math import sqrt
from typing import Any

from saccade import config as c
from saccade.setup.survey import Survey

CHARACTERS_PER_TOKEN = 4  # about, of subwords


def pretrain_defaults(task: dict[str, Any], seen: Survey) -> dict[str, Any]:
    """Defaults for an objective on a text of this size: minutes on a CPU for a small one."""
    objective, own = _table(task, "objective"), _table(task, "tokenizer")
    kind, characters = objective.get("kind", "masked"), seen.characters
    if issubclass(known := c.OBJECTIVES.get(kind, c.Masked), c.Word2Vec):
        return _word2vec(seen, issubclass(known, c.Cbow))
    size = int(min(16_000, max(300, 4 * sqrt(characters)))) // 100 * 100
    small, large = characters < 1_000_000, characters > 50_000_000
    dim, layers = (128, 2) if small else (512, 6) if large else (256, 4)
    body = {
        "kind": "transformer",
        "dim": dim,
        "num_layers": layers,
        "num_heads": dim // 64 if dim > 128 else 4,
        "ff_dim": 4 * dim,
        "dropout": 0.1,
        "activation": "gelu",
        "positions": "relative" if kind == "spans" else "rotary",
    }
    if kind == "causal":  # a Llama, which transformers can load: see `export`
        body |= {"norm": "rms", "activation": "swiglu", "bias": False, "output_bias": False}
        body["ff_dim"] = 8 * dim // 3 // 64 * 64  # a gate has a third matrix
    if kind == "bidirectional":  # recurrent, and each direction by itself
        body = {
            "kind": "recurrent",
            "dim": 2 * dim,
            "num_layers": 2,
            "dropout": 0.1,
            "separate": True,
        }
    parts: dict[str, Any] = {
        part: {"kind": "per_token"} if part == "head" else dict(body) for part in c.parts_of(task)
    }
    if objective.get("next_sentence"):
        parts["encoder"]["segments"] = 2
    tokens = characters // CHARACTERS_PER_TOKEN
    context = 64 if small else 128
    cut = own.get("kind", "bpe")  # of any kind, with the special tokens of the objective
    pieces = {"kind": cut, "size": {"char": 5000, "word": 30_000}.get(cut, size)}
    if "head" in parts and cut not in ("char", "bytes"):  # nothing is written: "end." is two words
        pieces["split_punctuation"] = True
    pieces |= {"mask": True} if c.OBJECTIVES.get(kind, c.Masked).needs_mask else {}
    pieces |= {"sentinels": 32} if kind == "spans" else {}
    return parts | {
        "task": {"objective": {"kind": kind}, "tokenizer": pieces, "context": context},
        "train": {
            "rate": 2e-3 if small else 5e-4 if large else 1e-3,
            "batch_tokens": 2048 if small else 8192 if large else 4096,
            "warmup": 100 if small else 1000,
            # many passes over little text, few over much
            "epochs": int(min(100, max(2, round(20_000 / sqrt(max(tokens, 1)))))),
        },
    }


def _table(task: dict[str, Any], key: str) -> dict[str, Any]:
    """The user's table; empty if it is not a table, which is refused later."""
    found = task.get(key, {})
    return found if isinstance(found, dict) else {}


def _word2vec(seen: Survey, cbow: bool) -> dict[str, Any]:
    """The usual settings of word2vec."""
    words = seen.characters // 6
    # the gradient of a mean is divided among its words, so the rate of cbow is higher
    return {
        "task": {
            "tokenizer": {
                "kind": "word",
                "size": 200_000,
                "min_count": 5 if words > 200_000 else 2 if words > 20_000 else 1,
                "lowercase": True,
                "split_punctuation": True,
            }
        },
        "encoder": {"kind": "none", "dim": 100, "dropout": 0.0},
        "train": {
            "optimizer": "sparse",
            "rate": 0.15 if cbow else 0.025,
            "schedule": "linear",
            "warmup": 0,
            "clip": 0.0,
            "weight_decay": 0.0,
            "batch_tokens": 8192 if words > 400_000 else 1024,
            "workers": 1,
            "processes": 1,
            "epochs": int(min(100, max(5, 2_000_000 // max(words, 1)))),
        },
    }
