"""Summaries: ROUGE, tokens in common, compression."""

import sys

import pytest

from saccade.errors import ConfigError
from saccade.metrics.summaries import compression, rouge, token_f1


def test_rouge_of_a_worked_example() -> None:
    """The one of Lin 2004; "kill" and "killed" have one stem."""
    found = rouge(["police kill the gunman"], [["police killed the gunman"]])
    assert found == {"rouge1": 100.0, "rouge2": 100.0, "rougeL": 100.0}
    found = rouge(["the gunman kill police"], [["police killed the gunman"]])
    assert found["rouge1"] == pytest.approx(100.0)
    assert found["rouge2"] == pytest.approx(100 / 3)
    assert found["rougeL"] == pytest.approx(50.0)


def test_of_several_references_the_best_counts() -> None:
    both = rouge(["a b c"], [["x y z", "a b d"]])
    assert both == rouge(["a b c"], [["a b d"]])
    assert token_f1(["a b c"], [["x y z", "a b d"]]) == pytest.approx(100 * 2 / 3)


def test_tokens_in_common_count_as_often_as_they_come() -> None:
    assert token_f1(["a a b"], [["a b b"]]) == pytest.approx(100 * 2 * 2 / 6)
    assert token_f1(["", "x"], [[""], ["y"]]) == pytest.approx(50.0)


def test_compression_is_characters_for_each_hundred_of_the_sources() -> None:
    assert compression(["abcd", "abcdef"], ["ab", "abc"]) == pytest.approx(50.0)


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(ConfigError, match=r"pip install 'saccade\[metrics\]'"):
        rouge(["a"], [["a"]])
