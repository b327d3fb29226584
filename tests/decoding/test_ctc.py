"""CTC as a step: a share for every continuation of a prefix, held against all alignments."""

import itertools
from math import exp, inf, log

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from saccade.decoding import ctc, steps
from saccade.decoding.exact import exact_search, exhaustive
from saccade.decoding.sample import sample
from saccade.decoding.search import LOG_P, beam_search, greedy, token_log_probs
from saccade.nn.state import repeat
from tests.decoding.conftest import chain

BLANK, END, FIRST, LETTERS = 0, 1, 2, (3, 4)
V = 5


def heard(*lengths: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """What positions say, at random, and which of them are real; nobody says END or FIRST."""
    numbers = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(len(lengths), max(lengths), V, generator=numbers)
    logits[:, :, [END, FIRST]] = -inf
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return logits.log_softmax(-1), keep


def alignments(log_probs: Tensor) -> dict[tuple[int, ...], float]:
    """p of every text, by adding up all alignments one by one."""
    found: dict[tuple[int, ...], float] = {}
    for way in itertools.product((BLANK, *LETTERS), repeat=len(log_probs)):
        text = tuple(one for one, _ in itertools.groupby(way) if one != BLANK)
        p = exp(sum(float(log_probs[s, one]) for s, one in enumerate(way)))
        found[text] = found.get(text, 0.0) + p
    return found


def follow(log_probs: Tensor, keep: Tensor | None, text: tuple[int, ...]) -> Tensor:
    """log p of every token after each prefix of a text, for one source: (len + 1, V)."""
    step, state = ctc.ctc_step(BLANK, END), ctc.start(log_probs, keep, BLANK)
    rows = []
    for token in (FIRST, *text):
        found, state = step(torch.tensor([token]), state)
        rows.append(found[0])
    return torch.stack(rows)


def test_a_prefix_has_the_probability_of_all_alignments_that_begin_with_it() -> None:
    log_probs, _ = heard(5)
    every = alignments(log_probs[0])
    assert sum(every.values()) == pytest.approx(1.0, abs=1e-5)

    def begins(prefix: tuple[int, ...]) -> float:
        return sum(p for text, p in every.items() if text[: len(prefix)] == prefix)

    for n in range(4):
        for text in itertools.product(LETTERS, repeat=n):
            if not begins(text):
                continue
            rows, total = follow(log_probs, None, text), 0.0
            for t, token in enumerate(text):
                total += float(rows[t, token])
            assert total == pytest.approx(log(begins(text)), abs=1e-4)
            for token in LETTERS:
                share = begins((*text, token)) / begins(text)
                assert float(rows[n, token].exp()) == pytest.approx(share, abs=1e-5)
            ended = every.get(text, 0.0) / begins(text)
            assert float(rows[n, END].exp()) == pytest.approx(ended, abs=1e-5)
            assert float(rows[n].exp().sum()) == pytest.approx(1.0, abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    length=st.integers(1, 300),
    text=st.lists(st.sampled_from(LETTERS), max_size=30),
    beyond=st.integers(0, 20),
)
def test_a_whole_text_has_the_score_of_torchs_ctc_loss(
    seed: int, length: int, text: list[int], beyond: int
) -> None:
    log_probs, keep = heard(length, length + beyond, seed=seed)
    loss = F.ctc_loss(
        log_probs[:1, :length].transpose(0, 1).double(),
        torch.tensor([[*text, LETTERS[0]]]),
        torch.tensor([length]),
        torch.tensor([len(text)]),
        BLANK,
        reduction="sum",
    )
    rows = follow(log_probs[:1], keep[:1], tuple(text))
    score = sum(float(rows[t, token]) for t, token in enumerate([*text, END]))
    if float(loss) == inf or score == -inf:
        assert (float(loss), score) == (inf, -inf)  # more tokens than positions can say
    else:
        assert score == pytest.approx(-float(loss), rel=1e-5, abs=1e-3)


def batch(*lengths: int, seed: int = 3) -> tuple[object, Tensor, Tensor]:
    log_probs, keep = heard(*lengths, seed=seed)
    state = (None, ctc.start(log_probs, keep, BLANK))
    return state, log_probs, torch.full((len(lengths),), FIRST)


def heeding(seed: int, weight: float = 0.4) -> ctc.Step:
    """A table and CTC together."""
    decoder = steps.ban(chain(seed, V), [BLANK, FIRST])
    return ctc.joint(decoder, ctc.ctc_step(BLANK, END), weight)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_batch_is_its_rows_in_every_search(seed: int) -> None:
    lengths, limits, step = (7, 2, 5), [6, 4, 5], heeding(seed)
    state, log_probs, first = batch(*lengths, seed=seed)
    drawn = sample(step, state, first, end=END, limits=limits, seed=1, keys=[5, 6, 7])
    beams = beam_search(step, state, first, end=END, width=3, limits=limits, nbest=2)
    plain = greedy(step, state, first, end=END, limits=limits)
    for b, length in enumerate(lengths):
        one = (None, ctc.start(log_probs[b : b + 1, :length], None, BLANK))
        rows: dict[str, object] = {"end": END, "limits": limits[b : b + 1]}
        for together, alone in (
            (beams[b][0], beam_search(step, one, first[:1], width=3, nbest=2, **rows)[0][0]),
            (plain[b], greedy(step, one, first[:1], **rows)[0]),
            (drawn[b], sample(step, one, first[:1], seed=1, keys=[5 + b], **rows)[0]),
        ):
            assert together.tokens == alone.tokens
            assert together.score == pytest.approx(alone.score, abs=1e-4)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_wide_enough_beam_is_exact_is_exhaustive(seed: int) -> None:
    step = heeding(seed)
    state, _, first = batch(5, seed=seed)
    every = exhaustive(step, state, first, end=END, limit=4)
    (beam,) = beam_search(step, state, first, end=END, width=100, limits=[4], length=LOG_P, nbest=5)
    assert [one.tokens for one in beam[:5]] == [one.tokens for one in every[:5]]
    best = exact_search(step, state, first, end=END, limit=4, budget=500).best
    assert best is not None
    assert best.tokens == every[0].tokens
    texts = torch.tensor([[*every[0].tokens, END]])
    forced = float(token_log_probs(step, state, texts, first).sum())
    assert forced == pytest.approx(every[0].score, abs=1e-4)
    assert every[0].score == pytest.approx(beam[0].score, abs=1e-4)


def test_the_score_is_the_weighted_sum_of_both() -> None:
    state, log_probs, first = batch(6)
    decoder, alone = steps.ban(chain(3, V), [BLANK, FIRST]), ctc.ctc_step(BLANK, END)
    texts = torch.tensor([[3, 4, 4, END]])
    ours = token_log_probs(heeding(3, 0.25), state, texts, first)
    said = token_log_probs(decoder, None, texts, first)
    read = token_log_probs(alone, ctc.start(log_probs, None, BLANK), texts, first)
    assert torch.allclose(ours, 0.75 * said + 0.25 * read, atol=1e-5)


def test_several_samples_of_a_source_share_what_it_said() -> None:
    state, _, first = batch(6, 3)
    many = repeat(state, 3), first.repeat_interleave(3)
    draw = {"end": END, "seed": 1}
    found = sample(heeding(1), *many, limits=[5] * 6, keys=[0, 1, 2, 10, 11, 12], **draw)
    for b, keys in enumerate([(0, 1, 2), (10, 11, 12)]):
        for i, key in enumerate(keys):
            log_probs, keep = heard(6, 3, seed=3)
            one = (None, ctc.start(log_probs[b : b + 1], keep[b : b + 1], BLANK))
            (alone,) = sample(heeding(1), one, first[:1], limits=[5], keys=[key], **draw)
            assert alone.tokens == found[3 * b + i].tokens


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), text=st.lists(st.sampled_from(LETTERS), max_size=4))
def test_the_best_path_is_the_likeliest_of_all_alignments(seed: int, text: list[int]) -> None:
    log_probs = heard(5, seed=seed)[0][0]
    best, score = None, -inf
    for way in itertools.product((BLANK, *LETTERS), repeat=5):
        p = sum(float(log_probs[s, one]) for s, one in enumerate(way))
        if [one for one, _ in itertools.groupby(way) if one != BLANK] == text and p > score:
            best, score = way, p
    found = ctc.forced_alignment(log_probs, text, BLANK)
    if best is None:
        assert found is None
        return
    assert found is not None
    path = [BLANK] * 5
    for token, (first, stop) in zip(text, found, strict=True):
        path[first:stop] = [token] * (stop - first)
    assert sum(float(log_probs[s, one]) for s, one in enumerate(path)) == pytest.approx(score)
    assert [one for one, _ in itertools.groupby(path) if one != BLANK] == text


def test_a_long_source_is_heard_to_its_end() -> None:
    """A thousand positions, most of them silent: no sum overflows, and none gets lost."""
    sure = torch.full((1, 1000, V), -20.0)
    sure[0, :, BLANK] = -1e-6
    wanted = [LETTERS[t % 2] for t in range(40)]
    for t, token in enumerate(wanted):
        sure[0, 25 * t + 5, token], sure[0, 25 * t + 5, BLANK] = -1e-6, -20.0
    state, first = ctc.start(sure, None, BLANK), torch.tensor([FIRST])
    (found,) = greedy(ctc.ctc_step(BLANK, END), state, first, end=END, limits=[60])
    assert found.tokens == wanted
    assert found.score > -0.1
