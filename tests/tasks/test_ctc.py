"""A run whose encoder has a CTC head: what the head says takes part in every search."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from saccade import config as c
from saccade.config import parse
from saccade.data.lines import Example
from saccade.errors import ConfigError
from saccade.metrics.text import similarity
from saccade.models.ensembles import build_ensemble
from saccade.models.networks import Generator
from saccade.runs.run import Run
from saccade.tasks.task import Query, Request
from tests.small_runs import TEXTS, TORCH, said, small_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return small_run(tmp_path / "run", encoder="transformer", train={"ctc": 0.4, "epochs": 1})


SEARCHES: list[dict[str, Any]] = [{}, {"width": 1}, {"sample": True}, {"groups": 5}]
SEARCHES += [{"coverage": 0.2}, {"risk": "metric", "candidates": 4}, {"no_repeat": 2}]


@pytest.mark.parametrize("settings", SEARCHES, ids=str)
def test_batches_change_nothing_and_a_score_is_the_decoders_own(
    run: Run, settings: dict[str, Any]
) -> None:
    found = run.predict(TEXTS, settings=TORCH | settings)
    rows = [Example((text,), one.text) for text, one in zip(TEXTS, found, strict=True)]
    for one, (log_p, _) in zip(found, run.task.score(run.network, rows), strict=True):
        assert not one.problem
        assert one.score == pytest.approx(log_p, abs=1e-3)
    few = run.predict(TEXTS[:7], settings=TORCH | settings | {"batch_tokens": 7})
    assert said(few) == said(found)[:7]


@pytest.mark.parametrize("settings", SEARCHES, ids=str)
def test_a_share_of_0_is_the_search_without_and_the_default_is_that_of_training(
    run: Run, settings: dict[str, Any]
) -> None:
    own = said(run.predict(TEXTS, settings=TORCH | settings))
    assert own == said(run.predict(TEXTS, settings=TORCH | settings | {"ctc": 0.4}))
    without = said(run.predict(TEXTS, settings=TORCH | settings | {"ctc": 0.0}))
    head, run.network.monotone = run.network.monotone, None
    assert without == said(run.predict(TEXTS, settings=TORCH | settings | {"ctc": 0.0}))
    run.network.monotone = head
    assert own != without


def test_members_of_an_ensemble_are_heard_together(run: Run, tmp_path: Path) -> None:
    plain = small_run(tmp_path / "plain", encoder="transformer")
    for other in (run, plain):  # the same again changes nothing; one without CTC has no say in it
        found = said(run.predict(TEXTS, settings=TORCH, others=[other]))
        assert (found == said(run.predict(TEXTS, settings=TORCH))) == (other is run)


def test_seeds_of_one_run_are_heard_as_members_given_beside_it(run: Run, tmp_path: Path) -> None:
    train = {"ctc": 0.4, "epochs": 1}
    other = small_run(tmp_path / "other", encoder="transformer", train=train)
    first, second = run.network, other.network
    assert isinstance(first, Generator)
    assert isinstance(second, Generator)
    assert second.monotone is not None
    nn.init.normal_(second.monotone.output.weight, 0.0, 3.0)  # its own say is another, and loud
    beside = run.predict(TEXTS, settings=TORCH, others=[other])
    network = build_ensemble([first, second])
    request = Request(run.config.decode.model_copy(update=TORCH))
    joined = run.task.predict(network, [Query((text,)) for text in TEXTS], request)
    assert said(joined) == said(beside)
    assert [one.score for one in joined] == pytest.approx([one.score for one in beside], abs=1e-4)


def test_processes_and_eight_bits_hear_the_same(run: Run) -> None:
    found = run.predict(TEXTS, settings=TORCH)
    assert said(run.predict(TEXTS, settings=TORCH | {"workers": 2})) == said(found)
    rough = run.predict(TEXTS, settings=TORCH | {"int8": True})
    assert sum(a != b for a, b in zip(said(rough), said(found), strict=True)) <= len(TEXTS) // 5
    run.close()


def test_an_answer_begins_as_it_is_told_and_comes_piece_by_piece(run: Run) -> None:
    led = run.predict(TEXTS[:5], settings=TORCH, prefixes="cb")
    assert all(one.text.startswith("cb") for one in led if not one.problem)
    assert any(not one.problem for one in led)
    whole = run.predict(TEXTS[0], width=1, settings=TORCH).text
    assert "".join(run.stream_text(TEXTS[0])) == whole


def test_ctc_is_refused_where_there_is_none(tmp_path: Path) -> None:
    plain = small_run(tmp_path)
    with pytest.raises(ConfigError, match=r"decode\.ctc: this run was trained without"):
        plain.predict(TEXTS, settings=TORCH | {"ctc": 0.3})
    raw: dict[str, Any] = {"task": {"kind": "translate"}, "decode": {"ctc": 0.3}}
    raw |= {"encoder": {"kind": "recurrent"}, "decoder": {"kind": "recurrent"}}
    with pytest.raises(ConfigError, match=r"requires train\.ctc"):
        parse(raw, "x.toml")


def test_only_torch_serves_a_search_with_ctc(run: Run) -> None:
    pytest.importorskip("ctranslate2")
    names = {
        share: type(run.engines.choose(Request(c.Beam(ctc=share)), 1)).__name__
        for share in (None, 0.0, 0.2)
    }
    assert names == {None: "LocalEngine", 0.0: "CTranslate2Engine", 0.2: "LocalEngine"}
    with pytest.raises(ConfigError, match=r"decode\.ctc"):
        run.predict(TEXTS, settings={"engine": "ctranslate2"})


@pytest.mark.parametrize("kind", ["char", "word"])
def test_speech_is_measured_by_words_and_by_characters(kind: str, tmp_path: Path) -> None:
    target = {"kind": kind, "size": 50}
    plain = small_run(
        tmp_path, task={"kind": "translate", "target": target, "metric": "word_error"}
    )
    gold = [Example(("x",), "ab cd"), Example(("y",), "b a")]
    found = plain.task.measured(gold, ["ab c", "b a"])
    assert found == {
        "word_error": 25.0,  # one of four
        "char_error": pytest.approx(12.5),  # one of eight, blanks among them
        "sequence_error": 50.0,
    }
    assert (plain.task.metric, plain.task.higher_is_better) == ("word_error", False)


def test_risk_by_word_and_by_character_errors() -> None:
    assert similarity("word_error")("a bc", ["a b", "a bc"]) == [50.0, 100.0]
    assert similarity("char_error")("abcd", ["abce", "abcd"]) == [75.0, 100.0]
