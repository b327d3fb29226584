"""Pre-training from a file to a run: stops, laws, fillings, scores, and mistakes."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import saccade
from saccade import cli
from saccade.data.lines import Example
from saccade.distributed.ranks import Ranks
from saccade.errors import ConfigError, DataError
from saccade.inspect.command import write
from saccade.inspect.view import kinds, view
from saccade.setup.choose import fill_config, gather
from saccade.setup.prepare import prepare
from saccade.tasks.pretrain import Fill
from saccade.text import Tokenizer
from saccade.training.gradients import Gradients
from saccade.training.session import resume
from saccade.verify import verify
from tests.distributed.test_ranks import Part, sums_of
from tests.helpers import GOLDEN, run_through, same_weights, until

PART = {"kind": "transformer", "dim": 16, "num_layers": 2, "num_heads": 2, "ff_dim": 32}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "masked": {"kind": "masked", "next_sentence": True, "whole_words": True},
    "unilm": {"kind": "unilm"},
    "permuted": {"kind": "permuted"},
    "spans": {"kind": "spans"},
    "denoising": {"kind": "denoising"},
    "causal": {"kind": "causal"},
}


def text(folder: Path, lines: int = 300) -> Path:
    """Lines of numbers that count: a hidden one can be known from its neighbours."""
    numbers, path = random.Random(1), folder / "text.txt"
    firsts = [(numbers.randrange(20), numbers.randint(4, 9)) for _ in range(lines)]
    rows = [" ".join(f"w{(first + i) % 20}" for i in range(n)) for first, n in firsts]
    path.write_text("\n".join(rows) + "\n")
    return path


def settings(kind: str, folder: Path, lines: int = 300, **more: Any) -> saccade.config.Config:
    raw, where = gather(text(folder, lines), task="pretrain")
    raw["task"] |= {"objective": OBJECTIVES[kind], "context": 24, "tokenizer": {"kind": "word"}}
    raw["train"] = {"steps": 8, "batch_tokens": 200, "evaluate_every": 4, "save_every": 3,
                    "processes": 1, "warmup": 10, "word_dropout": 0.1} | more  # fmt: skip
    for part in saccade.config.OBJECTIVES[kind].parts:
        if part != "head":
            raw[part] = PART | {"positions": "rotary"}
    return fill_config(raw, where)[0]


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_resuming_is_never_having_stopped_and_every_law_holds(kind: str, tmp_path: Path) -> None:
    config = settings(kind, tmp_path)
    run_through(config, tmp_path / "straight")
    run_through(config, tmp_path / "halted", stop_after=5)
    list(until(None, lambda stop: resume(tmp_path / "halted", stop)))
    assert same_weights(tmp_path / "straight", tmp_path / "halted")
    found = list(verify(tmp_path / "straight"))
    assert all(law.passed is not False for law in found), "\n".join(map(str, found))
    assert sum(law.passed is None for law in found) <= 2


def test_what_is_measured_on_never_changes_and_training_rows_do_unless_told(
    tmp_path: Path,
) -> None:
    config = settings("masked", tmp_path)
    ready = prepare(config, tmp_path)
    task = ready.task
    assert isinstance(task, Fill)
    first, again = (task.dev_rows(ready.dev.tokens)[0] for _ in range(2))
    assert (first.sources[0].values == again.sources[0].values).all()
    epochs = [task.epoch(ready.train, n) for n in range(2)]
    rows = [epoch.sample(epoch, 3) for epoch in epochs]
    assert rows[0].target.tolist() != rows[1].target.tolist()
    still = config.task.model_copy(
        update={"objective": config.task.objective.model_copy(update={"dynamic": False})}
    )
    task = Fill(config.model_copy(update={"task": still}), task.target)
    epochs = [task.epoch(ready.train, n) for n in range(2)]
    rows = [epoch.sample(epoch, 3) for epoch in epochs]
    assert rows[0].target.tolist() == rows[1].target.tolist()
    assert (epochs[0].order != epochs[1].order).any()
    assert sorted(epochs[0].order) == list(range(len(epochs[0].bounds) - 1))


def test_a_look_at_few_lines_goes_on_to_one_that_is_not_blank(tmp_path: Path) -> None:
    ready = prepare(settings("masked", tmp_path), tmp_path)
    task, network = ready.task, ready.task.build().eval()
    rows = [Example(("",), None)] * 5 + [Example(("w1 w2 w3",), None)]
    few = task.evaluate(network, task.encode(rows), rows[:1], quick=True)
    assert few == task.evaluate(network, task.encode(rows), rows, quick=False)
    with pytest.raises(DataError, match="the vocabulary has no token of this text"):
        task.evaluate(network, task.encode(rows[:5]), rows[:5], quick=False)


LEARNED = {  # steps, and what becomes better than
    "masked": (150, 70), "unilm": (150, 60), "permuted": (150, 50),
    "spans": (150, 70), "denoising": (150, 70),
}  # fmt: skip


@pytest.mark.parametrize("kind", LEARNED)
def test_every_objective_learns_to_count_and_fills_in(kind: str, tmp_path: Path) -> None:
    steps, accuracy = LEARNED[kind]
    more = {"steps": steps, "rate": 5e-3, "batch_tokens": 1024, "word_dropout": 0.0}
    config = settings(kind, tmp_path, 1500, **more, evaluate_every=steps)
    wide = {"dim": 32, "ff_dim": 64, "dropout": 0.0}
    parts = {
        part: getattr(config, part).model_copy(update=wide)
        for part in ("encoder", "decoder")
        if getattr(config, part)
    }
    run_through(config.model_copy(update=parts), tmp_path / "run")
    run = saccade.load(tmp_path / "run")
    assert run.evaluate()["accuracy"] > accuracy
    filled = run.predict("w3 w4 w5 <mask> w7 w8").text
    if kind == "spans":
        assert filled.startswith("w3 w4 w5 w")
        assert filled.endswith(" w7 w8")
    elif kind != "denoising":
        assert filled == "w3 w4 w5 w6 w7 w8"
        right, wrong = run.score([("w2 w3 w4 w5 w6",), ("w2 w9 w4 w1 w6",)])
        assert right[0] > wrong[0]
    if kind != "denoising":
        assert run.predict(["w1 w2"])[0].problem.startswith("there is nothing to fill")


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "an LSTM": (
        {"task.objective": "permuted", "encoder.kind": "recurrent"},
        "'permuted' needs an attention mask for each row: set encoder.kind = 'transformer'",
    ),
    "no such objective": ({"task.objective": "gpt"}, "unknown kind 'gpt'; choose one of masked"),
    "a short context": ({"task.context": 4}, "task.context"),
    "no mask": (
        {"task.tokenizer.mask": False},
        "needs a tokenizer that has <mask>: set task.tokenizer.mask = true",
    ),
    "few sentinels": (
        {"task.objective": "spans", "task.tokenizer.sentinels": 2},
        "set task.tokenizer.sentinels = 3, or a shorter context",
    ),
    "two widths": (
        {"task.objective": "denoising", "encoder.dim": 64},
        r"make encoder.dim \(64\) and decoder.dim \(128\) equal",
    ),
    "shares": ({"task.objective.random": 0.5}, "must not exceed 1"),
    "learned positions": (
        {"encoder.positions": "learned", "encoder.max_positions": 16},
        r"16 learned positions are fewer than task.context \(64\)",
    ),
    "another head": ({"head.kind": "pooled"}, "needs kind = 'per_token'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_is_said_with_what_to_do(name: str, tmp_path: Path) -> None:
    changes, message = MISTAKES[name]
    raw, where = gather(text(tmp_path), task="pretrain")
    for key, value in changes.items():
        saccade.config.assign(raw, key, value)
    with pytest.raises(ConfigError, match=message):
        fill_config(raw, where)


def test_a_vocabulary_without_mask_is_refused(tmp_path: Path) -> None:
    Tokenizer.train(saccade.config.Tokenizer(kind="word"), ["w1 w2"]).save(tmp_path / "v.json")
    raw, where = gather(text(tmp_path), task="pretrain")
    raw["task"]["vocabulary"] = str(tmp_path / "v.json")
    with pytest.raises(ConfigError, match=r"v.json: this vocabulary has no <mask>"):
        prepare(fill_config(raw, where)[0], tmp_path)


def test_fill_prints_the_text_with_what_was_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = GOLDEN / "masked"
    words = ["saccade", "predict", str(run), "--fill", "a <mask> b", "--nbest", "3"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    best = saccade.load(run).predict("a <mask> b", nbest=3)
    assert [text for _, text in lines] == [best.text, *(text for text, _ in best.others)]
    assert sorted((float(score) for score, _ in lines), reverse=True) == pytest.approx(
        [best.score, *(score for _, score in best.others)], abs=1e-4
    )
    assert all(text.startswith("a ") and text.endswith(" b") for _, text in lines)


def test_a_text_without_known_words_has_no_tokens_to_look_at(tmp_path: Path) -> None:
    run_through(settings("masked", tmp_path, steps=2), tmp_path / "run")
    run = saccade.load(tmp_path / "run")
    assert len(view(run, "w1 unheard", "tokens")["tokens"]) == 1
    with pytest.raises(DataError, match="the vocabulary has no token of this text"):
        view(run, "unheard", "tokens")


def test_a_run_that_never_filled_in_says_so(tmp_path: Path) -> None:
    run_through(settings("causal", tmp_path, steps=2), tmp_path / "run")
    with pytest.raises(ConfigError, match="'causal' has not learned to fill in <mask>"):
        saccade.load(tmp_path / "run").require_fill()


@pytest.mark.parametrize("kind", ["masked", "permuted", "spans"])
def test_what_a_filling_attends_to_is_drawn(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run_through(settings(kind, tmp_path, steps=2), tmp_path / "run")
    run = saccade.load(tmp_path / "run")
    drawn = view(run, "w1 w2 <mask> w4", "attention", layer=0)
    write([drawn], tmp_path / "picture.png")
    assert drawn["text"] == run.predict("w1 w2 <mask> w4").text
    assert (tmp_path / "picture.png").stat().st_size > 1000
    if kind == "spans":
        assert drawn["source"] == ["w1", "w2", "<0>", "w4", "<eos>"]
    else:
        begin = ["<bos>"] if kind == "masked" else []  # of a pair
        assert drawn["source"][: len(begin) + 4] == [*begin, "w1", "w2", "<mask>", "w4"]
    for row in drawn["map"]:
        assert sum(row) == pytest.approx(1.0, abs=1e-3)
    for other in kinds(run):
        assert view(run, "w1 w2 <mask> w4", other)["kind"] == other


@pytest.mark.parametrize(
    ("kind", "dtype", "error"),
    [("masked", torch.float32, 2e-6), ("permuted", torch.float32, 2e-6),
     ("spans", torch.float32, 2e-6), ("unilm", torch.bfloat16, 0.02)],
)  # fmt: skip
def test_the_gradients_of_all_ranks_are_those_of_one_process(
    kind: str, dtype: torch.dtype, error: float, tmp_path: Path
) -> None:
    ready = prepare(settings(kind, tmp_path), tmp_path)
    network = ready.task.build().train()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    parameters = list(network.parameters())
    gradients = Gradients(network, parameters, torch.device("cpu"), dtype, scaler, seed=5)
    batches = [ready.task.epoch(ready.train, 0)[i] for i in range(2)]
    whole, expected = sums_of(gradients, Ranks(), batches, None)
    found = [sums_of(gradients, Part(rank, 2), batches, None) for rank in range(2)]
    assert sum(sums.count for sums, _ in found) == whole.count
    scale = max(float(g.abs().max()) for g in expected)
    for i, one in enumerate(expected):
        together = torch.stack([parts[i] for _, parts in found]).sum(0)
        assert float((together - one).abs().max()) < error * scale
