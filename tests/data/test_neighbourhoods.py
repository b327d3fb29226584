"""What word2vec reads: how much of each word, which words are near, and what is drawn as noise."""

import numpy as np
import pytest

from saccade.data.corpora import Column
from saccade.data.neighbourhoods import (
    BLOCK_WORDS,
    Neighbourhoods,
    Noise,
    count_words,
    kept_shares,
)

END = 1


def text(lines: int = 400, seed: int = 0, words: int = 20) -> Column:
    random = np.random.default_rng(seed)
    rows = [[*random.zipf(1.6, random.integers(1, 30)).clip(2, words), END] for _ in range(lines)]
    return Column.of([[int(i) for i in row] for row in rows])


def epoch(column: Column, number: int = 0, sample: float = 0.0, window: int = 3) -> Neighbourhoods:
    counts = count_words(column, 21, (0, END))
    kept, noise = kept_shares(counts, sample), Noise(counts, 0.75)
    return Neighbourhoods(column, END, kept, noise, window, 300, seed=5, epoch=number)


def test_words_are_kept_as_often_as_the_formula_says() -> None:
    counts = np.array([0, 1000, 100, 10, 1])
    shares = kept_shares(counts, 1e-2)
    f = counts[1:] / counts.sum()
    gold = np.minimum(1.0, np.sqrt(1e-2 / f) + 1e-2 / f)
    np.testing.assert_allclose(shares, [0.0, *gold], rtol=1e-6)
    assert (kept_shares(counts, 0.0) == [0, 1, 1, 1, 1]).all()


def test_thinned_out_text_has_as_many_of_each_word_as_the_formula_says() -> None:
    column = text(4000)
    counts = count_words(column, 21, (0, END))
    expected = counts * kept_shares(counts, 0.01)
    found = np.zeros(21)
    for number in range(4):
        for batch in epoch(column, number, 0.01):
            own = batch.target.values[:, 3:-3].flatten()
            real = (batch.sources[1].values + batch.sources[2].values).flatten() > 0
            found += np.bincount(own[real], minlength=21) / 4
    alone = expected.sum() - found.sum()  # words that stand alone in their line have no context
    assert 0 <= alone < 0.08 * expected.sum()
    often = counts > 500
    np.testing.assert_allclose(found[often] / expected[often], 1.0, atol=0.08)


def test_noise_is_drawn_as_often_as_the_counts_to_a_power_say() -> None:
    counts = np.array([0, 900, 300, 50, 5, 1, 0, 77])
    drawn = Noise(counts, 0.75).draw(np.random.default_rng(1), (400_000,))
    gold = np.where(counts > 0, counts.astype(float) ** 0.75, 0.0)
    shares = np.bincount(drawn, minlength=len(counts)) / len(drawn)
    assert (shares[counts == 0] == 0.0).all()
    np.testing.assert_allclose(shares, gold / gold.sum(), atol=3e-3)


def test_context_is_within_the_window_and_never_in_another_line() -> None:
    column = text()
    lines = np.repeat(np.arange(len(column)), column.lengths)
    found = epoch(column)
    widths = set()
    for i in range(len(found)):
        start = int(found._order[i]) * 300
        some = column.ids[start : start + 300]
        line = lines[start : start + 300][some != END]
        batch = found[i]
        left, right = (batch.sources[k].values.flatten().numpy() for k in (1, 2))
        n = len(line)
        assert (batch.target.values[:, 3:-3].flatten()[:n].numpy() == some[some != END]).all()
        assert not left[n:].any()
        assert not right[n:].any()
        for at in range(n):
            assert (line[at - left[at] : at + right[at] + 1] == line[at]).all()
            widths |= {int(left[at]), int(right[at])}
    assert widths == {0, 1, 2, 3}


def test_a_block_sees_the_words_on_both_sides_of_it() -> None:
    for batch in epoch(text()):
        own = batch.target.values[:, 3:-3].flatten()
        for g, seen in enumerate(batch.target.values):
            first, last = g * BLOCK_WORDS - 3, (g + 1) * BLOCK_WORDS + 3
            inside = own[max(first, 0) : last]
            skipped = max(first, 0) - first
            assert (seen[skipped : skipped + len(inside)] == inside).all()


def test_a_batch_is_a_function_of_seed_epoch_and_number() -> None:
    column = text()
    one, again, other = epoch(column), epoch(column), epoch(column, 1)
    assert len(one) == -(-len(column.ids) // 300)
    for i in (3, 0):
        assert (one[i].target.values == again[i].target.values).all()
        assert (one[i].sources[0].values == again[i].sources[0].values).all()
    assert (
        one[0].sources[0].values.shape != other[0].sources[0].values.shape
        or (one[0].sources[0].values != other[0].sources[0].values).any()
    )


@pytest.mark.parametrize("lines", [[[END]], [[2, END]], [[END], [END]]])
def test_a_text_without_context_has_nothing_to_learn(lines: list[list[int]]) -> None:
    counts = np.ones(21, np.int64)
    column = Column.of(lines)
    found = Neighbourhoods(column, END, kept_shares(counts, 0.0), Noise(counts, 1.0), 2, 10)
    (batch,) = list(found)
    assert not batch.sources[1].values.any()
    assert not batch.sources[2].values.any()
