"""A label that is not scored is invisible: in the loss, in the gradient, in metrics and scores."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from saccade.config import parse
from saccade.data.batches import Batch
from saccade.errors import CheckpointError
from saccade.models.build import build
from saccade.models.networks import Tagger
from saccade.nn.padded import UNSCORED_ID, Padded, pad
from saccade.runs import files
from saccade.runs.run import Run, load
from saccade.setup.choose import fill_config, gather
from saccade.setup.prepare import reopen
from saccade.text.vocab import Inventory
from tests.architectures import ENCODERS, IDS, VOCAB
from tests.helpers import run_through, same_weights

BODIES = ("lstm", "transformer", "convolution")
LABELS = 4


def tagger(body: str, smoothing: float = 0.0) -> Tagger:
    raw = {"task": {"kind": "tag"}, "encoder": ENCODERS[body], "data": {"max_len": 40}}
    raw |= {"head": {"kind": "per_word", "dropout": 0.0}, "train": {"label_smoothing": smoothing}}
    torch.manual_seed(0)
    net = build(parse(raw, "test"), [IDS], Inventory(LABELS, ()), seed=3)
    assert isinstance(net, Tagger)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net


def masked_batch() -> Batch:
    """Rows of 7, 3 and 5 words; of some the label is not scored, of the second row all are not."""
    numbers = torch.Generator().manual_seed(1)
    lengths = (7, 3, 5)
    source = pad([torch.randint(5, VOCAB, (n,), generator=numbers).tolist() for n in lengths])
    gold = torch.randint(0, LABELS, (3, 7), generator=numbers)
    gold[0, 2:4] = gold[1] = gold[2, 0] = UNSCORED_ID
    words = torch.arange(7).where(torch.arange(7) < source.lengths[:, None], -1)
    return Batch((Padded(source.values, source.lengths, words),), Padded(gold, source.lengths))


def alone(batch: Batch, b: int) -> Batch:
    """One row without its padding."""
    (source,), target = batch.sources, batch.target
    n = int(target.lengths[b])
    assert source.words is not None
    lengths = target.lengths[b : b + 1]
    own = Padded(source.values[b : b + 1, :n], lengths, source.words[b : b + 1, :n])
    return Batch((own,), Padded(target.values[b : b + 1, :n], lengths))


def gradient(net: Tagger, total: torch.Tensor) -> dict[str, torch.Tensor]:
    net.zero_grad(set_to_none=True)
    total.backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("body", BODIES)
def test_loss_and_gradient_are_those_of_the_scored_positions(body: str, smoothing: float) -> None:
    net, batch = tagger(body, smoothing), masked_batch()
    loss, _ = net(batch)
    places = [(0, t) for t in (0, 1, 4, 5, 6)] + [(2, t) for t in (1, 2, 3, 4)]
    rows, columns = (list(each) for each in zip(*places, strict=True))
    logits, gold = net.logits(batch.sources)[rows, columns], batch.target.values[rows, columns]
    by_hand = F.cross_entropy(logits, gold, reduction="sum", label_smoothing=smoothing)
    assert loss.count == len(places)
    assert torch.allclose(loss.sum, by_hand, atol=1e-5)
    assert torch.allclose(loss.nll, F.cross_entropy(logits, gold, reduction="sum"), atol=1e-5)
    found, right = gradient(net, loss.sum), gradient(net, by_hand)
    assert found.keys() == right.keys()
    assert all(torch.allclose(found[name], right[name], atol=1e-5) for name in right)


@pytest.mark.parametrize("body", BODIES)
def test_a_masked_batch_is_its_rows(body: str) -> None:
    net, batch = tagger(body).eval(), masked_batch()
    whole, _ = net(batch)
    parts = [net(alone(batch, b))[0] for b in range(3)]
    assert [part.count for part in parts] == [5, 0, 4]
    assert whole.count == 9
    assert torch.allclose(sum(part.sum for part in parts), whole.sum, atol=1e-5)
    assert not parts[1].nll.any()
    assert not any(grad.any() for grad in gradient(net, parts[1].sum).values())


# --- from the file to the metric ------------------------------------------------------------------

WORDS = ["".join(random.Random(i).choices("abcd", k=3 + i % 7)) for i in range(80)]
MASKS = ["".join(random.Random(-i).choices("011", k=len(word))) for i, word in enumerate(WORDS, 1)]


def hidden(other: Callable[[str], str]) -> list[tuple[str, str, str]]:
    """Rows of characters, labels and a mask, with other labels where the mask is 0."""
    rows = []
    for word, mask in zip(WORDS, MASKS, strict=True):
        labels = (c.upper() if m == "1" else other(c) for c, m in zip(word, mask, strict=True))
        rows.append((word, "".join(labels), mask))
    return rows


def as_mask(folder: Path, other: str = "A") -> tuple[Path, dict[str, Any]]:
    lines = ["\t".join(row) for row in hidden(lambda _: other)]
    path = folder / "mask.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path, {}


def as_label(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "ignore.tsv"
    path.write_text("".join(f"{word}\t{tags}\n" for word, tags, _ in hidden(lambda _: "?")))
    return path, {"ignore": "?"}


def as_null(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "null.jsonl"
    with path.open("w") as file:
        for word, tags, _ in hidden(lambda _: "?"):
            labels = [None if tag == "?" else tag for tag in tags]
            file.write(json.dumps({"tokens": list(word), "tags": labels}) + "\n")
    return path, {}


def as_columns(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "words.conll"
    rows = hidden(lambda _: "D")
    blocks = ["".join(map("{}\t{}\t{}\n".format, *row)) for row in rows]
    path.write_text("\n".join(blocks) + "\n")
    return path, {"source": [1], "target": 2, "mask": 3}


def trained(made: tuple[Path, dict[str, Any]], folder: Path) -> Run:
    path, data = made
    raw, where = gather(path, task="tag")
    raw["data"] |= data
    raw["task"]["tokenizer"] = {"kind": "word", "size": 100}
    raw["encoder"] = {"kind": "recurrent", "dim": 8, "num_layers": 1}
    raw["train"] = {"steps": 6, "evaluate_every": 3, "batch_tokens": 100, "processes": 1}
    raw["train"] |= {"word_dropout": 0.1}
    config, _ = fill_config(raw, where)
    run_through(config, folder)
    return load(folder)


def test_what_stands_under_a_mask_changes_nothing(tmp_path: Path) -> None:
    one = trained(as_mask(tmp_path, "A"), tmp_path / "one")
    other = trained(as_mask(tmp_path, "D"), tmp_path / "other")
    assert same_weights(one.folder, other.folder)
    path, _ = as_mask(tmp_path, "B")
    assert one.evaluate() == other.evaluate()
    with_b, scores = one.evaluate(path), list(one.score(path))
    path, _ = as_mask(tmp_path, "C")
    assert one.evaluate(path) == with_b
    assert list(one.score(path)) == scores
    assert sum(count for _, count in scores) == "".join(MASKS).count("1")


@pytest.mark.parametrize("say", [as_label, as_null, as_columns])
def test_a_mask_an_ignored_label_and_null_are_one_mechanism(
    say: Callable[[Path], tuple[Path, dict[str, Any]]], tmp_path: Path
) -> None:
    one = trained(as_mask(tmp_path), tmp_path / "one")
    other = trained(say(tmp_path), tmp_path / "other")
    assert same_weights(one.folder, other.folder)
    assert one.evaluate() == other.evaluate()


def test_a_prediction_has_a_label_for_every_position(tmp_path: Path) -> None:
    run = trained(as_mask(tmp_path), tmp_path / "run")
    assert set(run.task.labels.labels) == set("ABCD")  # type: ignore[attr-defined]
    found = run.predict(WORDS)
    assert [len(one.text) for one in found] == list(map(len, WORDS))


def test_the_corpus_of_a_run_keeps_the_mask(tmp_path: Path) -> None:
    run = trained(as_mask(tmp_path), tmp_path / "run")
    corpus = reopen(run.config, run.folder).train
    assert corpus.target.ids.min() == UNSCORED_ID
    assert corpus.sources[0].ids.min() >= 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(("column", "number"), [("source", -1), ("target", -2)])
def test_no_other_id_is_below_all(column: str, number: int, tmp_path: Path) -> None:
    run = trained(as_mask(tmp_path), tmp_path / "run")
    assert run.evaluate()["loss"] > 0
    (run.folder / "data" / files.MANIFEST).unlink()
    (path,) = (run.folder / "data").glob(f"dev.{column}*.ids")
    ids = np.fromfile(path, np.int32)
    ids[0] = number
    ids.tofile(path)
    with pytest.raises(CheckpointError, match="does not fit this run"):
        run.evaluate()


def test_accuracy_is_that_of_the_scored_labels(tmp_path: Path) -> None:
    made = as_mask(tmp_path)
    run = trained(made, tmp_path / "run")
    right = [
        guess == letter.upper()
        for word, mask, found in zip(WORDS, MASKS, run.predict(WORDS), strict=True)
        for letter, mark, guess in zip(word, mask, found.text, strict=True)
        if mark == "1"
    ]
    share = 100 * sum(right) / len(right)
    assert run.evaluate(made[0])["accuracy"] == pytest.approx(share)
