"""The six workloads of the training benchmark: their files, configurations, batches and FLOPs.

Sizes are those of published small models; words are random, so that nothing depends on a corpus.
The files are read by `saccade train`'s own loop. The peers get the batches that our loader makes of
them, in the order of our first epoch, as one safetensors file a seed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["transformer", "lstm", "g2p", "gpt", "lstm_lm"]
PAD, SPECIALS = 0, 5  # the id of padding, and how many ids stand for no word


@dataclass(frozen=True)
class Workload:
    """A network and what it is trained on; vocabularies count special tokens."""

    kind: Kind
    dim: int
    num_layers: int
    vocab: int
    dropout: float
    ff_dim: int = 0
    num_heads: int = 0
    source_vocab: int = 0  # of letters; else words, the same on both sides
    context: int = 0  # tokens in a row of a language model
    rows: int = 0  # ... and rows in its batch
    batch_tokens: int = 0  # of source and target together

    @property
    def streams(self) -> bool:
        """Whether it is a language model, which reads one long text."""
        return self.context > 0


WORKLOADS = {
    "tiny": Workload(
        "transformer", 128, 4, 10_000, 0.1, ff_dim=256, num_heads=4, batch_tokens=2 * 4096
    ),
    "small": Workload(
        "transformer", 256, 3, 10_000, 0.1, ff_dim=1024, num_heads=4, batch_tokens=2 * 4096
    ),
    "lstm": Workload("lstm", 256, 1, 10_000, 0.1, batch_tokens=2 * 4096),
    "gpt": Workload("gpt", 256, 4, 100, 0.1, ff_dim=1024, num_heads=4, context=256, rows=32),
    "lstm_lm": Workload("lstm_lm", 200, 2, 10_000, 0.2, context=35, rows=20),
    "g2p": Workload("g2p", 192, 2, 44, 0.1, source_vocab=32, batch_tokens=4096),
}


# --- the files ------------------------------------------------------------------------------------


def write_files(name: str, folder: Path) -> None:
    """train and dev of a workload, as a user would have them."""
    work, numbers = WORKLOADS[name], random.Random(1)
    lines = text_lines(work, numbers) if work.streams else pair_lines(work, numbers)
    for path, some in zip(files(name, folder), (lines[:-50], lines[-50:]), strict=True):
        path.write_text("\n".join(some) + "\n", encoding="utf-8")


def files(name: str, folder: Path) -> tuple[Path, Path]:
    """Where train and dev are."""
    ending = "txt" if WORKLOADS[name].streams else "tsv"
    return folder / f"train.{ending}", folder / f"dev.{ending}"


def pair_lines(work: Workload, numbers: random.Random) -> list[str]:
    if work.kind == "g2p":  # a word of letters, and its phones
        letters, phones = work.source_vocab - SPECIALS, work.vocab - SPECIALS
        found = []
        for length in lengths(numbers, 20_000, 3, 20, 8):
            word = "".join(chr(ord("a") + numbers.randrange(letters)) for _ in range(length))
            said = max(1, length - numbers.randrange(3))
            found.append(f"{word}\t{' '.join(words(numbers, said, phones))}")
        return found
    rows = [words(numbers, n, work.vocab - SPECIALS) for n in lengths(numbers, 10_000, 4, 40, 14)]
    return [f"{' '.join(row)}\t{' '.join(reversed(row))}" for row in rows]


def text_lines(work: Workload, numbers: random.Random) -> list[str]:
    """Lines of 99 tokens and their end."""
    size = work.vocab - SPECIALS
    if work.kind == "gpt":  # letters of its own, as no layout gives them a meaning
        alphabet = [chr(0x100 + i) for i in range(size)]
        return ["".join(numbers.choices(alphabet, k=99)) for _ in range(6_000)]
    return [" ".join(words(numbers, 99, size)) for _ in range(3_000)]


def words(numbers: random.Random, count: int, size: int) -> list[str]:
    return [f"w{numbers.randrange(size)}" for _ in range(count)]


def lengths(numbers: random.Random, count: int, low: int, high: int, mean: float) -> list[int]:
    skew = (high - low) / (mean - low) - 1
    return [round(low + (high - low) * numbers.random() ** skew) for _ in range(count)]


# --- ours -----------------------------------------------------------------------------------------


def settings(name: str, folder: Path, seed: int) -> dict[str, Any]:
    """The configuration of a workload, as `saccade train` reads it from a TOML file."""
    work = WORKLOADS[name]
    train, dev = files(name, folder)
    plain = {"kind": "word", "size": work.vocab}
    task: dict[str, Any] = {"kind": "translate", "source": plain, "target": plain}
    recurrent = {"kind": "recurrent", "cell": "lstm", "dim": work.dim, "dropout": work.dropout}
    parts: dict[str, Any]
    more: dict[str, Any]
    match work.kind:
        case "transformer":
            parts = {"encoder": _transformer(work), "decoder": _transformer(work)}
            task["joint"] = True
        case "lstm":
            parts = {"encoder": recurrent, "decoder": recurrent | {"attention": "additive"}}
        case "g2p":
            task["source"] = {"kind": "char", "size": work.source_vocab}
            parts = {
                "encoder": recurrent | {"num_layers": work.num_layers},
                "decoder": recurrent | {"attention": "dot", "context": "output"},
            }
        case "gpt":
            more = {"activation": "gelu", "positions": "learned"}
            parts = {"decoder": _transformer(work) | more}
            task = {"kind": "language", "tokenizer": {"kind": "char", "size": work.vocab}}
        case "lstm_lm":
            more = {"num_layers": work.num_layers, "attention": "off", "tied": False}
            parts = {"decoder": recurrent | more}
            task = {"kind": "language", "tokenizer": plain}
    if work.streams:
        task["context"] = work.context
    never = 1 << 40
    return {
        "seed": seed,
        "data": {
            "train": [str(train)],
            "dev": [str(dev)],
            "format": "text" if work.streams else "tsv",
        },
        "task": task,
        **parts,
        "train": {
            "steps": 1_000_000,  # long enough for whatever is tried before a long run
            "batch_tokens": work.batch_tokens or work.rows * work.context,
            "evaluate_every": never,
            "save_every": never,
            "preflight": "off",  # an evaluation and a checkpoint: no part of a step
        },
    }


def _transformer(work: Workload) -> dict[str, Any]:
    names = ("dim", "num_layers", "num_heads", "ff_dim", "dropout")
    return {"kind": "transformer"} | {name: getattr(work, name) for name in names}


def save_batches(name: str, folder: Path, seeds: Sequence[int]) -> float:
    """Leave our loader's first epoch for the peers, by seed; returns the FLOPs a target token."""
    from safetensors.torch import save_file

    from saccade.setup.choose import survey_and_fill
    from saccade.setup.prepare import prepare

    config, _, seen = survey_and_fill(settings(name, folder, seeds[0]), "benchmark")
    run = folder / "prepared"
    run.mkdir()
    ready = prepare(config, run, seen)
    found = []
    for seed in seeds:
        ready.task.config = config.model_copy(update={"seed": seed})
        tensors = {}
        for i, batch in enumerate(ready.task.epoch(ready.train, 0)):
            tensors[f"{i}.target"] = batch.target.values
            tensors[f"{i}.target_lengths"] = batch.target.lengths
            for source in batch.sources:
                tensors[f"{i}.source"] = source.values
                tensors[f"{i}.source_lengths"] = source.lengths
        save_file(tensors, batches_file(folder, seed))
        found.append(flops(WORKLOADS[name], tensors))
    return sum(found) / len(found)


def batches_file(folder: Path, seed: int) -> Path:
    return folder / f"batches-{seed}.safetensors"


# --- FLOPs ----------------------------------------------------------------------------------------


def flops(work: Workload, batches: dict[str, Any]) -> float:
    """The floating-point operations that a target token needs, forward and backward.

    Counted are the products of real positions: two operations for a weight and a position, four
    for a query, a key and a dimension of attention. The backward pass takes twice the forward pass.
    """
    names = [name for name in batches if name.endswith(".target_lengths")]
    target = [n - 1 for name in names for n in batches[name].tolist()]
    rows = [batches.get(name.replace("target", "source")) for name in names]
    source = [n for row in rows if row is not None for n in row.tolist()]
    read, said = sum(source), sum(target)  # positions
    own = sum(n * n for n in source)
    causal = sum(n * n for n in target) / 2
    cross = sum(a * b for a, b in zip(source, target, strict=False))
    dim, layers, ff = work.dim, work.num_layers, work.ff_dim
    output = said * dim * work.vocab
    match work.kind:
        case "transformer":  # keys and values of the source are made once for each decoder layer
            encoder = read * (4 * dim * dim + 2 * dim * ff)
            decoder = said * (6 * dim * dim + 2 * dim * ff) + read * 2 * dim * dim
            products = layers * (encoder + decoder) + output
            pairs = layers * (own + causal + cross)
        case "gpt":
            products = layers * said * (4 * dim * dim + 2 * dim * ff) + output
            pairs = layers * causal
        case "lstm":  # two directions of half the width; the cell reads a word and a context
            encoder = read * 4 * dim * (dim + dim // 2)
            decoder = said * (12 * dim * dim + dim * dim + 3 * dim * dim) + read * dim * dim
            products, pairs = encoder + decoder + output, cross
        case "g2p":
            encoder = layers * read * 4 * dim * (dim + dim // 2)
            products, pairs = encoder + said * (8 * dim * dim + 2 * dim * dim) + output, cross
        case "lstm_lm":
            products, pairs = layers * said * 8 * dim * dim + output, 0
    return 3 * (2 * products + 4 * dim * pairs) / said
