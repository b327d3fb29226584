"""`saccade plan`: a configuration, a size or a run in; how big, how long, what it costs."""

import json
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from saccade.models.build import materialize
from saccade.plan import timing
from saccade.plan.report import plan
from saccade.plan.subject import subject_of
from saccade.plan.table import amount, duration, lines, size
from saccade.plan.timing import measure_steps
from saccade.runs import machine
from saccade.runs.guard import fitting_network
from saccade.tasks.registry import load_task
from tests.helpers import GOLDEN, corpus

TINY = 'encoder = {kind = "recurrent", dim = 16}\ndecoder = {kind = "recurrent", dim = 16}\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    data, path = corpus(tmp_path, "translate"), tmp_path / "run.toml"
    path.write_text(f'{TINY}[data]\ntrain = ["{data}"]\n[train]\nepochs = 2\n')
    return path


def test_a_plan_answers_the_questions(call, config: Path) -> None:
    done = call("plan", config, "--on", "v100", "--devices", "2")
    assert done.code == 0, done.err
    names = [line.strip().split("  ")[0] for line in done.out.splitlines() if line]
    for name in ("parameters", "a step", "the run", "memory", "fits", "batch that fits", "costs"):
        assert name in names
    assert "2 x v100" in done.out
    assert max(map(len, done.out.splitlines())) <= 120


def test_json_has_parameters_flops_and_memory(call) -> None:
    began = time.process_time()
    done = call("plan", "gpt3-175b", "--json")
    assert time.process_time() - began < 5.0  # most of it is for torch
    found = json.loads(done.out)
    assert found["parameters"] == sum(found["parts"].values()) == 174_604_259_328
    assert found["flops"]["step"] == found["flops"]["forward"] + found["flops"]["backward"]
    assert found["flops"]["run"] == pytest.approx(3.14e23, rel=0.03)
    assert found["memory"]["weights"] == 6 * found["parameters"]  # and copies in half precision
    assert not found["layout"]["fits"]
    assert found["published"]["compute"] == 3.14e23


def test_a_configuration_has_the_parameters_of_the_run_that_comes_of_it(
    call,
    config: Path,
    tmp_path: Path,
) -> None:
    planned = json.loads(call("plan", config, "--json").out)
    limit = ["--set", "train.steps=4", "--set", "train.epochs=1"]
    assert call("train", config, "--out", tmp_path / "run", *limit).code == 0
    again = json.loads(call("plan", tmp_path / "run", "--json").out)
    assert planned["parameters"] == again["parameters"]
    assert planned["parts"] == again["parts"]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    (prepared,) = [event for event in events if event["event"] == "Prepared"]
    assert planned["parameters"] == prepared["parameters"]


def test_the_steps_of_a_plan_are_those_of_training(call, config: Path, tmp_path: Path) -> None:
    planned = json.loads(call("plan", config, "--json").out)
    assert call("train", config, "--out", tmp_path / "run").code == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == planned["steps"]


@pytest.mark.parametrize("kind", sorted(path.name for path in GOLDEN.iterdir()))
def test_a_run_of_every_kind_has_a_plan(kind: str) -> None:
    folder = GOLDEN / kind
    found = plan(str(folder))
    config = found.subject.config
    network = fitting_network(load_task(config, folder), folder / "model.safetensors")
    assert found.parameters == sum(parameter.numel() for parameter in network.parameters())
    assert found.flops.step > 0
    assert found.memory.peak > 12 * found.parameters


def test_a_configuration_without_its_data_says_what_is_assumed(call, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    text = '{}task = {{kind = "{}"}}\n[data]\ntrain = ["nowhere.tsv"]\n'
    path.write_text(text.format(TINY, "translate"))
    done = call("plan", path)
    assert done.code == 0
    assert "note: its data is not there: vocabularies are as large as" in done.out
    path.write_text(text.format('encoder = {kind = "none"}\noutput = {kind = "gaussian"}\n'
                                'head = {kind = "pooled"}\n', "regress"))  # fmt: skip
    done = call("plan", path)
    assert done.code == 2
    assert "its data is not there, and the network depends on it" in done.err


MISTAKES = {
    "an unknown size": (["gpt3-175"], "gpt3-175: no configuration, run or published size of this "
                        "name; did you mean 'gpt3-175b'?"),
    "nothing like it": (["zzz"], "there are transformer-base, transformer-big"),
    "a size of any network": (["tiny"], "a size of any network"),
    "unknown hardware": (["gpt2", "--on", "a1000"], "did you mean 'a100'?"),
    "two at once": (["gpt2", "gpt2-xl"], "one configuration, size or run at a time"),
    "no such key": (["gpt2", "--set", "decoder.dims=3"], "(did you mean 'decoder.dim'?)"),
    "sizes that do not fit": (["gpt2", "--set", "decoder.num_heads=7"], "must be divisible by"),
    "no effect": (["gpt2", "--set", "train.rate=0.1"], "train.rate: has no effect on the plan"),
    "no device": (["gpt2", "--devices", "0"], "--devices 0"),
    "too few runs": (["--scaling", str(GOLDEN / "transformer")], "no metrics.jsonl"),
    "an extrapolation of nothing": (["gpt2", "--tokens", "3"], "are for --scaling"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(call, name: str) -> None:
    words, said = MISTAKES[name]
    done = call("plan", *words)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1
    assert not done.out


def test_what_is_wrong_with_a_configuration_is_said(call, config: Path) -> None:
    config.write_text(config.read_text().replace("epochs", "epoch"))
    done = call("plan", config)
    assert done.code == 2
    assert "unknown key 'train.epoch' (did you mean 'train.epochs'?)" in done.err


def test_steps_are_tried_here(config: Path) -> None:
    found = plan(str(config), on="here")
    assert found.timing.measured
    assert found.timing.run == pytest.approx(found.timing.step * found.subject.steps)
    assert 0.0 < found.timing.step < 5.0
    assert measure_steps(plan("gpt2").subject, found.hardware) is None  # there is no data


def test_the_ways_are_tried_that_training_would_try(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a short run the plain one alone; of a long one all, of which the fastest counts."""
    found: list[timing.Mode] = []

    def seconds(network: object, batches: list[object], way: timing.Mode) -> list[float]:
        found.append(way)
        faster = 1.0 + (way.processes > 1) + (way.dtype == torch.bfloat16)
        return [1e-3 / faster] * len(batches)

    monkeypatch.setattr(timing, "_seconds", seconds)
    monkeypatch.setattr(machine, "has_half_products", lambda: True)
    monkeypatch.setattr(timing, "_update_seconds", lambda network: 0.0)
    monkeypatch.setattr(timing, "cores", lambda: 2)
    settings = ["train.epochs=100000", "train.steps=10"]
    short = plan(str(config), on="here", settings=settings).timing.step
    assert [(way.dtype, way.processes) for way in found] == [(torch.float32, 1)]
    found.clear()
    long = plan(str(config), on="here", settings=[settings[0], "train.steps=1000000"]).timing.step
    assert len(found) == len(set(found)) == 4
    assert long < 0.6 * short


def test_half_precision_is_tried_by_the_network_itself(config: Path) -> None:
    with closing(subject_of(str(config), [])) as subject:
        assert subject.ready is not None
        network = materialize(subject.ready.task.build_meta(), 1).train()
        batch = subject.ready.task.epoch(subject.ready.train, 0)[0]
        formats: list[torch.dtype] = []
        network.encoder.body.register_forward_hook(
            lambda _, __, memory: formats.append(memory.values.dtype)
        )
        timing._seconds(network, [batch], timing.Mode(torch.bfloat16, 1))
    assert set(formats) == {torch.bfloat16}


def test_a_published_size_is_planned_with_the_given_settings() -> None:
    found = plan("gpt3-175b", settings=["train.steps=10"])
    assert found.steps == 10
    assert found.timing.run == pytest.approx(10 * found.timing.step)
    assert "  10 steps, 32 Mtokens" in "\n".join(lines(found))
    assert "6 x parameters" not in "\n".join(lines(found))
    short = plan("gpt2", settings=["task.context=256", "train.steps=1000"])
    assert short.subject.tokens == short.subject.largest.target == 256
    assert plan("gpt2").subject.tokens == 1024
    assert "the run" in "\n".join(lines(short))
    large = plan("gpt3-small", settings=["train.batch_tokens=1000000"])
    assert large.steps == pytest.approx(300_000)
    assert plan("transformer-base", settings=["data.max_len=64"]).subject.largest.sources == (64,)


def test_a_run_with_a_number_of_steps_and_a_time_limit_ends_with_the_first() -> None:
    full = plan("gpt2", settings=["train.steps=1000"])
    assert full.timing.run is not None
    minutes = full.timing.run / 60
    for share in (0.5, 2.0):
        found = plan("gpt2", settings=["train.steps=1000", f"train.minutes={share * minutes}"])
        assert found.timing.run == pytest.approx(min(share, 1.0) * full.timing.run)
        assert found.steps == pytest.approx(min(share, 1.0) * 1000)
        assert found.record()["tokens"]["run"] == pytest.approx(min(share, 1.0) * 1000 * 1024)


def test_numbers_are_written_for_people() -> None:
    assert [amount(n) for n in (12, 3456, 1.5e6, 2e9, 3.14e23)] == [
        *("12 ", "3.46 k", "1.5 M", "2 G", "3.14e+23 ")
    ]
    assert [size(n) for n in (2e3, 2e6, 2.25e9, 3e12)] == ["2.0 kB", "2.0 MB", "2.2 GB", "3.0 TB"]
    assert [duration(n) for n in (0.002, 30, 600, 7200, 2e6, 2e9)] == [
        *("2 ms", "30 s", "10.0 minutes", "2.0 hours", "23.1 days", "63.4 years")
    ]
