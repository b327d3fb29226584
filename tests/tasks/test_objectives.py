"""Objectives: what is read and what is asked for, by hand and by their published shares."""

import numpy as np
import pytest

from saccade import config as c
from saccade.nn.padded import UNSCORED_ID
from saccade.tasks.objectives import Alphabet, draws_of, masked
from saccade.tasks.pretrain import pack
from saccade.text import Tokenizer

SETTINGS = c.Tokenizer(kind="bpe", size=40, mask=True)
TOKENIZER = Tokenizer.train(SETTINGS, ["abba cad abba dab"] * 3)
IDS = Alphabet.of(TOKENIZER)
MASK = TOKENIZER.specials.mask


def row_of(*texts: str) -> np.ndarray:
    eos = TOKENIZER.specials.eos
    return np.array([i for ids in TOKENIZER.encode(texts) for i in (*ids, eos)])


def test_of_masked_tokens_80_percent_are_mask_10_others_and_10_as_they_were() -> None:
    row = np.random.default_rng(1).choice(IDS.plain, 1000)
    counts = np.zeros(3)
    for index in range(100):
        made = masked(row, draws_of(1, 1, index), c.Masked(), IDS)
        asked = made.target != UNSCORED_ID
        assert asked.sum() == 150
        assert (made.target[asked] == row[asked]).all()
        assert (made.source[~asked] == row[~asked]).all()
        hidden = made.source[asked] == MASK
        kept = made.source[asked] == row[asked]
        counts += hidden.sum(), kept.sum(), (~hidden & ~kept).sum()
    chance = 0.1 / len(IDS.plain)  # that another token drawn is the same
    expected = np.array([0.8, 0.1 + chance, 0.1 - chance])
    assert counts / counts.sum() == pytest.approx(expected, abs=0.01)


def test_specials_are_never_asked_for() -> None:
    row = row_of("abba cad", "dab", "xyz")  # with <eos> and <unk>
    for index in range(50):
        made = masked(row, draws_of(1, 1, index), c.Masked(share=0.9), IDS)
        special = IDS.special[row]
        assert (made.target[special] == UNSCORED_ID).all()
        assert (made.source[special] == row[special]).all()
        assert not IDS.special[np.setdiff1d(made.source, [*row, MASK])].any()


def test_whole_words_are_hidden_whole() -> None:
    row = row_of("abba cad abba dab", "cad dab")
    words = IDS.words(row)
    assert words.max() + 1 == 6 + 2  # with an <eos> each
    for index in range(50):
        objective = c.Masked(share=0.4, whole_words=True)
        made = masked(row, draws_of(1, 1, index), objective, IDS)
        asked = made.target != UNSCORED_ID
        assert asked.any()
        assert set(words[asked]).isdisjoint(words[~asked])


def test_masks_are_those_of_seed_epoch_and_index() -> None:
    row = np.random.default_rng(1).choice(IDS.plain, 60)
    one = masked(row, draws_of(1, 2, 3), c.Masked(), IDS)
    same = masked(row, draws_of(1, 2, 3), c.Masked(), IDS)
    assert (one.source == same.source).all()
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert (masked(row, draws_of(*other), c.Masked(), IDS).target != one.target).any()


def test_rows_are_whole_lines_that_fit_and_lose_nothing() -> None:
    lengths = np.array([3, 4, 2, 9, 1, 1, 25, 4])
    starts = np.concatenate([[0], lengths.cumsum()])
    bounds = pack(starts, 10)
    assert bounds.tolist() == [0, 9, 19, 20, 30, 40, 49]
    assert bounds[0] == 0
    assert bounds[-1] == starts[-1]
    assert (np.diff(bounds) <= 10).all()
    for at in bounds[1:-1]:  # a row ends inside a line only if that is longer than the context
        line = int(starts.searchsorted(at, "right")) - 1
        assert starts[line] == at or lengths[line] > 10
