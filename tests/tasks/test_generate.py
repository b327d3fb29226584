"""What a request does to predictions: settings, prefixes, ensembles, risk, details, engines."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from saccade.data.lines import Example
from saccade.errors import ConfigError, DataError
from saccade.metrics.text import similarity
from saccade.runs.run import Run
from saccade.tasks.generate import GeneratingTask
from tests.small_runs import TEXTS, TORCH, said, small_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return small_run(tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"width": 1},
        {"sample": True, "temperature": 1.5, "top_k": 4},
        {"sample": True},
        {"groups": 5},
        {"coverage": 0.2},
        {"length": "gnmt", "alpha": 0.6},
        {"length": "none"},
        {"no_repeat": 2, "repetition": 1.5, "min_len": 2},
        {"risk": "chrf", "candidates": 4},
        {"risk": "metric", "candidates": 4, "sample": True},
        {"stop_after": 2},
    ],
    ids=str,
)
def test_every_score_is_the_models_own_and_batches_change_nothing(
    run: Run, settings: dict[str, Any]
) -> None:
    found = run.predict(TEXTS, settings=TORCH | settings)
    rows = [Example((text,), one.text) for text, one in zip(TEXTS, found, strict=True)]
    scores = run.task.score(run.network, rows)
    assert isinstance(run.task, GeneratingTask)
    again = run.task.output.encode([one.text for one in found])
    for text, one, (log_p, count), ids in zip(TEXTS, found, scores, again, strict=True):
        assert not one.problem, text
        if run.task.output.decode([ids])[0] == one.text and len(ids) + 1 == count:
            assert one.score == pytest.approx(log_p, abs=1e-3)
    few = run.predict(TEXTS[:7], settings=TORCH | settings | {"batch_tokens": 7})
    assert said(few) == said(found)[:7]


def test_outputs_come_in_the_order_of_inputs(run: Run) -> None:
    texts = ["abcdab", "", "d", "abc", "   ", "cc", "abcd"] * 2
    for settings in (TORCH, TORCH | {"workers": 2}, TORCH | {"batch_tokens": 9}):
        forward = said(run.predict(texts, settings=settings))
        assert said(run.predict(texts[::-1], settings=settings)) == forward[::-1]
        assert [bool(text.strip()) for text in texts] == [bool(text) for text in forward]
        assert said(list(run.stream(texts, run.request(settings=settings), at_once=3))) == forward


def test_a_prefix_that_cannot_be_said_costs_its_own_line_alone(run: Run) -> None:
    found = run.predict(["abc"] * 3, settings=TORCH, prefixes=["a", "日本", "b"])
    assert [bool(one.problem) for one in found] == [False, True, False]
    assert [one.text[:1] for one in found] == ["a", "", "b"]


def test_a_beam_lists_its_best_in_order(run: Run) -> None:
    (found,) = run.predict(["abcd"], width=6, nbest=4, settings=TORCH)
    ranked = [(found.text, found.score), *found.others]
    assert len(ranked) == 4
    assert len({text for text, _ in ranked}) == 4
    values = [score / (len(text) + 1) for text, score in ranked]  # a character is a token here
    assert all(a >= b - 1e-4 for a, b in pairwise(values))


def test_a_sample_is_drawn_as_often_as_asked(run: Run) -> None:
    settings = TORCH | {"sample": True}
    (found,) = run.predict(["abcd"], nbest=8, settings=settings)
    texts = {found.text, *(text for text, _ in found.others)}
    assert len(found.others) == 7
    assert len(texts) > 2
    assert said(run.predict(["abcd"], settings=settings)) == [found.text]
    other = run.predict(["abcd"], nbest=8, settings=settings | {"seed": 2})[0]
    assert {text for text, _ in other.others} != {text for text, _ in found.others}


def test_outputs_begin_as_they_are_told(run: Run) -> None:
    prefixes = ["ba", "", "d", "cc", "a"]
    for width in (1, 3):
        found = run.predict(TEXTS[:5], width, settings=TORCH, prefixes=prefixes)
        assert all(o.text.startswith(p) for o, p in zip(found, prefixes, strict=True))
    with pytest.raises(ConfigError, match="outside the vocabulary"):
        run.check_prefix("日本")
    with pytest.raises(DataError, match="fewer prefixes than inputs"):
        run.predict(["abc", "d"], prefixes=["a"])


def test_outputs_keep_to_a_list(run: Run, tmp_path: Path) -> None:
    words = ["ab", "dcba", "aaa"]
    (tmp_path / "list.txt").write_text("\n".join([*words, "日本"]) + "\n")
    settings = TORCH | {"only": str(tmp_path / "list.txt")}
    for more in ({}, {"width": 1}, {"sample": True}):
        assert set(said(run.predict(TEXTS, settings=settings | more))) <= set(words)
    found = run.predict(["abc"], nbest=3, settings=settings | {"width": 3})[0]
    assert {found.text, *(text for text, _ in found.others)} == set(words)
    (tmp_path / "none.txt").write_text("日本\n")
    with pytest.raises(ConfigError, match="can write none"):
        run.predict(["abc"], settings=TORCH | {"only": str(tmp_path / "none.txt")})
    with pytest.raises(DataError, match=r"missing\.txt"):
        run.predict(["abc"], settings=TORCH | {"only": str(tmp_path / "missing.txt")})


def test_a_list_that_was_edited_is_read_again(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    for words in ("ab\n", "ba\n"):
        path.write_text(words)
        for workers in (1, 2):
            settings = TORCH | {"only": str(path), "workers": workers}
            assert said(run.predict(["abc", "d"], settings=settings)) == [words.strip()] * 2
    run.close()


def test_what_cannot_be_said_leaves_its_line_empty(run: Run, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("abcdabcd\n")
    settings = TORCH | {"only": str(tmp_path / "long.txt"), "max_len": 4}
    for more in ({}, {"width": 1}):
        (found,) = run.predict(["abc"], settings=settings | more)
        assert found.text == ""
        assert "constraints" in found.problem


def test_banned_words_never_come(run: Run) -> None:
    free = said(run.predict(TEXTS, settings=TORCH))
    letter = max("abcd", key="".join(free).count)
    bound = said(run.predict(TEXTS, settings=TORCH | {"banned": [letter]}))
    assert letter in "".join(free)
    assert letter not in "".join(bound)
    with pytest.raises(ConfigError, match="is not in the vocabulary"):
        run.predict(["abc"], settings=TORCH | {"banned": ["日"]})


def test_an_ensemble_with_itself_says_the_same(run: Run, tmp_path: Path) -> None:
    alone = run.predict(TEXTS, settings=TORCH)
    both = run.predict(TEXTS, settings=TORCH, others=[run])
    assert said(alone) == said(both)
    other = small_run(tmp_path / "other", "lstm_additive_cell", encoder="transformer")
    mixed = run.predict(TEXTS, settings=TORCH, others=[other])
    assert not any(one.problem for one in mixed)


def test_voices_of_another_vocabulary_are_refused(run: Run, tmp_path: Path) -> None:
    words = {"kind": "translate", "target": {"kind": "word"}}
    other = small_run(tmp_path / "other", task=words)
    with pytest.raises(ConfigError, match="vocabularies differ"):
        run.predict(["abc"], others=[other])


def test_the_nearest_to_all_is_chosen() -> None:
    from saccade.decoding.risk import least_risk

    texts = ["zzzz", "abcd", "abce", "abcf"]
    for name in ("chrf", "bleu", "token_error", "sequence_error"):
        spaced = [" ".join(text) for text in texts]
        order = least_risk(spaced, [0.0] * 4, similarity(name))
        assert order[-1] == 0 or name == "sequence_error"
    assert least_risk(["a", "b", "a"], [0.0] * 3, similarity("sequence_error"))[0] == 0
    assert least_risk(["a", "b"], [-5.0, 0.0], similarity("sequence_error"))[0] == 1


def test_details_add_up(run: Run) -> None:
    for width in (1, 4):
        plain = run.predict(TEXTS[:5], width, settings=TORCH)
        found = run.predict(TEXTS[:5], width, settings=TORCH, details=True)
        assert said(plain) == said(found)
        for one in found:
            assert sum(token.log_p for token in one.tokens) == pytest.approx(one.score, abs=1e-3)
            assert "".join(token.text for token in one.tokens[:-1]) == one.text
            for token in one.tokens:
                scores = [score for _, score in token.alternatives]
                assert len(scores) == 5
                assert scores == sorted(scores, reverse=True)
                assert token.log_p <= scores[0] + 1e-5
            assert one.tree is not None
            assert any(node.fate == "ended" for node in one.tree.nodes)
        assert all(one.tree is None and not one.tokens for one in plain)


@pytest.mark.parametrize("kind", ["translate", "language"])
def test_a_text_comes_piece_by_piece(kind: str, tmp_path: Path) -> None:
    run = small_run(tmp_path, "gru_off" if kind == "language" else "transformer", kind=kind)
    for text in ("ab", "cda"):
        whole = run.predict([text], 1, settings=TORCH)[0].text
        pieces = list(run.stream_text(text))
        assert "".join(pieces) == whole
        assert len(pieces) > 1
        drawn = run.predict([text], settings=TORCH | {"sample": True})[0].text
        assert "".join(run.stream_text(text, {"sample": True})) == drawn


def test_an_input_beyond_the_positions_leaves_its_line_empty(tmp_path: Path) -> None:
    run = small_run(tmp_path, encoder="transformer_learned")
    found = run.predict(["ab", "a" * 60, "cd"])
    assert [bool(one.problem) for one in found] == [False, True, False]
    assert "positions" in found[1].problem
    assert found[0].text == run.predict(["ab"])[0].text
    context = {"kind": "language", "context": 40}
    model = small_run(tmp_path / "model", "transformer_learned", kind="language", task=context)
    found = model.predict(["ab", "a" * 60, "cd"])
    assert [bool(one.problem) for one in found] == [False, True, False]
    with pytest.raises(DataError, match="positions"):
        list(model.stream_text("a" * 60))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 0}, "decode.width"),
        ({"alpha": float("nan")}, "decode.alpha"),
        ({"groups": 3}, "divisible by groups"),
        ({"temperature": 0.0}, "decode.temperature"),
        ({"top_p": 1.5}, "decode.top_p"),
        ({"widht": 3}, "width'"),
        ({"engine": "onnx"}, "choose one of|did you mean"),
        ({"model": "nowhere"}, "not a run"),
    ],
)
def test_bad_settings_are_named(run: Run, settings: dict[str, Any], message: str) -> None:
    from saccade.errors import SaccadeError

    with pytest.raises(SaccadeError, match=message):
        run.predict(["abc"], settings=settings)


def test_more_than_the_beam_is_wide_is_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="finds at most 5; ask for fewer, or set the width to 9"):
        run.predict(["abc"], nbest=9)


def test_a_model_of_the_same_vocabulary_can_be_listened_to(run: Run, tmp_path: Path) -> None:
    """It is trained with the vocabulary of the run, and moves what the run says."""
    import saccade

    assert isinstance(run.task, GeneratingTask)
    run.task.save(tmp_path)
    text = tmp_path / "mono.txt"
    text.write_text("".join(f"{'abcd' * 3}\n" for _ in range(40)))
    settings = {
        "train.steps": 30,
        "task.vocabulary": str(tmp_path / "target.json"),
        "decoder.kind": "recurrent",
        "decoder.dim": 16,
    }
    saccade.train(text, task="language", out=tmp_path / "lm", settings=settings, quiet=True)
    alone = run.predict(TEXTS, settings=TORCH)
    loud = TORCH | {"model": str(tmp_path / "lm"), "model_weight": 20.0}
    found = run.predict(TEXTS, settings=loud)
    assert said(found) != said(alone)
    assert run.predict(TEXTS, settings=loud | {"model_weight": 0.0})[0].text == alone[0].text
    scores = run.task.score(run.network, [Example((TEXTS[0],), found[0].text)])
    assert found[0].score == pytest.approx(scores[0][0], abs=1e-3)


def test_exact_search_reports_both_kinds_of_error(run: Run, tmp_path: Path) -> None:
    from saccade.tasks.exact import WIDTHS, summary

    (tmp_path / "some.tsv").write_text("abc\tzz\nd\ta\nabc\tq\n")
    lines = list(run.compare([tmp_path / "some.tsv"], {"max_len": 3, "alpha": 0.0}))
    assert len(lines) == 2
    for line in lines:
        assert line.proved
        assert tuple(line.beams) == WIDTHS
        assert all(value <= line.value + 1e-6 for _, _, value in line.beams.values())
        example = Example((("abc", "d")[lines.index(line)],), line.text)
        scores = run.task.score(run.network, [example])
        assert line.score == pytest.approx(scores[0][0], abs=1e-3)
    assert lines[0].references == ("zz", "q")
    report = summary(lines)
    assert report["proved"] == 100.0
    assert report["widths"][50]["search_error"] <= report["widths"][1]["search_error"]
    with pytest.raises(ConfigError, match="budget"):
        list(run.compare([tmp_path / "some.tsv"], budget=0))


def test_what_predicts_can_be_measured(run: Run, tmp_path: Path) -> None:
    said_now = {text: run.predict([text], 1, settings=TORCH)[0].text for text in set(TEXTS)}
    (tmp_path / "own.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in said_now.items() if b))
    greedy = TORCH | {"width": 1}
    assert run.evaluate(tmp_path / "own.tsv", settings=greedy)["sequence_error"] == 0.0
    alone = run.evaluate(tmp_path / "own.tsv", settings=greedy | {"max_len": 1})
    assert alone["sequence_error"] > 0.0
    both = run.evaluate(tmp_path / "own.tsv", settings=greedy, others=[run])
    assert both["sequence_error"] == 0.0
