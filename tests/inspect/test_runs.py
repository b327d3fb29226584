"""Whole runs: curves, worst examples, two runs compared, probes, strange outputs, confusion."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import saccade
from saccade.data.lines import Example
from saccade.errors import CheckpointError, ConfigError, DataError
from saccade.inspect.comparing import compare_runs, measured
from saccade.inspect.confusion import confusion, label_lines, matrix_lines
from saccade.inspect.curves import curves
from saccade.inspect.examples import worst
from saccade.inspect.page import page
from saccade.inspect.probes import probe, read_pairs
from saccade.inspect.strange import loops, signs, strange
from saccade.inspect.terminal import text_of
from saccade.runs.run import Run
from tests.helpers import corpus

TINY = {"train.steps": 12, "train.evaluate_every": 4, "train.processes": 1, "encoder.dim": 16}


def trained(folder: Path, task: str, name: str = "run", **more: Any) -> Run:
    settings = TINY | {key.replace("__", "."): value for key, value in more.items()}
    if task == "language":
        del settings["encoder.dim"]
    data = corpus(folder, task)
    return saccade.train(data, out=folder / name, task=task, settings=settings, quiet=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    folder = tmp_path_factory.mktemp("pair")
    both = [trained(folder, "translate", f"run{i}", seed=i, decoder__dim=16) for i in (1, 2)]
    return both[0], both[1]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("classify"), "classify")


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("language"), "language", decoder__dim=16)


# --- curves and examples --------------------------------------------------------------------------


def test_curves_are_what_a_run_has_written(pair: tuple[Run, Run]) -> None:
    found = curves([pair[0], pair[1].folder, str(pair[1].folder)])
    assert [run["name"] for run in found["runs"]] == ["run1", "run2", "run2 2"]
    one = found["runs"][0]
    lines = (pair[0].folder / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    dev = [event for event in events if event["event"] == "Evaluated"]
    assert [point["step"] for point in one["dev"]] == [event["step"] for event in dev]
    assert one["dev"][-1]["scores"]["loss"] == pytest.approx(dev[-1]["scores"]["loss"], rel=1e-4)
    assert one["finished"]
    assert "run1" in text_of(found)
    assert page(found).count("<svg") == 1 + len(dev[0]["scores"])


def test_curves_of_a_run_on_its_way_are_those_so_far(tmp_path: Path) -> None:
    lines = [
        {"event": "Prepared", "start": 0},
        {"event": "StepDone", "step": 10, "loss": 2.0, "rate": 0.1, "seconds": 1.0},
        {"event": "StepDone", "step": 20, "loss": float("nan"), "rate": 0.1, "seconds": 2.0},
        {"event": "Prepared", "start": 10},  # resumed from step 10
        {"event": "StepDone", "step": 15, "loss": 1.5, "rate": 0.1, "seconds": 1.5},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"event": "StepD'
    (tmp_path / "metrics.jsonl").write_text(text)
    (one,) = curves([tmp_path])["runs"]
    assert (one["steps"], one["loss"], one["finished"]) == ([10, 15], [2.0, 1.5], "")
    assert "in training" in text_of(curves([tmp_path]))
    with pytest.raises(DataError, match="there is none"):
        curves([tmp_path / "nowhere"])


def test_the_worst_examples_are_the_least_likely(pair: tuple[Run, Run], writer: Run) -> None:
    found = worst(pair[0], 5)
    each = [one["per_token"] for one in found["examples"]]
    assert each == sorted(each)
    one = found["examples"][0]
    ((log_p, tokens),) = pair[0].task.score(
        pair[0].network, [Example(tuple(one["source"]), one["target"])]
    )
    assert one["log_p"] == pytest.approx(log_p, abs=1e-3)
    assert one["tokens"] == tokens
    assert one["said"] == pair[0].predict([one["source"]])[0].text
    assert text_of(found).count("\n") == 4
    assert len(worst(writer, 2)["examples"]) == 2
    with pytest.raises(ConfigError, match="n 0"):
        worst(pair[0], 0)


def test_a_run_without_its_data_has_no_worst_examples(classifier: Run, tmp_path: Path) -> None:
    moved = Run(tmp_path, classifier.config, classifier.task, classifier.network)
    with pytest.raises(CheckpointError):
        worst(moved)


# --- two runs -------------------------------------------------------------------------------------


def test_the_metrics_compared_are_those_of_evaluate(
    pair: tuple[Run, Run], classifier: Run, tmp_path: Path
) -> None:
    data = str(corpus(tmp_path, "translate"))
    scores = pair[0].evaluate(data)
    found = measured(pair[0], list(pair[0].rows(data)), None)
    assert next(iter(found.metrics)) == pair[0].task.metric
    for name, one in found.metrics.items():
        assert one.score == pytest.approx(scores[name], abs=1e-6)
    assert set(found.metrics) >= {"sequence_error", "token_error"}
    labels = str(corpus(tmp_path, "classify"))
    scores = classifier.evaluate(labels)
    for name, one in measured(classifier, list(classifier.rows(labels)), None).metrics.items():
        assert one.score == pytest.approx(scores[name], abs=1e-6)


def test_a_run_does_not_differ_from_itself(pair: tuple[Run, Run], tmp_path: Path) -> None:
    data = str(corpus(tmp_path, "translate"))
    same = compare_runs(pair[0], pair[0], data, samples=100)
    assert {one["verdict"] for one in same["metrics"]} == {"no difference"}
    assert same["differ_most"] == []
    found = compare_runs(pair[0], pair[1], data, samples=100, lines=3)
    assert len(found["differ_most"]) <= 3
    for one in found["metrics"]:
        assert one["low"] <= one["difference"] + 1e-9
        assert one["difference"] <= one["high"] + 1e-9
        assert one["second"] - one["first"] == pytest.approx(one["difference"], abs=0.01)
    read = page(found)
    assert "randomisation_p" in read


def test_labels_have_mcnemars_test(classifier: Run, tmp_path: Path) -> None:
    other = trained(tmp_path, "classify", seed=5, train__steps=60)
    data = str(corpus(tmp_path, "classify"))
    found = compare_runs(classifier, other, data, samples=200)
    assert {one["name"] for one in found["metrics"]} == {"accuracy", "macro_f1"}
    accuracy = found["metrics"][0]
    test = found["mcnemar"]
    gained = (test["only_second"] - test["only_first"]) / found["lines"]
    assert accuracy["difference"] == pytest.approx(100 * gained, abs=0.01)
    assert json.dumps(found, allow_nan=False)


def test_language_models_are_compared_by_perplexity(writer: Run, tmp_path: Path) -> None:
    other = trained(tmp_path, "language", seed=5, decoder__dim=16, train__steps=30)
    data = str(corpus(tmp_path, "language"))
    found = compare_runs(writer, other, data, samples=100)
    log_p, count = np.array(list(writer.score(data))).sum(0)
    assert found["metrics"][0]["first"] == pytest.approx(np.exp(-log_p / count), rel=1e-3)


def test_what_cannot_be_compared_is_said(
    pair: tuple[Run, Run], classifier: Run, tmp_path: Path
) -> None:
    data = str(corpus(tmp_path, "translate"))
    with pytest.raises(ConfigError, match="different tasks"):
        compare_runs(pair[0], classifier, data)
    with pytest.raises(ConfigError, match="samples = 3"):
        compare_runs(pair[0], pair[1], data, samples=3)


# --- labels ---------------------------------------------------------------------------------------


def test_a_confusion_matrix_counts_every_label(classifier: Run, tmp_path: Path) -> None:
    data = str(corpus(tmp_path, "classify"))
    found = confusion(classifier, [data])
    counts = np.array(found["counts"])
    assert counts.sum() == len(list(classifier.rows(data)))
    right = 100 * counts.trace() / counts.sum()
    assert right == pytest.approx(classifier.evaluate(data)["accuracy"])
    for one in found["by_label"]:
        i = found["labels"].index(one["label"])
        assert counts[i].sum() == one["support"]
        assert 100 * counts[i, i] / counts[i].sum() == pytest.approx(one["recall"], abs=0.01)
    assert len(label_lines(found)) == 1 + len(found["by_label"])
    assert len(matrix_lines(found)) == 1 + len(found["labels"])
    dev = confusion(classifier)
    assert np.array(dev["counts"]).sum() < counts.sum()


def test_rare_labels_are_counted_together(
    classifier: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("saccade.inspect.confusion.MAX_LABELS", 2)
    data = str(corpus(tmp_path, "classify"))
    found = confusion(classifier, [data])
    assert found["labels"][-1] == "(others)"
    assert np.array(found["counts"]).sum() == len(list(classifier.rows(data)))


# --- probes and strange outputs -------------------------------------------------------------------


def test_probes_are_differences_of_log_p(pair: tuple[Run, Run], tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("short\tab\tba\tbb\nshort\tcd\tdc\tdd\nlong\tabcd\tdcba\tdcbb\n")
    found = probe(pair[0], str(path))
    one = found["pairs"][2]
    scores = pair[0].task.score(
        pair[0].network, [Example(("abcd",), text) for text in ("dcba", "dcbb")]
    )
    assert one["margin"] == pytest.approx(scores[0][0] - scores[1][0], abs=1e-3)
    groups = {group["group"]: group for group in found["groups"]}
    assert groups["short"]["pairs"] == 2
    right = [pair_["margin"] > 0 for pair_ in found["pairs"]]
    assert found["all"]["accuracy"] == pytest.approx(100 * sum(right) / 3, abs=0.01)
    assert text_of(found).splitlines()[-1].startswith("all\t3\t")


def test_inputs_can_be_probed_too(classifier: Run, writer: Run, tmp_path: Path) -> None:
    path = tmp_path / "inputs.tsv"
    path.write_text("group\tbetter_source\tworse_source\ttarget\ng\ta x1\tb x1\ta\n")
    (one,) = probe(classifier, str(path))["pairs"]
    scores = classifier.task.score(
        classifier.network, [Example((text,), "a") for text in ("a x1", "b x1")]
    )
    assert one["margin"] == pytest.approx(scores[0][0] - scores[1][0], abs=1e-3)
    path.write_text("g\tab cd\tdd dd\n")
    assert len(probe(writer, str(path))["pairs"]) == 1


def test_a_file_of_pairs_that_is_none_is_said(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("g\ta\tb\n")
    with pytest.raises(DataError, match=r"pairs.tsv:1: expected 4 columns \(group, source, better"):
        read_pairs(str(path), text_only=False)
    path.write_text("group\tbetter\n")
    with pytest.raises(DataError, match="the columns must be source, better and worse"):
        read_pairs(str(path), text_only=False)
    path.write_text("\n")
    with pytest.raises(DataError, match="holds no pair"):
        read_pairs(str(path), text_only=True)
    with pytest.raises(DataError, match="no such file"):
        read_pairs(str(tmp_path / "nothing.tsv"), text_only=True)


def test_what_is_strange_about_an_output() -> None:
    source = ("a rather long sentence of words",)
    assert signs(source, "", 1.0) == ["empty"]
    assert signs(source, source[0], 1.0) == ["copied"]
    assert signs(source, "so so so so so so on", 1.0) == ["looping"]
    assert signs(source, "it is not, it is not, it is not, it is not,", 1.0) == ["looping"]
    assert signs(source, "ja", 1.0) == ["too short"]
    assert signs(("ab",), "one two three four five", 1.0) == ["too long"]
    assert signs(source, "ein recht langer Satz aus Worten", 1.0) == []
    assert not loops(["a", "b", "a", "b", "a"])
    assert loops(["a", "b", "a", "b", "a", "b", "a", "b"])


def test_strange_outputs_are_found_in_a_file(
    pair: tuple[Run, Run], classifier: Run, tmp_path: Path
) -> None:
    data = corpus(tmp_path, "translate")
    found = strange(pair[0], str(data))
    assert found["measured"] == len({line.split("\t")[0] for line in data.read_text().splitlines()})
    for line in found["lines"]:
        assert set(line["signs"]) <= set(found["counts"])
    plain = tmp_path / "inputs.txt"
    plain.write_text("abc\n\nddd\n")
    assert strange(pair[0], str(plain))["measured"] == 2
    assert text_of(found).splitlines()[0].startswith("empty\t")
    with pytest.raises(ConfigError, match="does not generate text"):
        strange(classifier, str(data))
