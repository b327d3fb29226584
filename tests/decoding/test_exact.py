"""Exact search, on tables: what comes next depends on the last token alone."""

from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.decoding.exact import exact_search, exhaustive
from saccade.decoding.search import Hypothesis, Length
from saccade.errors import ConfigError
from tests.decoding.conftest import LENGTHS, chain


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), limit=st.integers(0, 5), length=st.sampled_from(LENGTHS))
def test_exact_search_is_exhaustive_on_any_table(seed: int, limit: int, length: Length) -> None:
    step, first = chain(seed), torch.tensor([1])
    best = exhaustive(step, None, first, end=0, limit=limit, length=length)[0]
    for order in ("depth", "best"):
        found = exact_search(
            step, None, first, end=0, limit=limit, budget=10**6, length=length, order=order
        )
        assert found.proved
        assert found.best is not None
        assert found.best.value == pytest.approx(best.value, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), length=st.sampled_from(LENGTHS))
def test_a_wider_budget_never_gives_a_worse_score(seed: int, length: Length) -> None:
    step, first = chain(seed, 8), torch.tensor([1])
    for order in ("depth", "best"):
        values, proofs = [], []
        for budget in (1, 2, 5, 20, 100, 2000, 10**6):
            found = exact_search(
                step, None, first, end=0, limit=6, budget=budget, length=length, order=order
            )
            assert found.steps <= budget
            values.append(found.best.value if found.best else -inf)
            proofs.append(found.proved)
        assert values == sorted(values)
        assert proofs == sorted(proofs)
        assert proofs[-1]


def test_a_known_text_is_kept_until_it_is_beaten() -> None:
    step, first = chain(4, 8), torch.tensor([1])
    known = Hypothesis([9, 9], -0.001, -0.001)  # better than anything the table has
    found = exact_search(step, None, first, end=0, limit=6, budget=10, incumbent=known)
    assert found.best is known
    assert found.proved
    spent = exact_search(step, None, first, end=0, limit=6, budget=1)
    assert spent.verdict == "budget exhausted"


def test_enumeration_of_too_much_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than 1,000 texts"):
        exhaustive(chain(1, 12), None, torch.tensor([1]), end=0, limit=9, max_texts=1000)
