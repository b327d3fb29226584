"""Networks of every kind with a batch each: what a plan says of them is held against torch."""

from typing import Any

import torch

from saccade import config as c
from saccade.data.batches import Batch
from saccade.models.build import build
from saccade.models.networks import Network
from saccade.nn.padded import UNSCORED_ID, Padded
from saccade.text.vocab import Inventory
from tests.architectures import DECODERS, ENCODERS, IDS, VOCAB

B, S, T = 6, 24, 20
PART = {"kind": "transformer", "dim": 64, "num_heads": 4, "ff_dim": 96, "num_layers": 2}
TRANSLATIONS = [
    *((encoder, "transformer") for encoder in ENCODERS),
    *(("lstm", decoder) for decoder in DECODERS),
]
PYRAMID = {"kind": "pyramid", "dim": 64, "num_layers": 3}
# Each: the task, its tables, and what it reads and says; sources are text where nothing is said.
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bert": (
        {"kind": "pretrain", "context": S, "objective": {"kind": "masked", "next_sentence": True}},
        {"encoder": ENCODERS["bert"], "head": {"kind": "per_token"}},
    ),
    "elmo": (
        {"kind": "pretrain", "context": S, "objective": {"kind": "bidirectional"}},
        {
            "encoder": {"kind": "recurrent", "dim": 64, "num_layers": 2, "separate": True},
            "head": {"kind": "per_token"},
        },
    ),
    "t5": (
        {"kind": "pretrain", "context": S, "objective": {"kind": "spans"},
         "tokenizer": {"sentinels": 8}},
        {"encoder": PART | {"positions": "relative"}, "decoder": PART | {"positions": "relative"}},
    ),
    "copying": (
        {"kind": "translate", "joint": True},
        {"encoder": PART, "decoder": PART | {"copy": True}},
    ),
    "ctc and bag": (
        {"kind": "translate"},
        {"encoder": PART, "decoder": PART, "train": {"ctc": 0.3, "bag": 0.1}},
    ),
    "pyramid": ({"kind": "translate"}, {"encoder": PYRAMID, "decoder": PART}),
    "classifier": ({"kind": "classify"}, {"encoder": PART, "head": {"kind": "pooled"}}),
    "pooler": (
        {"kind": "classify"},
        {"encoder": PART, "head": {"kind": "pooled", "pool": "first", "dense": "tanh"}},
    ),
    "tagger": (
        {"kind": "tag"},
        {"encoder": {"kind": "convolution", "dim": 64}, "head": {"kind": "per_word"}},
    ),
    "numbers": (
        {"kind": "regress"},
        {"encoder": PART, "head": {"kind": "pooled"}, "output": {"kind": "mixture"}},
    ),
    "sound": (
        {"kind": "translate", "columns": {"x": {"kind": "sound", "stride": 4}}},
        {"encoder": PART, "decoder": PART, "data": {"source": ["x"]}},
    ),
    "picture": (
        {"kind": "classify", "columns": {"x": {"kind": "picture", "height": 32, "width": 48}}},
        {"encoder": {"kind": "none", "dim": 64}, "head": {"kind": "pooled"},
         "data": {"source": ["x"]}},
    ),
    "patches": (
        {"kind": "classify", "columns": {
            "x": {"kind": "picture", "height": 32, "width": 48, "cell": 8, "stem": "patches"}}},
        {"encoder": PART, "head": {"kind": "pooled"}, "data": {"source": ["x"]}},
    ),
}  # fmt: skip


def full(ids: torch.Tensor) -> Padded:
    return Padded(ids, torch.full((len(ids),), ids.size(1)))


def text(positions: int) -> Padded:
    return full(torch.randint(5, VOCAB, (B, positions)))


def wide(table: dict[str, Any], dropout: float) -> dict[str, Any]:
    """The same part, wide enough for what is kept of weights and steps to be small."""
    return table | {"dim": 64, "dropout": dropout}


def translation(encoder: str, decoder: str, dropout: float = 0.0) -> tuple[Network, Batch]:
    tables = {"encoder": wide(ENCODERS[encoder], dropout)}
    tables["decoder"] = wide(DECODERS[decoder], dropout)
    config = c.parse({"task": {"kind": "translate"}, "data": {"max_len": 40}, **tables}, "test")
    return build(config, [IDS], IDS, seed=1).train(), Batch((text(S),), text(T + 1))


def language_model(decoder: str, dropout: float = 0.0) -> tuple[Network, Batch]:
    table = {"decoder": wide(DECODERS[decoder], dropout)}
    config = c.parse({"task": {"kind": "language", "context": T}, **table}, "test")
    return build(config, [], IDS, seed=1).train(), Batch((), text(T + 1))


def other(name: str) -> tuple[Network, Batch]:
    """One of the networks that are no translation and no language model."""
    task, tables = OTHERS[name]
    config = c.parse({"task": task, "data": {"max_len": 40}} | tables, "test")
    source, batch = IDS, text(S)
    for reader in config.task.own.values():
        assert isinstance(reader, c.Picture | c.Sound)
        if isinstance(reader, c.Picture):
            cells, size = reader.grid[0] * reader.grid[1], 3 * reader.cell**2
            source = c.Vectors(reader, size)
            batch = full(torch.randint(0, 256, (B, cells, size)).to(torch.uint8))
        else:
            source, batch = c.Vectors(reader, 10), full(torch.randn(B, S, 10))
    target, said = IDS, text(T + 1)
    if config.task.kind == "classify":
        target, said = Inventory(5), full(torch.randint(5, (B, 1)))
    if config.task.kind == "tag":
        target, said = Inventory(5), full(torch.randint(5, (B, S)))
        batch = Padded(batch.values, batch.lengths, torch.arange(S).expand(B, -1))
    if config.task.kind == "regress":
        target, said = c.Reals(3), full(torch.randn(B, 1, 3))
    if config.task.kind == "pretrain" and config.head is not None:
        ids = torch.randint(5, VOCAB, (B, S))
        ids[torch.rand(B, S) > 0.4] = UNSCORED_ID
        ids[:, 0] = 1  # the label of a pair, where there are pairs
        said = full(ids)
    return build(config, [source], target, seed=1).train(), Batch((batch,), said)
