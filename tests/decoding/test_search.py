"""Beams, on tables: what comes next depends on the last token alone."""

from collections import Counter
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.decoding import search, steps
from saccade.decoding.search import Length, beam_search, greedy, likeliest, token_log_probs, top
from saccade.decoding.steps import ban
from saccade.decoding.tree import Tree
from saccade.errors import ConfigError
from tests.decoding.conftest import LENGTHS, chain


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([7, 2048, 2300, 5001]),
    width=st.integers(1, 5),
    k=st.integers(1, 10),
)
def test_the_best_are_found_block_by_block(seed: int, size: int, width: int, k: int) -> None:
    numbers = torch.Generator().manual_seed(seed)
    score = torch.randn(2, width, generator=numbers)
    log_probs = torch.randn(2, width, size, generator=numbers)
    log_probs[0, 0, ::3] = -inf
    log_probs[1, 0, -1] = 9.0  # the best of all ends the last block, which may be short
    k = min(k, width * size)
    values, places = top(score, log_probs, k)
    total = (score[:, :, None] + log_probs).flatten(1)
    assert torch.equal(values, total.topk(k).values)
    assert torch.equal(total.gather(1, places), values)


@pytest.mark.parametrize("vocab", [2048, 2049, 2300])
def test_nothing_is_found_twice_at_the_end_of_a_short_block(vocab: int) -> None:
    log_probs = torch.linspace(-9, -1, vocab).expand(1, 2, vocab)  # the best stand last
    values, places = top(torch.zeros(1, 2), log_probs, 6)
    expected = [vocab - 1, vocab - 2, vocab - 3]
    assert sorted(places[0].tolist()) == sorted([*expected, *(vocab + i for i in expected)])
    assert torch.equal(values, log_probs.flatten(1).gather(1, places))


@pytest.mark.parametrize(("rows", "vocab"), [(3, 100), (60, 10_000), (300, 2_049)])
def test_the_likeliest_is_the_largest(rows: int, vocab: int) -> None:
    log_probs = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows))
    log_probs[0, -1] = 9.0
    assert torch.equal(likeliest(log_probs, [], 0), log_probs.argmax(-1))


def test_what_nothing_satisfies_has_no_hypotheses() -> None:
    step, first = chain(1), torch.tensor([1, 1])
    never = steps.only(ban(step, [2]), 0, [(2, 3)])
    assert beam_search(never, None, first, end=0, width=3, limits=[4, 4]) == [[], []]
    assert greedy(never, None, first, end=0, limits=[4, 4])[0].score == -inf


def test_of_many_that_have_ended_the_best_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    step, first = chain(3, 7), torch.tensor([1])

    def found(kept: int, **more: int) -> list[tuple[list[int], float]]:
        monkeypatch.setattr(search, "KEPT_HYPOTHESES", kept)
        (some,) = beam_search(step, None, first, end=0, width=40, limits=[12], **more)
        return [(one.tokens, one.score) for one in some]

    every = found(10**6, nbest=10)
    assert len(every) > 20
    assert found(5, nbest=10)[:10] == every[:10]
    assert len(found(5, nbest=1)) <= 10
    assert found(5, nbest=1, stop_after=45)[0] == found(10**6, nbest=1, stop_after=45)[0]


def test_groups_say_different_things() -> None:
    step, first = chain(11, 12), torch.tensor([1])
    plain = beam_search(step, None, first, end=0, width=4, limits=[6], groups=1)
    alike = beam_search(step, None, first, end=0, width=4, limits=[6], groups=4, diversity=0.0)
    apart = beam_search(step, None, first, end=0, width=4, limits=[6], groups=4, diversity=50.0)
    assert len({tuple(one.tokens) for one in alike[0]}) == 1  # four times greedy
    assert len({one.tokens[0] if one.tokens else 0 for one in apart[0]}) == 4
    assert plain[0][0].value >= alike[0][0].value
    for one in apart[0]:
        score = float(token_log_probs(step, None, torch.tensor([[*one.tokens, 0]]), first).sum())
        assert one.score == pytest.approx(score, abs=1e-4)
    with pytest.raises(ConfigError, match="evenly"):
        beam_search(step, None, first, end=0, width=4, limits=[6], groups=3)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.integers(1, 6), length=st.sampled_from(LENGTHS))
def test_the_proven_stop_loses_nothing(seed: int, width: int, length: Length) -> None:
    """With a limit to how many may end that is never reached, the best is the same."""
    step, first = chain(seed, 9), torch.tensor([1])
    settings = {"end": 0, "width": width, "limits": [7], "length": length}
    (proven,) = beam_search(step, None, first, **settings)
    (all_of_them,) = beam_search(step, None, first, nbest=10**3, **settings)
    assert proven[0].tokens == all_of_them[0].tokens
    (few,) = beam_search(step, None, first, stop_after=1, **settings)
    assert few[0].value <= proven[0].value


def test_a_tree_tells_what_was_kept_and_why_the_rest_fell() -> None:
    step, first = chain(8, 6), torch.tensor([1, 1])
    trees: list[Tree] = []
    found = beam_search(step, None, first, end=0, width=2, limits=[5, 2], trees=trees)
    plain = beam_search(step, None, first, end=0, width=2, limits=[5, 2])
    assert found == plain
    assert len(trees) == 2
    for tree, some in zip(trees, found, strict=True):
        ended = {tuple(tree.path(i)[:-1]) for i, n in enumerate(tree.nodes) if n.fate == "ended"}
        assert ended == {tuple(one.tokens) for one in some}
        assert {n.fate for n in tree.nodes} <= {
            "kept",
            "ended",
            "outside the beam",
            "could not win",
        }
        parents = {n.parent for n in tree.nodes}
        for i, node in enumerate(tree.nodes):
            assert node.parent is None or node.parent < i
            path = tree.path(i)
            log_probs = token_log_probs(step, None, torch.tensor([path]), first[:1])
            assert node.score == pytest.approx(float(log_probs.sum()), abs=1e-4)
            if i in parents:
                assert node.fate == "kept"


def test_a_search_that_had_enough_says_so_of_what_was_open() -> None:
    first = torch.tensor([1])
    for seed in range(20):
        trees: list[Tree] = []
        beam_search(
            chain(seed, 6), None, first, end=0, width=3, limits=[9], stop_after=1, trees=trees
        )
        fates = Counter(node.fate for node in trees[0].nodes)
        if fates["enough had ended"]:
            assert not fates["could not win"]
            break
    else:
        pytest.fail("no search was stopped by `stop_after`")
