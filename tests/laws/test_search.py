"""What must hold for every search over every decoder."""

from itertools import product

import pytest
import torch
from torch import Tensor

from saccade.decoding.search import Hypothesis, Length, beam_search, greedy, token_log_probs
from saccade.decoding.steps import ban
from saccade.errors import ConfigError
from saccade.nn.padded import Padded
from tests.architectures import SPEAKERS, VOCAB, begin, source_batch

END = 3


def start(decoder: str, lengths: tuple[int, ...] = (7, 3, 5)) -> tuple[object, object, Tensor]:
    step, state = begin(decoder, source_batch(lengths))
    return step, state, torch.full((len(lengths),), 2)


def same(one: list[Hypothesis], other: list[Hypothesis]) -> bool:
    tokens = [h.tokens for h in one] == [h.tokens for h in other]
    near = all(abs(a.score - b.score) < 1e-4 for a, b in zip(one, other, strict=True))
    return tokens and near


@pytest.mark.parametrize("decoder", SPEAKERS)
def test_greedy_is_a_beam_of_one(decoder: str) -> None:
    step, state, first = start(decoder)
    limits = [9, 4, 6]
    one = greedy(step, state, first, end=END, limits=limits)
    beam = beam_search(step, state, first, end=END, width=1, limits=limits)
    assert same(one, [hypotheses[0] for hypotheses in beam])


@pytest.mark.parametrize("decoder", SPEAKERS)
def test_every_score_is_what_teacher_forcing_gives(decoder: str) -> None:
    step, state, first = start(decoder, (5,))
    for hypothesis in beam_search(step, state, first, end=END, width=4, limits=[6])[0]:
        tokens = torch.tensor([[*hypothesis.tokens, END]])
        forced = token_log_probs(step, state, tokens, first)
        assert hypothesis.score == pytest.approx(float(forced.sum()), abs=1e-4)


@pytest.mark.parametrize("decoder", SPEAKERS)
@pytest.mark.parametrize("width", [1, 3])
def test_a_batch_is_searched_as_its_rows_are(decoder: str, width: int) -> None:
    lengths, limits = (7, 3, 5, 1), [8, 3, 5, 7]
    step, state, first = start(decoder, lengths)
    together = beam_search(step, state, first, end=END, width=width, limits=limits)
    source = source_batch(lengths)
    for b, length in enumerate(lengths):
        alone = Padded(source.values[b : b + 1, :length], source.lengths[b : b + 1])
        _, one = begin(decoder, alone)
        found = beam_search(step, one, first[:1], end=END, width=width, limits=limits[b : b + 1])
        assert same(found[0], together[b])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("decoder", ["lstm_additive_cell", "gru_off", "transformer", "ensemble"])
def test_a_wide_enough_beam_is_exhaustive(decoder: str, alpha: float) -> None:
    letters, limit = [5, 6, 7], 3
    step, state, first = start(decoder, (4,))
    banned = [i for i in range(VOCAB) if i not in (*letters, END)]
    step = ban(step, banned)  # type: ignore[arg-type]
    every = []
    for n in range(limit + 1):
        for text in product(letters, repeat=n):
            forced = token_log_probs(step, state, torch.tensor([[*text, END]]), first)
            score = float(forced.sum())
            every.append(Hypothesis(list(text), score, score / (n + 1) ** alpha))
    every.sort(key=lambda h: -h.value)
    found = beam_search(
        step, state, first, end=END, width=200, limits=[limit], length=Length("power", alpha)
    )[0]
    assert found[0].tokens == every[0].tokens
    assert found[0].score == pytest.approx(every[0].score, abs=1e-4)


def test_a_beam_wider_than_the_vocabulary_works() -> None:
    step, state, first = start("transformer")
    found = beam_search(step, state, first, end=END, width=3 * VOCAB, limits=[2, 1, 0])
    assert [len(hypotheses) > 0 for hypotheses in found] == [True, True, True]
    assert found[2][0].tokens == []


def test_outputs_respect_their_limits_and_bans() -> None:
    step, state, first = start("lstm_dot_output")
    limits = [5, 2, 4]
    step = ban(step, [0, 1, 2, 4, 11])  # type: ignore[arg-type]
    for hypotheses, limit in zip(
        beam_search(step, state, first, end=END, width=4, limits=limits), limits, strict=True
    ):
        for hypothesis in hypotheses:
            assert len(hypothesis.tokens) <= limit
            assert not {0, 1, 2, 4, 11, END} & set(hypothesis.tokens)


def test_a_beam_of_no_width_is_refused() -> None:
    step, state, first = start("transformer")
    with pytest.raises(ConfigError, match="at least 1"):
        beam_search(step, state, first, end=END, width=0, limits=[2, 2, 2])
