"""What must hold for exact search, sampling and every change of a step, over every decoder."""

from collections import Counter
from itertools import pairwise
from math import exp, inf, log

import pytest
import torch
from torch import Tensor

from saccade.decoding import steps
from saccade.decoding.exact import exact_search, exhaustive
from saccade.decoding.sample import sample
from saccade.decoding.search import (
    LOG_P,
    Step,
    beam_search,
    greedy,
    likeliest,
    token_log_probs,
    walk,
)
from saccade.decoding.steps import stepper
from saccade.errors import ConfigError
from saccade.nn.padded import Padded
from saccade.nn.state import select
from tests.architectures import SPEAKERS, VOCAB, begin, generator, source_batch
from tests.decoding.conftest import LENGTHS

END, LETTERS, LIMIT = 3, (5, 6, 7), 3
BANNED = [i for i in range(VOCAB) if i not in (*LETTERS, END)]


def start(decoder: str, lengths: tuple[int, ...] = (4,)) -> tuple[Step, object, Tensor]:
    """The step of a small model that knows three letters, and where it begins."""
    step, state = begin(decoder, source_batch(lengths), BANNED)
    return step, state, torch.full((len(lengths),), 2)


def forced(step: Step, state: object, first: Tensor, tokens: list[int]) -> float:
    return float(token_log_probs(step, state, torch.tensor([[*tokens, END]]), first).sum())


@pytest.mark.parametrize("decoder", SPEAKERS)
def test_a_wide_enough_beam_is_exact_is_exhaustive(decoder: str) -> None:
    step, state, first = start(decoder)
    for length in LENGTHS:
        every = exhaustive(step, state, first, end=END, limit=LIMIT, length=length)
        assert len(every) == 1 + 3 + 9 + 27
        assert sum(exp(one.score) for one in every) <= 1 + 1e-4
        (beam,) = beam_search(
            step, state, first, end=END, width=200, limits=[LIMIT], length=length, nbest=5
        )
        assert [one.tokens for one in beam[:5]] == [one.tokens for one in every[:5]]
        for order in ("depth", "best"):
            found = exact_search(
                step, state, first, end=END, limit=LIMIT, budget=500, length=length, order=order
            )
            assert found.proved
            assert found.verdict == "proved"
            assert found.best is not None
            assert found.best.tokens == every[0].tokens
            assert found.best.value == pytest.approx(every[0].value, abs=1e-4)
            score = forced(step, state, first, found.best.tokens)
            assert found.best.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("decoder", SPEAKERS)
def test_a_wider_budget_never_gives_a_worse_text_of_a_model(decoder: str) -> None:
    step, state, first = start(decoder)
    for order in ("depth", "best"):
        values = []
        for budget in (1, 3, 10, 50):
            found = exact_search(
                step, state, first, end=END, limit=LIMIT, budget=budget, length=LOG_P, order=order
            )
            values.append(found.best.value if found.best else -inf)
        assert found.proved
        assert all(b >= a - 1e-6 for a, b in pairwise(values))


@pytest.mark.parametrize("decoder", SPEAKERS)
def test_finished_rows_never_change(decoder: str) -> None:
    """A row that ends early is what it would be if nothing went on after it."""
    step, state, first = start(decoder, (7, 3, 5, 4))
    ended: set[int] = set()
    for taken in walk(step, state, first, end=END, limits=[1, 6, 3, 6], pick=likeliest):
        assert not ended & {row for row, _, _ in taken}
        ended |= {row for row, token, _ in taken if token == END}
    assert ended == {0, 1, 2, 3}
    for search in (greedy, lambda *a, **k: [some[0] for some in beam_search(*a, width=3, **k)]):
        short = search(step, state, first, end=END, limits=[1, 2, 1, 2])
        long = search(step, state, first, end=END, limits=[1, 2, 9, 9])
        for row in (0, 1):
            assert short[row].tokens == long[row].tokens
            assert short[row].score == pytest.approx(long[row].score, abs=1e-5)


# --- sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", SPEAKERS)
def test_samples_come_as_often_as_the_model_says(decoder: str) -> None:
    step, state, first = start(decoder)
    step = steps.tempered(step, 1.0)  # what is not banned adds up to 1
    count = 4000
    rows = torch.zeros(count, dtype=torch.long)
    found = sample(
        step,
        select(state, rows),
        first[rows],
        end=END,
        limits=[2] * count,
        seed=7,
        keys=range(count),
    )
    chances = {}
    for one in exhaustive(step, state, first, end=END, limit=2):
        log_p = token_log_probs(step, state, torch.tensor([[*one.tokens, END]]), first)[0]
        chances[tuple(one.tokens)] = exp(float(log_p[:2].sum()))  # at the limit it has to end
    assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
    seen = Counter(tuple(one.tokens) for one in found)
    assert set(seen) <= set(chances)
    likely = {text: count * p for text, p in chances.items() if count * p >= 5}
    chi = sum((seen[text] - n) ** 2 / n for text, n in likely.items())
    freedom = len(likely)
    assert chi < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("decoder", SPEAKERS)
def test_a_row_is_sampled_the_same_in_any_batch(decoder: str) -> None:
    lengths, limits = (7, 3, 5, 1), [8, 3, 5, 7]
    step, state, first = start(decoder, lengths)
    keys = [11, 5, 700, 0]
    together = sample(step, state, first, end=END, limits=limits, seed=3, keys=keys)
    again = sample(step, state, first, end=END, limits=limits, seed=3, keys=keys)
    assert together == again
    source = source_batch(lengths)
    for b, length in enumerate(lengths):
        alone = Padded(source.values[b : b + 1, :length], source.lengths[b : b + 1])
        _, one = begin(decoder, alone)
        (found,) = sample(
            step, one, first[:1], end=END, limits=limits[b : b + 1], seed=3, keys=keys[b : b + 1]
        )
        assert found.tokens == together[b].tokens
        assert found.score == pytest.approx(together[b].score, abs=1e-4)
        score = forced(step, one, first[:1], found.tokens)
        assert found.score == pytest.approx(score, abs=1e-4)


# --- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", ["lstm_additive_cell", "gru_off", "transformer"])
def test_rules_hold_in_a_beam_of_several_sources(decoder: str) -> None:
    step, state, first = start(decoder, (7, 3, 5))
    prefixes = [[5, 6], [], [7]]
    ruled = steps.no_repeat(steps.at_least(steps.prompted(step, prefixes), END, 3), 2)
    found = beam_search(ruled, state, first, end=END, width=4, limits=[8, 8, 8])
    for prefix, some in zip(prefixes, found, strict=True):
        assert some
        for one in some:
            assert len(one.tokens) >= 3
            assert one.tokens[: len(prefix)] == prefix
            pairs = list(zip(one.tokens, one.tokens[1:], strict=False))
            assert len(set(pairs)) == len(pairs)


# --- several models, groups, coverage -------------------------------------------------------------


def test_an_ensemble_is_the_mean_of_its_probabilities() -> None:
    net, other = generator("lstm", "transformer"), generator("lstm", "gru_off")
    with torch.inference_mode():
        source = source_batch((4, 2))
        one, two = (n.decoder.start(n.encode((source,)), 2) for n in (net, other))
        tokens = torch.tensor([2, 2])
        ours, _ = stepper(net.decoder)(tokens, one)
        theirs, _ = stepper(other.decoder)(tokens, two)
        both, _ = steps.ensemble([stepper(net.decoder), stepper(other.decoder)])(tokens, (one, two))
        weighted, _ = steps.ensemble([stepper(net.decoder), stepper(other.decoder)], [3.0, 1.0])(
            tokens, (one, two)
        )
    assert torch.allclose(both.exp(), (ours.exp() + theirs.exp()) / 2, atol=1e-6)
    assert torch.allclose(weighted.exp(), 0.75 * ours.exp() + 0.25 * theirs.exp(), atol=1e-6)
    with pytest.raises(ConfigError, match="weight"):
        steps.ensemble([stepper(net.decoder)], [1.0, 1.0])


def test_an_ensemble_of_one_model_with_itself_is_that_model() -> None:
    step, state, first = start("transformer", (7, 3))
    alone = beam_search(step, state, first, end=END, width=3, limits=[6, 6])
    both = steps.ensemble([step, step])
    twice = beam_search(both, (state, state), first, end=END, width=3, limits=[6, 6])
    for a, b in zip(alone, twice, strict=True):
        assert [h.tokens for h in a] == [h.tokens for h in b]


@pytest.mark.parametrize("decoder", ["lstm_additive_cell", "lstm_dot_output", "transformer"])
def test_coverage_adds_what_was_not_listened_to(decoder: str) -> None:
    from saccade.tasks.generate import attention_of

    net = generator("lstm", decoder)
    source = source_batch((6, 3))
    with torch.inference_mode():
        state = net.decoder.start(net.encode((source,)), 2)
    step = steps.with_attention_sum(stepper(net.decoder), attention_of(net.decoder), source.keep)
    first = torch.full((2,), 2)
    found = beam_search(
        step, state, first, end=END, width=3, limits=[5, 5], bonus=steps.coverage(0.7)
    )
    for b, (some, length) in enumerate(zip(found, (6, 3), strict=True)):
        for one in some:
            heard = select(state, torch.tensor([b]))
            for token in (2, *one.tokens):
                with torch.inference_mode():
                    _, heard = step(torch.tensor([token]), heard)
            weights = heard.weights[0]
            assert float(weights.sum()) == pytest.approx(len(one.tokens) + 1, abs=1e-4)
            assert float(weights[length:].abs().sum()) == 0.0  # padding
            covered = sum(log(min(1.0, float(weight))) for weight in weights[:length])
            plain = one.score / (len(one.tokens) + 1)
            assert one.value == pytest.approx(plain + 0.7 * covered, abs=1e-3)


# --- stopping, trees ------------------------------------------------------------------------------
