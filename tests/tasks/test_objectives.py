"""Objectives: what is read and what is asked for, by hand and by their published shares."""

import numpy as np
import pytest

from saccade import config as c
from saccade.nn.padded import UNSCORED_ID, UNSEEN
from saccade.tasks.objectives import (
    VocabInfo,
    denoising,
    masked,
    pair_of,
    permuted,
    rng_of,
    spans,
    unilm,
)
from saccade.tasks.pretrain import pack, shuffled
from saccade.text import Tokenizer

SETTINGS = c.Tokenizer(kind="bpe", size=80, mask=True, sentinels=30)
TOKENIZER = Tokenizer.train(SETTINGS, ["abba cad abba dab"] * 3)
IDS = VocabInfo.of(TOKENIZER)
MASK = TOKENIZER.specials.mask


def row_of(*texts: str) -> np.ndarray:
    eos = TOKENIZER.specials.eos
    return np.array([i for ids in TOKENIZER.encode(texts) for i in (*ids, eos)])


def test_of_masked_tokens_80_percent_are_mask_10_others_and_10_as_they_were() -> None:
    row = np.random.default_rng(1).choice(IDS.plain, 1000)
    counts = np.zeros(3)
    for index in range(100):
        made = masked(row, rng_of(1, 1, index), c.Masked(), IDS)
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
        made = masked(row, rng_of(1, 1, index), c.Masked(share=0.9), IDS)
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
        made = masked(row, rng_of(1, 1, index), objective, IDS)
        asked = made.target != UNSCORED_ID
        assert asked.any()
        assert set(words[asked]).isdisjoint(words[~asked])


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "unigram", "bytes"])
def test_words_are_told_apart_by_every_tokenizer(kind: str) -> None:
    texts = ["abba cad abba dab"]
    tokenizer = Tokenizer.train(c.Tokenizer(kind=kind, size=300, mask=True), texts * 5)
    ids = np.array([*tokenizer.encode(texts)[0], tokenizer.specials.eos])
    words = VocabInfo.of(tokenizer).words(ids)
    pieces = [ids[words == n].tolist() for n in range(words.max() + 1)]
    assert [tokenizer.decode([one])[0].strip() for one in pieces] == [*texts[0].split(), ""]


def test_masks_are_those_of_seed_epoch_and_index() -> None:
    row = np.random.default_rng(1).choice(IDS.plain, 60)
    one = masked(row, rng_of(1, 2, 3), c.Masked(), IDS)
    same = masked(row, rng_of(1, 2, 3), c.Masked(), IDS)
    assert (one.source == same.source).all()
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert (masked(row, rng_of(*other), c.Masked(), IDS).target != one.target).any()


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


def test_every_row_is_in_a_batch_of_like_lengths_once() -> None:
    lengths = np.random.default_rng(1).integers(50, 100, 1007)
    order = shuffled(lengths, 8, np.random.default_rng(2))
    assert sorted(order) == list(range(1007))
    batches = order[:1000].reshape(-1, 8)
    spread = lengths[batches].max(1) - lengths[batches].min(1)
    assert spread.mean() < 5  # of 50
    means = lengths[batches].mean(1)
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.3  # batches are in no order


BOS, EOS, SEP = TOKENIZER.specials.bos, TOKENIZER.specials.eos, TOKENIZER.specials.sep
SENTINELS = TOKENIZER.specials.sentinels


def long_row(length: int = 400) -> np.ndarray:
    row = np.random.default_rng(5).choice(IDS.plain, length)
    row[19::20] = EOS
    return row


def test_sentinels_and_mask_are_ids_that_no_text_gives() -> None:
    assert TOKENIZER.tokens([MASK, *SENTINELS[:2]]) == ["<mask>", "<0>", "<1>"]
    given = {i for ids in TOKENIZER.encode(["<mask>", "<0> <1>", "<mask >"]) for i in ids}
    assert given.isdisjoint([MASK, *SENTINELS])
    assert MASK in TOKENIZER.specials.never_generated
    assert not set(SENTINELS) & set(TOKENIZER.specials.never_generated)


def test_a_pair_is_two_texts_that_follow_each_other_half_of_the_time() -> None:
    row, other = long_row(100), long_row(400)[200:300]
    labels = []
    for index in range(200):
        pair, label = pair_of(row, other, 100, rng_of(1, 1, index), IDS)
        labels.append(label)
        assert pair[0] == BOS
        assert pair[-1] == EOS
        assert len(pair) <= 102
        (cut,) = np.flatnonzero(pair == SEP)
        first, second = pair[1:cut], pair[cut + 1 : -1]
        assert (first == row[: len(first)]).all()
        assert row[len(first)] == EOS  # cut where a line ends
        text, start = (other, (other == EOS).nonzero()[0] + 1) if label else (row, [len(first) + 1])
        assert any((text[s : s + len(second)] == second).all() for s in start if s < len(text))
    assert 0.4 < np.mean(labels) < 0.6


def test_unilm_reads_a_third_each_both_ways_left_to_right_and_after_a_prefix() -> None:
    row, found = long_row(60), {"both": 0, "left": 0, "prefix": 0}
    for index in range(300):
        view = unilm(row, rng_of(1, 1, index), c.Unilm(), IDS).view
        assert view is not None
        seen = view.key_order[None, :] <= view.query_order[:, None]
        prefix = int((view.key_order == 0).sum())
        expected = np.tri(60, dtype=bool)
        expected[:, :prefix] = True
        assert (seen == expected).all()
        assert prefix in (0, 60) or row[prefix - 1] == EOS
        found["both" if prefix == 60 else "left" if prefix == 0 else "prefix"] += 1
    assert all(70 < n < 130 for n in found.values()), found


def test_permuted_asks_for_a_sixth_each_after_all_before_it_in_the_order() -> None:
    row = long_row(120)
    made = permuted(row, rng_of(1, 1, 1), c.Permuted(), IDS)
    count = round(0.167 * (~IDS.special[row]).sum())
    assert len(made.source) == len(made.target) == 120 + count
    assert (made.source[:120] == row).all()
    assert (made.source[120:] == MASK).all()
    assert (made.target[:120] == UNSCORED_ID).all()
    assert made.view is not None
    order, sight, places = made.view
    asked = places[120:]
    assert (made.target[120:] == row[asked]).all()
    assert sorted(order[asked]) == list(range(1, count + 1))
    assert (order[120:] == UNSEEN).all()  # a query is seen by none
    assert (sight[120:] == order[asked] - 1).all()  # and never sees its own token
    assert (np.delete(order[:120], asked) == 0).all()  # what is not asked for is seen by all
    assert (sight[:120] == order[:120]).all()


def test_spans_hide_15_percent_in_spans_of_three_and_the_target_has_all_that_is_missing() -> None:
    row, lengths = long_row(100), []
    text = np.where(row[:-1] == EOS, SEP, row[:-1])
    for index in range(50):
        made = spans(row, rng_of(1, 1, index), c.Spans(), IDS)
        assert made.source[-1] == EOS
        assert (made.target[0], made.target[-1]) == (BOS, EOS)
        said: dict[int, list[int]] = {}
        for token in made.target[1:-1].tolist():
            if token in SENTINELS:
                said[token] = []
                continue
            said[list(said)[-1]].append(token)
        assert list(said) == list(SENTINELS[: len(said)])
        filled = [i for t in made.source[:-1].tolist() for i in said.get(t, [t])]
        assert filled == text.tolist()  # nothing is lost, nothing said twice
        assert sum(map(len, said.values())) == 15
        lengths += [len(span) for span in said.values()]
    assert np.mean(lengths) == pytest.approx(3.0)


def test_denoising_hides_30_percent_behind_one_mask_a_span_and_says_the_row_as_it_was() -> None:
    row, hidden, masks = long_row(200), [], []
    text = np.where(row[:-1] == EOS, SEP, row[:-1])
    for index in range(50):
        made = denoising(row, rng_of(1, 1, index), c.Denoising(shuffle=False), IDS)
        assert made.target.tolist() == [BOS, *text, EOS]
        source = made.source[:-1]
        masks.append((source == MASK).sum())
        hidden.append(len(text) - (source != MASK).sum())
        assert not ((source[1:] == MASK) & (source[:-1] == MASK)).any()
        supply = iter(text.tolist())  # what is left stands in its order
        assert all(any(token == t for t in supply) for token in source[source != MASK])
    assert set(hidden) == {round(0.3 * len(text))}
    assert np.mean(hidden) / np.mean(masks) == pytest.approx(3.0, abs=0.2)


def test_denoising_shuffles_lines_and_deletes_tokens() -> None:
    row = long_row(100)
    plain = c.Denoising(share=0.0)
    made = denoising(row, rng_of(1, 1, 1), plain, IDS)
    lines = [row[i : i + 19].tolist() for i in range(0, 100, 20)]
    parts = [part.tolist() for part in np.split(made.source, np.flatnonzero(made.source == SEP))]
    mixed = [part[1:] if part[0] == SEP else part for part in parts]
    mixed[-1] = mixed[-1][:-1]  # <eos>
    assert sorted(mixed) == sorted(lines)
    assert mixed != lines
    few = c.Denoising(share=0.0, shuffle=False, delete=0.3)
    lengths = [len(denoising(row, rng_of(1, 1, i), few, IDS).source) - 1 for i in range(100)]
    assert np.mean(lengths) / 99 == pytest.approx(0.7, abs=0.03)


@pytest.mark.parametrize("text", ["ab", "abba", ""])
def test_short_rows_break_no_objective(text: str) -> None:
    row = row_of(text)
    for function, objective in (
        (masked, c.Masked(whole_words=True)), (unilm, c.Unilm()), (permuted, c.Permuted()),
        (spans, c.Spans()), (denoising, c.Denoising()),
    ):  # fmt: skip
        for index in range(5):
            made = function(row, rng_of(1, 1, index), objective, IDS)  # type: ignore[operator]
            assert len(made.source)
    pair_of(row, row, 10, rng_of(1, 1, 1), IDS)
