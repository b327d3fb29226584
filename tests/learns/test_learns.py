"""Every architecture learns copy, reverse and first-token in seconds, for words it never saw.

One of each kind does so at every change; those that differ only in a score, in positions or in a
pair that the laws hold for anyway, in the slow tier.
"""

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import saccade

LETTERS = "abcdef"
LENGTHS = {1: 0, 2: 10, 3: 40, 4: 50}  # how many words of each length are held out, of 1554
TASKS = {"C": lambda w: w, "R": lambda w: w[::-1], "F": lambda w: w[0]}  # the mark says which
LSTM = {"kind": "recurrent", "cell": "lstm", "dim": 64, "dropout": 0.0}
TRANSFORMER = {
    "kind": "transformer",
    "dim": 64,
    "num_heads": 4,
    "ff_dim": 128,
    "num_layers": 2,
    "dropout": 0.0,
}
CONVOLUTION = {"kind": "convolution", "dim": 64, "num_layers": 3, "dropout": 0.0}
ATTENTIVE = LSTM | {"attention": "additive", "context": "cell"}
LUONG = LSTM | {"attention": "general", "context": "output"}
POST = TRANSFORMER | {"norm_first": False}
ROTARY = TRANSFORMER | {"positions": "rotary", "activation": "swiglu", "norm": "rms"}
LEARNED = TRANSFORMER | {"positions": "learned", "activation": "gelu"}
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "elman": (LSTM | {"cell": "elman"}, LUONG | {"cell": "elman"}),
    "elman_relu": (LSTM | {"cell": "elman_relu"}, ATTENTIVE | {"cell": "elman_relu"}),
    "gru": (LSTM | {"cell": "gru"}, ATTENTIVE | {"cell": "gru"}),
    "elman without attention": (
        LSTM | {"cell": "elman"},
        LSTM | {"cell": "elman", "attention": "off", "context": "cell"},
    ),
    "lstm without attention": (LSTM, LSTM | {"attention": "off", "context": "cell"}),
    "gru without attention": (
        LSTM | {"cell": "gru"},
        LSTM | {"cell": "gru", "attention": "off", "context": "cell"},
    ),
    "lstm, additive into the cell": (LSTM, ATTENTIVE),
    "lstm, general into the output": (LSTM, LUONG),
    "lstm, dot": (LSTM, LUONG | {"attention": "dot"}),
    "lstm, scaled dot": (LSTM, LUONG | {"attention": "scaled_dot"}),
    "lstm, parameter-free": (LSTM, ATTENTIVE | {"attention": "parameter_free"}),
    "lstm, concat": (LSTM, ATTENTIVE | {"attention": "concat"}),
    "lstm, edits": (LSTM, LSTM | {"kind": "edit"}),
    "transformer": (TRANSFORMER, TRANSFORMER),
    "transformer, post-norm": (POST, POST),
    "transformer, rotary": (ROTARY, ROTARY),
    "transformer, learned": (LEARNED, LEARNED),
    "convolution and transformer": (CONVOLUTION, TRANSFORMER),
    "convolution and lstm": (CONVOLUTION, ATTENTIVE),
    "transformer and lstm": (TRANSFORMER, LUONG),
    "lstm and transformer": (LSTM, TRANSFORMER),
}


ALWAYS = {
    "elman", "gru", "lstm without attention", "lstm, additive into the cell",
    "lstm, general into the output", "lstm, edits", "transformer", "transformer, rotary",
    "convolution and transformer", "transformer and lstm",
}  # fmt: skip


STEPS = {
    "elman without attention": 2000, "lstm without attention": 900, "gru without attention": 900,
    "transformer, post-norm": 900, "transformer, learned": 900, "lstm, scaled dot": 1000,
}  # fmt: skip


def held_out() -> frozenset[str]:
    numbers, found = random.Random(2), set[str]()
    for length, count in LENGTHS.items():
        found |= set(numbers.sample(["".join(w) for w in product(LETTERS, repeat=length)], count))
    return frozenset(found)


HELD_OUT = held_out()


def words(count: int, seed: int) -> list[str]:
    """Words to be trained on, the longer the more often: none of those that are held out."""
    numbers, found = random.Random(seed), []
    while len(found) < count:
        (length,) = numbers.choices(list(LENGTHS), weights=list(LENGTHS))
        word = "".join(numbers.choices(LETTERS, k=length))
        found += [] if word in HELD_OUT else [word]
    return found


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("".join(rows), encoding="utf-8")
    return path


def assert_unseen(train: list[str], dev: list[str]) -> None:
    """No source of the one is among those of the other, whatever is done with it."""
    seen, new = ({row.partition("\t")[0].strip("CRF ") for row in rows} for rows in (train, dev))
    assert len(new) == len(HELD_OUT)
    assert not seen & new


@pytest.mark.parametrize(
    "name",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS],
)
def test_every_architecture_learns_copy_reverse_and_first(name: str, tmp_path: Path) -> None:
    """One network learns all three from marked examples, and is measured on each."""
    encoder, decoder = NETWORKS[name]
    rows = [f"{mark}{w}\t{rule(w)}\n" for w in words(4000, seed=1) for mark, rule in TASKS.items()]
    marked = [(f"{mark}{w}", rule(w)) for mark, rule in TASKS.items() for w in sorted(HELD_OUT)]
    dev = [f"{source}\t{target}\n" for source, target in marked]
    assert_unseen(rows, dev)
    run = saccade.train(
        write(tmp_path / "train.tsv", rows),
        dev=write(tmp_path / "dev.tsv", dev),
        out=tmp_path / "run",
        task="translate",
        quiet=True,
        settings={
            "task": {
                "source": {"kind": "char"},
                "target": {"kind": "char"},
                "metric": "sequence_error",
            },
            "encoder": encoder,
            "decoder": decoder,
            "train.steps": STEPS.get(name, 600),
            "train.rate": 5e-3,
            "train.batch_tokens": 480,
            "train.evaluate_every": 300,
            "train.label_smoothing": 0.0,
            "train.average": 0.95,
        },
    )
    right = [
        found.text == target
        for found, (_, target) in zip(run.predict(s for s, _ in marked), marked, strict=True)
    ]
    for i, mark in enumerate(TASKS):
        some = right[i * len(HELD_OUT) : (i + 1) * len(HELD_OUT)]
        assert sum(some) >= 0.99 * len(some), mark


QUICK = {
    "train.steps": 600,
    "train.rate": 4e-3,
    "train.batch_tokens": 600,
    "train.evaluate_every": 300,
    "train.average": 0.95,
}


@pytest.mark.parametrize(
    ("decoder", "steps", "rate"),
    [
        pytest.param(LSTM | {"dim": 96}, 1300, 6e-3, id="lstm"),
        pytest.param(ROTARY, 1500, 3e-3, id="transformer, rotary", marks=pytest.mark.slow),
    ],
)
def test_language_models_learn_copy_reverse_and_first(
    decoder: dict[str, Any], steps: int, rate: float, tmp_path: Path
) -> None:
    """A line is a mark, a word, a sign and the answer: to go on from the sign is to know it."""
    lines = [f"{mark}{w}>{rule(w)}\n" for w in words(4000, seed=1) for mark, rule in TASKS.items()]
    random.Random(3).shuffle(lines)
    assert_unseen([line.partition(">")[0] for line in lines], sorted(HELD_OUT))
    run = saccade.train(
        write(tmp_path / "text.txt", lines),
        out=tmp_path / "run",
        task="language",
        quiet=True,
        settings=QUICK
        | {"task": {"tokenizer": {"kind": "char"}, "context": 48}, "decoder": decoder}
        | {"train.steps": steps, "train.batch_tokens": 1024, "train.rate": rate},
    )
    for mark, rule in TASKS.items():
        asked = [f"{mark}{w}>" for w in sorted(HELD_OUT)]
        found = run.predict(asked, width=1)
        right = [one.text == f"{s}{rule(s[1:-1])}" for s, one in zip(asked, found, strict=True)]
        assert sum(right) >= 0.99 * len(right), mark


@pytest.mark.parametrize("pool", ["last", "mean", "max", "attention"])
def test_classifiers_learn_the_first_token(pool: str, tmp_path: Path) -> None:
    train, dev = ([f"{w}\t{w[0]}\n" for w in some] for some in (words(3000, seed=1), HELD_OUT))
    assert_unseen(train, dev)
    run = saccade.train(
        write(tmp_path / "train.tsv", train),
        dev=write(tmp_path / "dev.tsv", dev),
        out=tmp_path / "run",
        task="classify",
        quiet=True,
        settings=QUICK
        | {"task": {"tokenizer": {"kind": "char"}}, "head.pool": pool}
        | {"encoder": LSTM if pool == "last" else TRANSFORMER, "train.steps": 300},
    )
    assert run.evaluate()["accuracy"] >= 99


@pytest.mark.parametrize("encoder", [LSTM, TRANSFORMER], ids=["lstm", "transformer"])
def test_taggers_learn_copy_reverse_and_first(encoder: dict[str, Any], tmp_path: Path) -> None:
    """The mark is a word, too, and its own tag."""

    def row(mark: str, w: str) -> str:
        tags = (TASKS[mark](w) * len(w))[: len(w)]
        return f"{' '.join(mark + w)}\t{' '.join(mark + tags)}\n"

    train = [row(mark, w) for w in words(6000, seed=1) for mark in TASKS]
    dev = [row(mark, w) for w in sorted(HELD_OUT) for mark in TASKS]
    assert_unseen(train, dev)
    run = saccade.train(
        write(tmp_path / "train.tsv", train),
        dev=write(tmp_path / "dev.tsv", dev),
        out=tmp_path / "run",
        task="tag",
        quiet=True,
        settings=QUICK
        | {"encoder": encoder, "head.dropout": 0.0, "train.word_dropout": 0.0}
        | {"train.steps": 800, "train.rate": 8e-3 if encoder is LSTM else 4e-3},
    )
    assert run.evaluate()["accuracy"] >= 99
