"""The evaluation of a language model, against the probability of its text in one piece."""

from math import log
from pathlib import Path
from typing import Any

import pytest
import torch

from saccade.data.lines import Example
from tests.small_runs import small_task

LINES = ["ab cd abc", "dd a", "", "cab bad dab cab", "a b c d"]


def nll_in_one_piece(task: Any, network: Any, rows: list[Example]) -> tuple[float, int]:
    ids = torch.tensor(task.encode(rows).target.ids.tolist())
    with torch.inference_mode():
        logits, _ = network.decoder(ids[None, :-1], network.decoder.start(None, 1))
        log_probs = logits[0].log_softmax(-1).gather(1, ids[1:, None])
    return -float(log_probs.sum()), len(ids) - 1


@pytest.mark.parametrize(("tokenizer", "context"), [("char", 6), ("word", 3)])
@pytest.mark.parametrize("decoder", ["gru_off", "lstm_off"])
def test_the_state_is_carried_through_all_of_a_text(
    decoder: str, tokenizer: str, context: int, tmp_path: Path
) -> None:
    """A text of six contexts and more has the loss that it has in one piece."""
    settings = {"kind": "language", "context": context, "tokenizer": {"kind": tokenizer}}
    task, network = small_task("language", tmp_path, decoder=decoder, task=settings)
    rows = [Example((line,), None) for line in LINES]
    nll, count = nll_in_one_piece(task, network, rows)
    assert 5 * context < count < 8 * context  # beyond that it is read as several rows
    found = task.evaluate(network, task.encode(rows), rows, quick=False)
    assert found["loss"] == pytest.approx(nll / count, rel=1e-4)


@pytest.mark.parametrize("tokenizer", ["char", "word", "bpe"])
def test_bits_are_of_characters_whatever_the_tokens_are(tokenizer: str, tmp_path: Path) -> None:
    """All characters count but the first, each line's end as one."""
    settings = {"kind": "language", "tokenizer": {"kind": tokenizer, "size": 40}}
    task, network = small_task("language", tmp_path, decoder="gru_off", task=settings)
    rows = [Example((line,), None) for line in LINES]
    nll, count = nll_in_one_piece(task, network, rows)
    characters = len("\n".join(LINES) + "\n") - 1
    assert (count == characters) == (tokenizer == "char")
    found = task.evaluate(network, task.encode(rows), rows, quick=False)
    assert found["bits_per_character"] == pytest.approx(nll / log(2) / characters, rel=1e-4)


def test_how_many_tokens_are_unknown_is_told_where_there_are_some(tmp_path: Path) -> None:
    """A vocabulary without the rare words makes a text look easy."""
    settings = {"kind": "language", "tokenizer": {"kind": "word", "size": 40}}
    task, network = small_task("language", tmp_path, decoder="gru_off", task=settings)
    rows = [Example(("ab abc ab",), None)]
    assert "unknown" not in task.evaluate(network, task.encode(rows), rows, quick=False)
    rows.append(Example(("never-heard-of",), None))
    found = task.evaluate(network, task.encode(rows), rows, quick=False)
    assert found["unknown"] == pytest.approx(100 / 6)  # each line has an end
