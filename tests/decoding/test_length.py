"""Lengths: how they are weighed, and that no search gives up a text that only pays off late."""

from math import log

import pytest
import torch

from saccade.decoding.exact import Order, exact_search, exhaustive
from saccade.decoding.search import LOG_P, Length, Step, beam_search
from tests.decoding.conftest import LENGTHS, chain

NORMALISED = [length for length in LENGTHS if length.kind != "none"]
FIRST = torch.tensor([1])
LIMIT = 8


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0])
def test_lengths_are_weighed_as_the_papers_say(alpha: float) -> None:
    power, gnmt = Length("power", alpha), Length("gnmt", alpha)
    assert LOG_P(-12.0, 7) == -12
    for n in (1, 2, 7, 30):
        assert power(-12.0, n) == pytest.approx(-12 / n**alpha)
        assert gnmt(-12.0, n) == pytest.approx(-12 * 6**alpha / (5 + n) ** alpha)
    assert gnmt(-12.0, 1) == -12  # the shortest text of all costs what it costs
    scores = power(torch.tensor([-12.0, -3.0]), torch.tensor([4, 1]))
    assert scores.tolist() == pytest.approx([-12 / 4**alpha, -3])


def late(length: Length) -> tuple[Step, float]:
    """A table that ends at once, or says 2, 3, 4 ... to the limit, and the probability of that.

    For its length the long text is the better one, but no beginning of it is.
    """
    p = 0.3 if length == Length("power", 1.0) else 0.4
    table = torch.zeros(LIMIT + 3, LIMIT + 3)
    table[1, 0], table[1, 2] = 1 - p, p
    for token in range(2, LIMIT + 1):
        table[token, token + 1] = 1.0
    table[LIMIT + 1, 0] = 1.0  # the last of them ends
    log_probs = table.log()
    return lambda tokens, state: (log_probs[tokens], state), p


LONG = list(range(2, LIMIT + 2))


@pytest.mark.parametrize("order", ["depth", "best"])
@pytest.mark.parametrize("length", NORMALISED)
def test_exact_search_waits_for_a_text_that_pays_off_late(length: Length, order: Order) -> None:
    step, p = late(length)
    settings = {"end": 0, "limit": LIMIT, "length": length}
    every = exhaustive(step, None, FIRST, **settings)
    assert [one.tokens for one in every] == [LONG, []]
    found = exact_search(step, None, FIRST, budget=10**5, order=order, **settings)
    assert found.proved
    assert found.best is not None
    assert found.best.tokens == LONG
    assert length(log(p), 2) < length(log(1 - p), 1) < found.best.value  # at first it was worse


@pytest.mark.parametrize("length", NORMALISED)
def test_nothing_is_proved_while_a_beginning_can_still_win(length: Length) -> None:
    settings = {"end": 0, "limit": LIMIT, "length": length}
    spent = exact_search(late(length)[0], None, FIRST, budget=1, **settings)
    assert spent.best is not None
    assert spent.best.tokens == []
    assert not spent.proved


@pytest.mark.parametrize("length", NORMALISED)
def test_a_beam_waits_for_a_text_that_pays_off_late(length: Length) -> None:
    step, _ = late(length)
    (found,) = beam_search(step, None, FIRST, end=0, width=2, limits=[LIMIT], length=length)
    assert found[0].tokens == LONG


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("nbest", [2, 4])
def test_a_beam_goes_on_until_none_can_be_among_the_n_best(nbest: int, length: Length) -> None:
    for seed in range(12):
        settings = {"end": 0, "width": 5, "limits": [6], "length": length}
        (found,) = beam_search(chain(seed, 8), None, FIRST, nbest=nbest, **settings)
        (all_of_them,) = beam_search(chain(seed, 8), None, FIRST, nbest=10**3, **settings)
        wanted = [one.tokens for one in all_of_them[:nbest]]
        assert [one.tokens for one in found[:nbest]] == wanted


def test_a_search_that_has_enough_goes_no_further() -> None:
    """With `stop_after` of 1 all that ended did so at the same step; with 3, after a third."""
    longer = 0
    for seed in range(20):
        settings = {"end": 0, "width": 4, "limits": [8], "nbest": 10**3}
        (one,) = beam_search(chain(seed, 8), None, FIRST, stop_after=1, **settings)
        assert len({len(found.tokens) for found in one}) == 1
        (three,) = beam_search(chain(seed, 8), None, FIRST, stop_after=3, **settings)
        lengths = sorted(len(found.tokens) for found in three)
        assert len(lengths) >= 3
        assert lengths[2] == lengths[-1]
        (all_of_them,) = beam_search(chain(seed, 8), None, FIRST, **settings)
        longer += len(all_of_them) > len(three)
    assert longer > 5  # else there would have been nothing to stop
