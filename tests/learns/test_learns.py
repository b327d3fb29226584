"""Every architecture learns copy, reverse and first-token, in seconds.

One of each kind does so at every change; those that differ only in a score, in positions or in a
pair that the laws hold for anyway, in the slow tier.
"""

import random
from pathlib import Path
from typing import Any

import pytest

import saccade

LETTERS = "abcd"
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
    "lstm, general into the output", "transformer", "transformer, rotary",
    "convolution and transformer", "transformer and lstm",
}  # fmt: skip


SLOWER = {
    "elman without attention", "lstm without attention", "gru without attention",
    "transformer, post-norm", "transformer, learned",
}  # fmt: skip


def words(count: int, seed: int) -> list[str]:
    numbers = random.Random(seed)
    return ["".join(numbers.choices(LETTERS, k=numbers.randint(1, 4))) for _ in range(count)]


@pytest.mark.parametrize(
    "name",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS],
)
def test_every_architecture_learns_copy_reverse_and_first(name: str, tmp_path: Path) -> None:
    """One network learns all three from marked examples, and is measured on each."""
    encoder, decoder = NETWORKS[name]
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    rows = [f"{mark}{w}\t{rule(w)}\n" for w in words(4000, seed=1) for mark, rule in TASKS.items()]
    train.write_text("".join(rows), encoding="utf-8")
    held_out = list(dict.fromkeys(words(250, seed=2)))
    marked = [(f"{mark}{w}", rule(w)) for mark, rule in TASKS.items() for w in held_out]
    dev.write_text("".join(f"{source}\t{target}\n" for source, target in marked), encoding="utf-8")
    run = saccade.train(
        train,
        dev=dev,
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
            "train.steps": 900 if name in SLOWER else 600,
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
        some = right[i * len(held_out) : (i + 1) * len(held_out)]
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
    text = tmp_path / "text.txt"
    lines = [f"{mark}{w}>{rule(w)}\n" for w in words(4000, seed=1) for mark, rule in TASKS.items()]
    random.Random(3).shuffle(lines)
    text.write_text("".join(lines), encoding="utf-8")
    run = saccade.train(
        text,
        out=tmp_path / "run",
        task="language",
        quiet=True,
        settings=QUICK
        | {"task": {"tokenizer": {"kind": "char"}, "context": 48}, "decoder": decoder}
        | {"train.steps": steps, "train.batch_tokens": 1024, "train.rate": rate},
    )
    for mark, rule in TASKS.items():
        held_out = [f"{mark}{w}>" for w in dict.fromkeys(words(300, seed=2))]
        found = run.predict(held_out, width=1)
        right = [one.text == f"{s}{rule(s[1:-1])}" for s, one in zip(held_out, found, strict=True)]
        assert sum(right) >= 0.99 * len(right), mark


@pytest.mark.parametrize("pool", ["last", "mean", "max", "attention"])
def test_classifiers_learn_the_first_token(pool: str, tmp_path: Path) -> None:
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    for path, count, seed in ((train, 3000, 1), (dev, 300, 2)):
        path.write_text("".join(f"{w}\t{w[0]}\n" for w in words(count, seed)), encoding="utf-8")
    run = saccade.train(
        train,
        dev=dev,
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

    def rows(count: int, seed: int) -> str:
        found = []
        for i, w in enumerate(words(count, seed)):
            mark, rule = list(TASKS.items())[i % 3]
            found.append(f"{' '.join(mark + w)}\t{' '.join(mark + (rule(w) * len(w))[: len(w)])}\n")
        return "".join(found)

    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    train.write_text(rows(6000, seed=1), encoding="utf-8")
    dev.write_text(rows(600, seed=2), encoding="utf-8")
    run = saccade.train(
        train,
        dev=dev,
        out=tmp_path / "run",
        task="tag",
        quiet=True,
        settings=QUICK | {"encoder": encoder, "train.steps": 1000},
    )
    assert run.evaluate()["accuracy"] >= 99
