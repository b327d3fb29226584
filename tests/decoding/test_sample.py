"""Sampling, on tables: what is drawn depends on the seed, the key and the place alone."""

import numpy as np
import torch

from saccade.decoding import steps
from saccade.decoding.sample import sample, uniforms
from saccade.decoding.search import greedy
from saccade.decoding.steps import ban
from tests.decoding.conftest import chain


def test_the_same_seed_gives_the_same_text_and_another_another() -> None:
    step, first = ban(chain(9, 12), [1]), torch.ones(20, dtype=torch.long)
    one, again, other = (
        sample(step, None, first, end=0, limits=[9] * 20, seed=seed, keys=range(20))
        for seed in (1, 1, 2)
    )
    assert one == again
    assert sum(a.tokens != b.tokens for a, b in zip(one, other, strict=True)) > 10
    assert len({tuple(found.tokens) for found in one}) > 5  # rows differ, too


def test_rows_with_seeds_of_their_own_are_drawn_as_if_alone() -> None:
    step, first = ban(chain(9, 12), [1]), torch.ones(20, dtype=torch.long)
    seeds = [row % 3 for row in range(20)]
    both = sample(step, None, first, end=0, limits=[9] * 20, seed=seeds, keys=range(20))
    for row, seed in enumerate(seeds):
        (alone,) = sample(step, None, first[:1], end=0, limits=[9], seed=seed, keys=[row])
        assert both[row].tokens == alone.tokens


def test_a_low_temperature_is_greedy() -> None:
    step, first = chain(3, 8), torch.tensor([1])
    cold = steps.tempered(step, 1e-3)
    (drawn,) = sample(cold, None, first, end=0, limits=[9], seed=1, keys=[0])
    assert drawn.tokens == greedy(step, None, first, end=0, limits=[9])[0].tokens


def test_numbers_drawn_are_even_and_differ_by_every_part() -> None:
    u = uniforms(5, np.arange(100_000), 3)
    assert 0 <= u.min() < u.max() < 1
    counts, _ = np.histogram(u, bins=20, range=(0, 1))
    assert ((counts - 5000) ** 2 / 5000).sum() < 19 + 4 * 38**0.5
    assert not np.array_equal(u, uniforms(6, np.arange(100_000), 3))
    assert not np.array_equal(u, uniforms(5, np.arange(100_000), 4))


def test_what_is_forbidden_leaves_the_proportions_of_the_rest() -> None:
    """Log-probabilities that do not add up to 1, as a ban leaves them, are drawn from all the same.

    Nothing that is forbidden comes, and the last token comes no more often for it.
    """
    count, step = 20_000, chain(9, 6)
    first = torch.ones(count, dtype=torch.long)
    plain = step(first[:1], None)[0][0].exp()
    likely = int(plain.argmax())
    banned = [likely, 0]  # what is left has a small part of the probability
    some = ban(step, banned)
    drawn = sample(some, None, first, end=0, limits=[1] * count, seed=4, keys=range(count))
    found = torch.bincount(torch.tensor([one.tokens[0] for one in drawn]), minlength=6) / count
    plain[banned] = 0.0
    assert torch.allclose(found, plain / plain.sum(), atol=0.015)
