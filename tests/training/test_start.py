"""Starting from another run: what is taken over, what of it learns, and what is refused."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import saccade
from saccade.errors import CheckpointError, ConfigError
from saccade.models.networks import Classifier, Generator
from saccade.nn.padded import pad
from saccade.runs import files
from saccade.runs.folder import read_config
from saccade.runs.start import START_WEIGHTS, first_weights
from saccade.setup.choose import gather
from saccade.setup.prepare import reopen
from saccade.training.events import Noticed
from saccade.training.saving import restore_or_reset
from saccade.training.session import fill, new_folder, resume, start
from saccade.training.trainer import Trainer
from saccade.training.tune import depths_of
from saccade.verify import verify
from tests.helpers import SMALL, corpus, run_through, same_weights, settings, until, weights

TUNINGS: dict[str, dict[str, Any]] = {
    "whole": {},
    "decay": {"layer_decay": 0.5},
    "frozen": {"kind": "frozen"},
    "gradual": {"kind": "gradual", "share": 0.8},
    "lora": {"kind": "lora", "rank": 2, "dropout": 0.2},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of each kind."""
    folder = tmp_path_factory.mktemp("pretrained")
    for name in SMALL:
        config = settings(name, folder, steps=3, evaluate_every=3, save_every=3)
        run_through(config, folder / name)
    raw, where = gather(corpus(folder, "pretrain"), task="pretrain")
    raw |= {"encoder": SMALL["transformer"]["encoder"]}
    raw["task"] |= {"tokenizer": {"kind": "char", "mask": True}, "context": 16}
    raw["train"] = {"steps": 3, "processes": 1}
    run_through(fill(raw, where)[0], folder / "masked")
    return folder


def tuned(
    runs: Path, name: str, folder: Path, task: str, more: dict[str, Any] | None = None, **start: Any
) -> Any:
    """The configuration of a small new run that starts from one of these."""
    raw, where = gather(corpus(folder, task), task=task)
    raw["start"] = {"run": str(runs / name)} | start
    raw["train"] = {
        "steps": 12,
        "batch_tokens": 200,
        "evaluate_every": 4,
        "save_every": 3,
        "keep": 10,
        "average": 0.9,
        "rate": 0.01,
        "processes": 1,
    }
    for key, value in (more or {}).items():
        raw[key] = raw.get(key, {}) | value
    return fill(raw, where)[0]


def prepared(config: Any, folder: Path) -> Trainer:
    """A new run before its first step."""
    folder = new_folder(config, folder)
    list(until(0, lambda stop: start(config, folder, stop)))
    task = read_task(folder)
    return Trainer(task, first_weights(task.build_meta(), task.config, folder), folder)


def report(config: Any, folder: Path) -> list[str]:
    """What a new run says before its first step."""
    events = until(0, lambda stop: start(config, folder, stop))
    return [event.text for event in events if isinstance(event, Noticed)]


def read_task(folder: Path) -> Any:
    return reopen(read_config(folder), folder).task


# --- what is taken over ---------------------------------------------------------------------------

PAIRS = {  # the parts of a run that a task takes over, and what is new
    ("windows", "classify"): ("decoder.embedding, decoder.stack", "head"),
    ("windows", "tag"): ("decoder.embedding, decoder.stack", "head"),
    ("windows", "language"): ("decoder", ""),
    ("windows", "translate"): ("decoder", "decoder.stack.blocks.0.cross, "),
    ("language model", "classify"): ("decoder.embedding, decoder.layers", "head"),
    ("language model", "translate"): ("decoder", "decoder.attention, decoder.first, "),
    ("transformer", "classify"): ("encoder", "head"),
    ("transformer", "translate"): ("decoder, encoder", ""),
    ("transformer", "language"): ("decoder.embedding, decoder.output, ", ""),
    ("lstm", "tag"): ("encoder", "head"),
    ("tagger", "classify"): ("encoder", "head"),
    ("tagger", "translate"): ("encoder", "decoder"),
    ("classifier", "tag"): ("encoder", "head"),
    ("masked", "classify"): ("encoder", "head"),
    ("masked", "tag"): ("encoder", "head"),
    ("masked", "translate"): ("encoder", "decoder"),
    ("masked", "pretrain"): ("encoder, head", ""),
}


@pytest.mark.parametrize(("name", "task"), PAIRS, ids=lambda value: value.replace(" ", "-"))
def test_a_task_takes_over_the_parts_of_a_run_that_it_has(
    name: str, task: str, runs: Path, tmp_path: Path
) -> None:
    config = tuned(runs, name, tmp_path, task)
    folder = new_folder(config, tmp_path / "run")
    said = report(config, folder)
    taken, new = PAIRS[name, task]
    assert said[0].startswith(f"taken from {runs / name}: a vocabulary of ")
    assert f", {taken}" in said[0]
    assert any(line.startswith(f"new: {new}") for line in said) == bool(new)
    kept, there = files.read_tensors(folder / START_WEIGHTS), weights(runs / name)
    assert kept
    assert all(any(torch.equal(w, other) for other in there.values()) for w in kept.values())


def test_numbers_can_be_learned_by_an_encoder_of_words(runs: Path, tmp_path: Path) -> None:
    lines = corpus(tmp_path, "classify").read_text(encoding="utf-8").splitlines()
    path, words = tmp_path / "lengths.tsv", [line.partition("\t")[0] for line in lines]
    path.write_text("".join(f"{word}\t{len(word)}.5\n" for word in words), encoding="utf-8")
    small = {"train.steps": 2, "train.processes": 1, "start.kind": "frozen"}
    out, base = tmp_path / "run", runs / "masked"
    run = saccade.train(path, task="regress", from_run=base, out=out, settings=small, quiet=True)
    assert all(name.startswith("encoder.") for name in files.read_tensors(out / START_WEIGHTS))
    assert float(run.predict("abc").text) > 0


@pytest.mark.parametrize("name", ["windows", "language model"])
def test_an_encoder_that_begins_with_a_language_model_reads_as_that_does(
    name: str, runs: Path, tmp_path: Path
) -> None:
    trainer = prepared(tuned(runs, name, tmp_path, "classify"), tmp_path / "run")
    network, model = trainer.network.eval(), saccade.load(runs / name).network
    assert isinstance(network, Classifier)
    assert isinstance(model, Generator)
    rows = pad([[5, 6, 7, 8, 6], [7, 5], [8, 8, 6]], 0)
    with torch.inference_mode():
        read = network.encoder(rows).values
        for row, values in zip(rows.values, read, strict=True):
            said, _ = model.decoder.hidden(row[None], model.decoder.start(None, 1))
            n = int((row != 0).sum())
            assert torch.allclose(values[:n], said[0, :n], atol=1e-6)


def test_a_language_model_goes_on_where_the_other_ended(runs: Path, tmp_path: Path) -> None:
    trainer = prepared(tuned(runs, "windows", tmp_path, "language"), tmp_path / "run")
    before = saccade.load(runs / "windows")
    rows = pad([[3, 5, 6, 7, 8, 6]], 0).values
    with torch.inference_mode():
        one, other = (
            network.decoder(rows, network.decoder.start(None, 1))[0]
            for network in (trainer.network.eval(), before.network)
        )
    assert torch.equal(one, other)
    assert trainer.task.target.tokenizer.agrees(before.task.target.tokenizer)  # type: ignore[attr-defined]


def test_a_vocabulary_that_hardly_covers_the_new_text_is_said(runs: Path, tmp_path: Path) -> None:
    path = corpus(tmp_path, "classify")
    lines = path.read_text(encoding="utf-8").replace("a", "ä").replace("b", "ß")
    config = tuned(runs, "windows", tmp_path, "classify")
    path.write_text(lines, encoding="utf-8")
    said = report(config, new_folder(config, tmp_path / "run"))
    assert any("of the tokens are unknown to the vocabulary of" in line for line in said)


def test_several_sources_begin_with_those_of_the_same_place(runs: Path, tmp_path: Path) -> None:
    raw, where = gather(corpus(tmp_path, "inflect"), task="translate")
    raw |= SMALL["transformer"] | {"train": {"steps": 2, "processes": 1}}
    run_through(fill(raw, where)[0], tmp_path / "first")
    config = tuned(tmp_path, "first", tmp_path, "translate", {"train": {"steps": 1}})
    run_through(config, tmp_path / "one")
    kept, there = files.read_tensors(tmp_path / "one" / START_WEIGHTS), weights(tmp_path / "first")
    name = "encoder.stem.embedding.weight"
    assert torch.equal(kept[name], there["encoder.stems.0.embedding.weight"])
    tags = corpus(tmp_path, "inflect")  # from now on as many as there are letters
    tags.write_text(tags.read_text(encoding="utf-8").replace(";ACC", ""), encoding="utf-8")
    raw["start"] = {"run": str(tmp_path / "one")}
    config, _, _ = fill({key: raw[key] for key in ("data", "task", "train", "start")}, where)
    report(config, new_folder(config, tmp_path / "two"))
    again = files.read_tensors(tmp_path / "two" / START_WEIGHTS)
    assert torch.equal(again["encoder.stems.0.embedding.weight"], weights(tmp_path / "one")[name])
    task = saccade.load(tmp_path / "one").task
    assert read_task(tmp_path / "two").sources[1].size == task.sources[0].size
    assert "encoder.stems.1.embedding.weight" not in again  # ids of tags mean something else


@pytest.mark.parametrize("how", TUNINGS)
def test_a_new_run_needs_the_old_one_no_more(how: str, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "windows", tmp_path / "old")
    config = tuned(tmp_path, "old", tmp_path, "classify", **TUNINGS[how])
    run_through(config, tmp_path / "run", stop_after=5)
    assert config.start.run == str(tmp_path / "old")
    shutil.rmtree(tmp_path / "old")
    list(resume(tmp_path / "run"))
    run = saccade.load(tmp_path / "run")
    assert run.predict("abc x1").text in "abcd"
    assert len(run.config.start.digest) == 64
    assert all(law.passed is not False for law in verify(tmp_path / "run"))


# --- what learns ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", TUNINGS)
def test_resuming_is_never_having_stopped(how: str, runs: Path, tmp_path: Path) -> None:
    config = tuned(runs, "windows", tmp_path, "classify", **TUNINGS[how])
    run_through(config, tmp_path / "straight")
    run_through(config, tmp_path / "halted", stop_after=4)
    for halt in (7, None):
        list(until(halt, lambda stop: resume(tmp_path / "halted", stop)))
    assert same_weights(tmp_path / "straight", tmp_path / "halted")


@pytest.mark.parametrize("how", ["frozen", "lora"])
def test_what_is_frozen_stays_to_the_last_bit_and_costs_nothing(
    how: str, runs: Path, tmp_path: Path
) -> None:
    config = tuned(runs, "windows", tmp_path, "classify", **TUNINGS[how])
    run_through(config, tmp_path / "run")
    kept, now = files.read_tensors(tmp_path / "run" / START_WEIGHTS), weights(tmp_path / "run")
    assert all(torch.equal(now[name], weight) for name, weight in kept.items())
    trainer = prepared(config, tmp_path / "other")
    first = files.weights_of(trainer.network)
    new = first.keys() - kept.keys()
    assert all(not torch.equal(now[name], first[name]) for name in new if "cross" not in name)
    trainer.gradients.sum([next(batches(trainer))], None, 0.0, 0, saccade.training.stop.Stop())
    named = dict(trainer.network.named_parameters())
    assert {name for name in named if named[name].grad is not None} == new
    assert sum(len(group["params"]) for group in trainer.optimizer.param_groups) == len(new)
    assert trainer.average is not None
    assert len(trainer.average.weights) == len(new)


def batches(trainer: Trainer) -> Iterator[Any]:
    ready = reopen(trainer.task.config, trainer.folder)
    epoch = trainer.task.epoch(ready.train, 0)
    while True:
        yield from (epoch[i] for i in range(len(epoch)))


def test_gradual_unfreezing_changes_the_groups_whose_turn_it_is(runs: Path, tmp_path: Path) -> None:
    config = tuned(runs, "windows", tmp_path, "classify", kind="gradual", share=0.8)
    trainer = prepared(config, tmp_path / "run")
    source = batches(trainer)
    kept = files.read_tensors(tmp_path / "run" / START_WEIGHTS)
    depths = depths_of(list(dict(trainer.network.named_parameters())), kept)
    assert sorted({*depths.values()}) == [0, 1, 2, 3, 4]  # a head, three layers, embeddings
    for progress, learned in ((0.0, 0), (0.19, 0), (0.2, 1), (0.59, 2), (0.61, 3), (0.8, 4)):
        before = {n: p.detach().clone() for n, p in trainer.network.named_parameters()}
        trainer.step([next(source)], progress)
        now = trainer.network.named_parameters()
        changed = {name for name, weight in now if not torch.equal(weight, before[name])}
        assert {depths[name] for name in changed} == {*range(learned + 1)}
        still = {name for name, depth in depths.items() if depth <= learned} - changed
        assert not {name for name in still if name.endswith(".weight") and "norm" not in name}


def test_two_processes_unfreeze_as_one_does(runs: Path, tmp_path: Path) -> None:
    for processes in (1, 2):
        train = {"processes": processes, "optimizer": "sgd", "rate": 0.05, "weight_decay": 0.5}
        more = {"train": train | {"preflight": "off", "average": 0.0}}
        config = tuned(runs, "windows", tmp_path, "classify", more, **TUNINGS["gradual"])
        run_through(config, tmp_path / f"of {processes}")
    one, two = weights(tmp_path / "of 1"), weights(tmp_path / "of 2")
    assert all(torch.allclose(one[name], two[name], atol=1e-6) for name in one)


def test_a_layer_further_from_the_output_learns_at_a_lower_rate(runs: Path, tmp_path: Path) -> None:
    config = tuned(runs, "windows", tmp_path, "classify", layer_decay=0.5)
    trainer = prepared(config, tmp_path / "run")
    result = trainer.step([next(batches(trainer))], 0.5)
    named = {id(p): name for name, p in trainer.network.named_parameters()}
    rates = {
        named[id(p)]: group["lr"] / result.rate
        for group in trainer.optimizer.param_groups
        for p in group["params"]
    }
    assert rates["head.output.weight"] == 1.0
    assert rates["encoder.body.norm.weight"] == 0.5
    assert rates["encoder.body.blocks.2.attention.qkv.weight"] == 0.5
    assert rates["encoder.body.blocks.0.feed_forward.up.bias"] == 0.125
    assert rates["encoder.stem.embedding.weight"] == 0.0625


def test_depths_are_counted_from_the_output_of_each_part() -> None:
    names = [
        "encoder.stem.layers.0.weight",
        "encoder.body.layers.layers.0.weight_ih_l0",
        "encoder.body.layers.layers.1.weight_ih_l0",
        "decoder.embedding.weight",
        "decoder.layers.layers.0.weight_ih_l0",
        "decoder.output.bias",
        "decoder.first.weight",
    ]
    found = depths_of(names, names[:-1])
    assert list(found.values()) == [3, 2, 1, 2, 1, 1, 0]


def test_going_back_to_the_beginning_is_to_what_was_taken_over(runs: Path, tmp_path: Path) -> None:
    trainer = prepared(tuned(runs, "windows", tmp_path, "classify"), tmp_path / "run")
    first = {n: w.clone() for n, w in files.weights_of(trainer.network).items()}
    trainer.step([next(batches(trainer))], 0.5)
    restore_or_reset(trainer, None)
    assert all(torch.equal(w, first[n]) for n, w in files.weights_of(trainer.network).items())


# --- adapters -------------------------------------------------------------------------------------


def test_adapters_begin_as_nothing_and_are_merged_when_a_run_is_loaded(
    runs: Path, tmp_path: Path
) -> None:
    config = tuned(runs, "windows", tmp_path, "classify", **TUNINGS["lora"])
    trainer = prepared(config, tmp_path / "first")
    plain = prepared(tuned(runs, "windows", tmp_path, "classify"), tmp_path / "plain").network
    files.copy_weights(
        {n: dict(trainer.network.named_parameters())[n] for n, _ in plain.named_parameters()},
        plain,
        tmp_path,
    )
    rows = pad([[5, 6, 7, 8, 6], [7, 5, 3]], 0)
    assert torch.equal(logits(trainer.network, rows), logits(plain, rows))
    run_through(config, tmp_path / "run")
    files.load_weights(tmp_path / "run" / "model.safetensors", trainer.network)
    merged = saccade.load(tmp_path / "run").network
    assert len(list(merged.parameters())) == len(list(plain.parameters()))
    assert not torch.allclose(logits(trainer.network, rows), logits(plain, rows), atol=1e-4)
    assert torch.allclose(logits(trainer.network, rows), logits(merged, rows), atol=1e-5)


def logits(network: Any, rows: Any) -> Tensor:
    with torch.inference_mode():
        return network.eval().logits((rows,))  # type: ignore[no-any-return]


def test_a_run_with_adapters_can_be_started_from(runs: Path, tmp_path: Path) -> None:
    config = tuned(runs, "windows", tmp_path, "classify", **TUNINGS["lora"])
    run_through(config, tmp_path / "first")
    first = saccade.load(tmp_path / "first").network
    config = tuned(tmp_path, "first", tmp_path, "tag", kind="frozen")
    run_through(config, tmp_path / "second")
    now = weights(tmp_path / "second")
    old = dict(first.named_parameters())
    assert all(torch.equal(now[name], old[name]) for name in old if name.startswith("encoder."))


def test_adapters_reach_a_decoder_that_searches(runs: Path, tmp_path: Path) -> None:
    config = tuned(runs, "transformer", tmp_path, "translate", **TUNINGS["lora"])
    run_through(config, tmp_path / "run")
    kept, now = files.read_tensors(tmp_path / "run" / START_WEIGHTS), weights(tmp_path / "run")
    assert all(torch.equal(now[name], weight) for name, weight in kept.items())
    assert any(now[name].any() for name in now if name.endswith("cross.kv.widen"))
    assert all(law.passed is not False for law in verify(tmp_path / "run"))


# --- what is refused ------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "width": ("windows", "classify", {"encoder": {"dim": 32}}, "encoder.dim is 32, and 16 in"),
    "head width": ("windows", "tag", {"encoder": {"head_dim": 4}}, "encoder.head_dim is 4, and"),
    "kind": ("windows", "tag", {"encoder": {"kind": "recurrent"}}, "encoder.kind is 'recurrent'"),
    "tokenizer": (
        "windows",
        "classify",
        {"task": {"tokenizer": {"kind": "word"}}},
        "task.tokenizer.kind is 'word', and 'char' in",
    ),
    "vocabulary": ("windows", "language", {"task": {"vocabulary": "x"}}, "task.vocabulary"),
    "vectors": ("windows", "tag", {"data": {"vectors": "x"}}, "data: vectors: the embeddings come"),
    "part": ("tagger", "language", {}, "has the part encoder, and the task 'language' needs"),
    "frozen": ("windows", "language", {"start": {"kind": "frozen"}}, "nothing would learn"),
    "lora": ("lstm", "classify", {"start": {"kind": "lora"}}, "kind 'lora' is for the linear"),
    "digest": ("lstm", "tag", {"start": {"digest": "0" * 64}}, "start.digest: the weights of"),
    "run": ("lstm", "tag", {"start": {"run": "nowhere"}}, "nowhere: not a run"),
    "how": ("lstm", "tag", {"start": {"kind": "froze"}}, "start: unknown kind 'froze'"),
    "key": ("lstm", "tag", {"start": {"rank": 4}}, "start.rank belongs to start.kind = 'lora'"),
    "product": (
        "windows",
        "classify",
        {"start": {"kind": "lora", "products": ["qvk"]}},
        "qkv'",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_what_does_not_fit_is_said_at_once(what: str, runs: Path, tmp_path: Path) -> None:
    name, task, more, message = MISTAKES[what]
    with pytest.raises(ConfigError) as caught:
        run_through(tuned(runs, name, tmp_path, task, more), tmp_path / "run")
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_forecast_has_nothing_to_start_from(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "series.csv"
    path.write_text("a\n" + "".join(f"{i % 7}\n" for i in range(99)), encoding="utf-8")
    with pytest.raises(ConfigError, match="fine-tuning is not supported for the task 'forecast'"):
        saccade.train(path, task="forecast", from_run=runs / "lstm", out=tmp_path / "run")


def test_a_stranger_is_vetted(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "windows", tmp_path / "odd")
    (tmp_path / "odd" / "model.safetensors").write_bytes(b"?" * 100)
    with pytest.raises(ConfigError, match=r"start.run: .*damaged"):
        run_through(tuned(tmp_path, "odd", tmp_path, "classify"), tmp_path / "run")
    config = tuned(runs, "windows", tmp_path, "classify")
    run_through(config, tmp_path / "run", stop_after=1)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    huge = {"encoder.stem.embedding.weight": torch.zeros(9, 9)}
    files.save_weights(tmp_path / "run" / START_WEIGHTS, huge)
    with pytest.raises(CheckpointError, match="does not fit"):
        list(resume(tmp_path / "run"))


def test_fewer_layers_take_the_first_and_leave_the_others(runs: Path, tmp_path: Path) -> None:
    config = tuned(runs, "windows", tmp_path, "classify", {"encoder": {"num_layers": 1}})
    folder = new_folder(config, tmp_path / "run")
    said = report(config, folder)
    assert "decoder.stack.blocks.1, decoder.stack.blocks.2" in said[2]
    assert said[2].startswith("left in ")
