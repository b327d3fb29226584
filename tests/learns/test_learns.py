"""Every architecture learns copy, reverse and first-token, in seconds."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import saccade

LETTERS = "abcdef"
TASKS = {"copy": lambda w: w, "reverse": lambda w: w[::-1], "first": lambda w: w[0]}
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
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "elman": (LSTM | {"cell": "elman"}, LSTM | {"cell": "elman", "attention": "general"}),
    "elman_relu": (
        LSTM | {"cell": "elman_relu"},
        LSTM | {"cell": "elman_relu", "attention": "general"},
    ),
    "gru": (LSTM | {"cell": "gru"}, ATTENTIVE | {"cell": "gru"}),
    "lstm without attention": (LSTM, LSTM | {"attention": "off"}),
    "gru without attention": (LSTM | {"cell": "gru"}, LSTM | {"cell": "gru", "attention": "off"}),
    "lstm, context in the cell": (LSTM, ATTENTIVE),
    "lstm, context at the output": (LSTM, LUONG),
    "lstm, dot": (LSTM, LUONG | {"attention": "dot"}),
    "lstm, scaled dot": (LSTM, ATTENTIVE | {"attention": "scaled_dot"}),
    "lstm, parameter-free": (LSTM, ATTENTIVE | {"attention": "parameter_free"}),
    "lstm, concat": (LSTM, ATTENTIVE | {"attention": "concat"}),
    "transformer": (TRANSFORMER, TRANSFORMER),
    "transformer, post-norm": (
        TRANSFORMER | {"norm_first": False},
        TRANSFORMER | {"norm_first": False},
    ),
    "transformer, rotary": (
        TRANSFORMER | {"positions": "rotary", "activation": "swiglu", "norm": "rms"},
        TRANSFORMER | {"positions": "rotary", "activation": "swiglu", "norm": "rms"},
    ),
    "transformer, learned": (
        TRANSFORMER | {"positions": "learned", "activation": "gelu"},
        TRANSFORMER | {"positions": "learned", "activation": "gelu"},
    ),
    "convolution": (CONVOLUTION, TRANSFORMER),
    "convolution and lstm": (CONVOLUTION, ATTENTIVE),
    "transformer and lstm": (TRANSFORMER, LUONG),
    "lstm and transformer": (LSTM, TRANSFORMER),
}


def words(count: int) -> list[str]:
    numbers = random.Random(1)
    return ["".join(numbers.choices(LETTERS, k=numbers.randint(1, 5))) for _ in range(count)]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("what", TASKS)
def test_every_architecture_learns(name: str, what: str, tmp_path: Path) -> None:
    encoder, decoder = NETWORKS[name]
    made = dict.fromkeys(words(3000))
    (tmp_path / "words.tsv").write_text(
        "".join(f"{word}\t{TASKS[what](word)}\n" for word in made), encoding="utf-8"
    )
    run = saccade.train(
        tmp_path / "words.tsv",
        out=tmp_path / "run",
        task="translate",
        quiet=True,
        settings={
            "task.source.kind": "char",
            "task.target.kind": "char",
            "task.metric": "sequence_error",
            "encoder": encoder,
            "decoder": decoder,
            "train.steps": 400,
            "train.rate": 3e-3,
            "train.batch_tokens": 1500,
            "train.evaluate_every": 400,
            "train.label_smoothing": 0.0,
            "train.average": 0.0,
        },
    )
    torch.set_num_threads(1)
    assert run.evaluate()["sequence_error"] <= 1.0
