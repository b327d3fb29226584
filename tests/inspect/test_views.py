"""Views of runs: the tree's scores are true, tokens are those of the answer, mistakes are said."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from saccade.data.lines import Example
from saccade.errors import ConfigError, DataError
from saccade.inspect.case import GeneratedCase, StoppedError, TooLargeError, at_most, stopped_by
from saccade.inspect.opening import continued, generated
from saccade.inspect.packing import axis_names, bytes_of, matrix, unpacked
from saccade.inspect.terminal import text_of
from saccade.inspect.view import kinds, view
from saccade.models.ensembles import build_ensemble
from saccade.runs.run import Run
from tests.small_runs import small_run, small_task

DECODERS = ["transformer", "lstm_additive_cell", "gru_off", "transformer_learned"]


def labelling(kind: str, folder: Path, encoder: str = "transformer") -> Run:
    task, network = small_task(kind, folder, encoder)
    return Run(folder, task.config, task, network)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return small_run(tmp_path_factory.mktemp("translate"), encoder="transformer")


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return small_run(tmp_path_factory.mktemp("language"), kind="language")


def rescored(run: Run, item: str, nodes: list[dict[str, Any]]) -> list[float]:
    """log p of the path to each node, by teacher forcing."""
    case = (continued if run.config.task.kind == "language" else generated)(run, item, "a")
    assert isinstance(case, GeneratedCase)
    index = {name: i for i, name in enumerate(run.task.output.tokens(range(len(run.task.output))))}
    found = []
    for node in nodes:
        ids, at = [], node
        while True:
            ids.append(index[at["token"]])
            if at["parent"] is None:
                break
            at = nodes[at["parent"]]
        marks = run.task.output.frame.start
        if run.config.task.kind == "language":
            marks = [*run.task.output.frame.line, *run.task.output.encode([item])[0]]
        args = (run.network, case.sources, case._names, [], "")
        one = type(case)(*args, marks=marks, ids=ids[::-1])
        with torch.inference_mode():
            found.append(float(one.forward(1).sum()))
    return found


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("settings", [{"width": 3}, {"width": 4, "groups": 2, "diversity": 0.5}])
def test_node_scores_equal_a_rescoring(
    decoder: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    run = small_run(tmp_path, decoder=decoder)
    found = view(run, "abcd", "tree", **settings, max_len=6)
    nodes = found["nodes"]
    assert [n["score"] for n in nodes] == pytest.approx(rescored(run, "abcd", nodes), abs=1e-4)
    assert all(n["parent"] is None or n["parent"] < i for i, n in enumerate(nodes))
    best = nodes[found["best"]]
    assert best["token"] == "<eos>"
    assert best["fate"] == "ended"
    assert best["score"] == pytest.approx(found["score"], abs=1e-4)
    assert {n["fate"] for n in nodes} >= {"kept", "ended", "outside the beam"}
    assert all(n["why"] for n in nodes)
    assert found["text"] == run.predict("abcd", settings=settings | {"max_len": 6}).text


def test_a_language_model_has_a_tree_too(writer: Run) -> None:
    nodes = view(writer, "ab", "tree", width=2, max_len=5)["nodes"]
    assert [n["score"] for n in nodes] == pytest.approx(rescored(writer, "ab", nodes), abs=1e-4)


def test_a_tree_begins_with_the_prefix(translator: Run) -> None:
    found = view(translator, "abc", "tree", prefix="cc", width=2)
    first = [n for n in found["nodes"] if n["parent"] is None]
    assert [n["token"] for n in first] == ["c"]
    assert found["text"].startswith("cc")


def test_tokens_are_those_of_the_answer(translator: Run) -> None:
    answer = translator.predict("abcd", width=2, details=True)
    found = view(translator, "abcd", "tokens", width=2)
    assert found["text"] == answer.text
    assert found["score"] == pytest.approx(answer.score, abs=1e-3)
    for ours, theirs in zip(found["tokens"], answer.tokens, strict=True):
        assert ours["text"] == theirs.text
        assert ours["log_p"] == pytest.approx(theirs.log_p, abs=1e-4)
        other = [one["text"] for one in ours["alternatives"]]
        assert other == [name for name, _ in theirs.alternatives]


def test_an_alternative_can_be_forced(translator: Run) -> None:
    tokens = view(translator, "abcd", "tokens")["tokens"]
    said = tokens[1]["text"]
    other = next(o for o in tokens[1]["alternatives"] if o["prefix"] and o["text"] != said)
    again = view(translator, "abcd", "tokens", prefix=other["prefix"])
    assert again["text"].startswith(other["prefix"])
    assert again["tokens"][1]["text"] == other["text"]
    assert tokens[-1]["prefix"] is None


def test_the_tokens_of_a_text_are_those_that_are_scored(translator: Run, writer: Run) -> None:
    found = view(translator, "abc", "tokens", target="cba")
    ((log_p, count),) = translator.task.score(translator.network, [Example(("abc",), "cba")])
    assert found["score"] == pytest.approx(log_p, abs=1e-3)
    assert len(found["tokens"]) == count
    alone = view(writer, "abc d", "tokens", complete=False)
    ((log_p, count),) = writer.task.score(writer.network, [Example(("abc d",), None)])
    assert alone["score"] == pytest.approx(log_p, abs=1e-3)
    assert len(alone["tokens"]) == count
    assert all(token["given"] for token in alone["tokens"])


def test_a_language_model_marks_what_was_given(writer: Run) -> None:
    found = view(writer, "abc", "tokens", max_len=4)
    assert [token["given"] for token in found["tokens"]][:4] == [True, True, True, False]
    assert found["text"] == writer.predict("abc", settings={"max_len": 4}).text


@pytest.mark.parametrize("kind", ["classify", "compare"])
def test_the_labels_of_an_input_sum_to_one(kind: str, tmp_path: Path) -> None:
    run = labelling(kind, tmp_path)
    item = "abc x1" if kind == "classify" else "abc\tab d"
    labels = view(run, item, "labels")["labels"]
    assert sum(label["p"] for label in labels) == pytest.approx(1.0, abs=1e-3)
    assert [one["p"] for one in labels] == sorted((one["p"] for one in labels), reverse=True)
    assert labels[0]["text"] == run.predict([item])[0].text


def test_every_word_has_its_labels(tmp_path: Path) -> None:
    run = labelling("tag", tmp_path, "lstm")
    found = view(run, "a b c", "labels")
    assert found["words"] == ["a", "b", "c"]
    best = [one["labels"][0]["text"] for one in found["labels"]]
    assert " ".join(best) == run.predict("a b c").text


def test_a_view_is_json_and_leaves_the_network_in_its_mode(translator: Run) -> None:
    translator.network.train()
    try:
        for kind in kinds(translator):
            json.dumps(view(translator, "abc", kind), allow_nan=False)
        assert all(module.training for module in translator.network.modules())
    finally:
        translator.network.eval()


def test_a_layer_and_a_head_are_chosen(translator: Run) -> None:
    whole = view(translator, "abc", "attention", target="cba")
    assert (whole["rows"], whole["columns"]) == ("target", "source")
    heads = [
        view(translator, "abc", "attention", target="cba", layer=0, head=head)["map"]
        for head in range(whole["modules"][0]["heads"])
    ]
    mean = view(translator, "abc", "attention", target="cba", layer=0)["map"]
    assert torch.allclose(torch.tensor(heads).mean(0), torch.tensor(mean), atol=1e-4)
    small = view(translator, "abc", "attention", target="cba", thumbs=False)
    assert "thumbs" not in small["modules"][0]
    assert small["map"] == whole["map"]
    types = {module["type"] for module in whole["modules"]}
    assert types == {"self", "cross"}


@pytest.mark.parametrize("decoder", ["transformer", "lstm_additive_cell", "gru_off"])
def test_a_copying_run_shows_what_it_copies_and_its_importance(
    decoder: str, tmp_path: Path
) -> None:
    joint = {"kind": "translate", "joint": True}
    run = small_run(tmp_path, decoder, task=joint, copy=True)
    assert "attention" in kinds(run)
    found = view(run, "abc", "attention", target="cba", ablate=True)
    (copy,) = (module for module in found["modules"] if module["type"] == "copy")
    assert (copy["rows"], copy["columns"], copy["shape"]) == ("target", "source", [4, 4])
    case = generated(run, "abc", "cba")
    with torch.inference_mode():
        full = float(case.forward(1).sum())
        run.network.decoder.pointer.gate.weight.zero_()
        run.network.decoder.pointer.gate.bias.fill_(-1e4)
        closed = float(case.forward(1).sum())
    assert copy["importance"] == [pytest.approx(full - closed, abs=1e-3)]


def test_two_sources_are_named_one_after_the_other(tmp_path: Path) -> None:
    task, network = small_task("inflect", tmp_path, "transformer")
    run = Run(tmp_path, task.config, task, network)
    found = view(run, "abc\tV;PST", "attention", target="ab")
    assert found["source"][:3] == ["a", "b", "c"]
    starts = {module["column_start"] for module in found["modules"] if module["type"] == "self"}
    assert len(found["source"]) == len(found["coverage"])
    assert starts <= set(range(len(found["source"])))


def test_a_map_of_one_source_has_the_names_of_that_source(tmp_path: Path) -> None:
    late = {"kind": "translate", "fusion": "late"}
    task, network = small_task("inflect", tmp_path, "transformer", task=late)
    run = Run(tmp_path, task.config, task, network)
    layers = view(run, "abc\tV;PST", "attention", target="ab")["modules"]
    starts = [module["column_start"] if module["type"] == "self" else 0 for module in layers]
    found = view(run, "abc\tV;PST", "attention", target="ab", layer=starts.index(max(starts)))
    rows, columns = axis_names(found)
    assert max(starts) > 0
    assert rows == columns == found["source"][max(starts) :]
    lines = text_of(found).splitlines()
    assert lines[1].split() == [name.strip() for name in columns]
    assert [line.split()[0] for line in lines[2 : 2 + len(rows)]] == [n.strip() for n in rows]


def test_mistakes_are_said(translator: Run, tmp_path: Path) -> None:
    for kind in ("attention", "tree", "tokens", "saliency"):
        with pytest.raises(DataError, match="empty"):
            view(translator, "  ", kind)
    with pytest.raises(ConfigError, match="no view 'mood': choose one of"):
        view(translator, "abc", "mood")
    with pytest.raises(ConfigError, match="layer 99: there are"):
        view(translator, "abc", "attention", layer=99)
    with pytest.raises(ConfigError, match="head 99"):
        view(translator, "abc", "attention", layer=0, head=99)
    with pytest.raises(ConfigError, match="no labels"):
        view(translator, "abc", "labels")
    with pytest.raises(ConfigError, match="width"):
        view(translator, "abc", "saliency", wdith=3)
    with pytest.raises(ConfigError, match="method 'guess'"):
        view(translator, "abc", "saliency", method="guess")
    with pytest.raises(ConfigError, match="position 99"):
        view(translator, "abc", "saliency", position=99)
    with pytest.raises(ConfigError, match="no tree"):
        view(translator, "abc", "tree", kind="sample")
    alone = small_run(tmp_path, kind="language", decoder="gru_off")
    assert "attention" not in kinds(alone)
    with pytest.raises(ConfigError, match="no attention"):
        view(alone, "abc", "attention")


def test_what_is_longer_than_the_positions_is_said(tmp_path: Path) -> None:
    run = small_run(tmp_path, decoder="transformer_learned", encoder="transformer_learned")
    for kind in ("attention", "tokens", "tree", "saliency"):
        with pytest.raises(DataError, match="positions"):
            view(run, "ab" * 40, kind)
    with pytest.raises(DataError, match="positions"):
        view(run, "ab", "tokens", target="ab" * 40)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("saliency", {"method": "integrated", "target": "cba"}),
        ("saliency", {"method": "occlusion", "target": "cba"}),
        ("flow", {"target": "cba"}),
        ("attention", {"ablate": True, "target": "cba"}),
        ("tokens", {}),
        ("tree", {}),
    ],
)
def test_a_view_ends_when_nobody_waits_for_it(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    run = small_run(tmp_path, encoder="lstm")
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > 2

    with pytest.raises(StoppedError), stopped_by(cancelled):
        view(run, "abcd", kind, **options)
    assert len(asked) <= 6
    assert view(run, "abcd", kind, **options)["kind"] == kind


def test_no_output_is_larger_than_is_permitted(translator: Run, writer: Run) -> None:
    with at_most(6):
        assert view(translator, "abc", "attention", target="cbacb")["text"] == "cbacb"
        for kind in ("attention", "tokens", "saliency", "flow"):
            with pytest.raises(
                TooLargeError, match="the output has 7 tokens: views are of 6 at most"
            ):
                view(translator, "abc", kind, target="cbacba")
        with pytest.raises(TooLargeError, match="7 tokens"):
            view(writer, "abcd", "tokens", target="ef")


@pytest.mark.parametrize("kind", ["translate", "classify", "tag"])
def test_the_saliency_of_an_ensemble_is_that_of_its_first_member(kind: str, tmp_path: Path) -> None:
    task, first = small_task(kind, tmp_path, "lstm")
    other = small_task(kind, tmp_path, "lstm")[1]
    alone = Run(tmp_path, task.config, task, first)
    both = Run(tmp_path, task.config, task, build_ensemble([first, other]))
    item = "a b c" if kind == "tag" else "abc"
    target = {"target": both.predict([item])[0].text}
    for method in ("gradient", "occlusion", "integrated"):
        found = view(both, item, "saliency", method=method, **target)
        assert found.pop("network") == "by the first of the 2 networks of the ensemble"
        assert found == view(alone, item, "saliency", method=method, **target)
    found = view(both, item, "flow", **target)
    assert "first of the 2 networks" in text_of(found)
    assert found["inputs"] == view(alone, item, "flow", **target)["inputs"]


def test_large_matrices_are_bytes() -> None:
    values = torch.rand(130, 140) * 3 - 1
    packed = matrix(values)
    assert packed["shape"] == [130, 140]
    assert abs(unpacked(packed) - values.numpy()).max() <= 3 / 255
    small = torch.tensor([[0.5, 0.25]])
    assert matrix(small) == [[0.5, 0.25]]
    assert unpacked(bytes_of(small)) == pytest.approx(small.numpy(), abs=0.002)
