"""Every change of a step, on tables: what it forbids, keeps and adds."""

from math import inf, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from saccade.decoding import steps
from saccade.decoding.exact import exhaustive
from saccade.decoding.search import Step, beam_search, greedy
from saccade.decoding.steps import ban
from saccade.nn.state import reorder
from saccade.nn.watch import record
from tests.decoding.conftest import chain


def probabilities(step: Step) -> Tensor:
    log_probs, _ = step(torch.tensor([1]), None)
    return log_probs[0].exp()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), p=st.floats(0.05, 0.95), k=st.integers(1, 12))
def test_filters_keep_what_their_papers_say(seed: int, p: float, k: int) -> None:
    step = chain(seed, 10)
    plain = probabilities(step)
    for name, change in {
        "top_k": steps.top_k(step, k),
        "top_p": steps.top_p(step, p),
        "min_p": steps.min_p(step, p),
        "typical": steps.typical(step, p),
    }.items():
        found = probabilities(change)
        kept = found > 0
        assert float(found.sum()) == pytest.approx(1, abs=1e-5)
        ratio = found[kept] / plain[kept]
        assert torch.allclose(ratio, ratio[0].expand_as(ratio), rtol=1e-4)  # only rescaled
        mass = float(plain[kept].sum())
        match name:
            case "top_k":
                assert int(kept.sum()) == min(k, 10)
                assert float(plain[kept].min()) >= float(plain[~kept].max()) if k < 10 else True
            case "top_p" | "typical":
                assert mass >= p - 1e-5
                cost = -plain.log()
                if name == "typical":
                    entropy = float(-(plain * plain.log()).sum())
                    cost = (plain.log() + entropy).abs()
                worst = int(torch.where(kept, cost, -inf).argmax())
                assert mass - float(plain[worst]) < p + 1e-5  # not one too many
                if not bool(kept.all()):
                    assert float(cost[kept].max()) <= float(cost[~kept].min()) + 1e-6
            case "min_p":
                assert torch.equal(kept, plain >= p * plain.max() * (1 - 1e-6))


def texts_of(step: Step, limit: int = 4, size: int = 5) -> list[tuple[int, ...]]:
    every = exhaustive(step, None, torch.tensor([1]), end=0, limit=limit)
    return [tuple(one.tokens) for one in every]


@pytest.mark.parametrize("seed", [1, 2])
def test_rules_forbid_just_what_they_name(seed: int) -> None:
    step = ban(chain(seed, 5), [1])
    free = set(texts_of(step))
    assert set(texts_of(steps.at_least(step, 0, 2))) == {t for t in free if len(t) >= 2}
    twice = {t for t in free if len({t[i : i + 2] for i in range(len(t) - 1)}) < len(t) - 1}
    assert set(texts_of(steps.no_repeat(step, 2))) == free - twice
    once = {t for t in free if len(set(t)) == len(t)}
    assert set(texts_of(steps.no_repeat(step, 1))) == once
    phrase = {t for t in free if any(t[i : i + 2] == (2, 3) for i in range(len(t)))}
    assert set(texts_of(steps.avoid(step, [[2, 3]]))) == free - phrase
    assert set(texts_of(steps.avoid(step, [[4]]))) == {t for t in free if 4 not in t}
    few = [(2,), (2, 3), (4, 4, 4), ()]
    assert set(texts_of(steps.only(step, 0, few))) == set(few)
    forks = [(2, 3, 4, 2), (2, 3, 4, 3), (2, 3, 2), (2, 3), (2, 3, 4, 2), (3, 3)]
    assert set(texts_of(steps.only(step, 0, forks))) == set(forks)
    assert {t[:2] for t in texts_of(steps.prompted(step, [[3, 2]]))} == {(3, 2)}


def test_rules_leave_the_log_probabilities_of_the_rest() -> None:
    step, first = ban(chain(5, 5), [1]), torch.tensor([1])
    plain = {tuple(one.tokens): one.score for one in exhaustive(step, None, first, end=0, limit=3)}
    for ruled in (
        steps.at_least(step, 0, 1),
        steps.no_repeat(step, 1),
        steps.avoid(step, [[2, 3]]),
        steps.only(step, 0, [(2, 3), (4,)]),
        steps.prompted(step, [[3]]),
    ):
        for one in exhaustive(ruled, None, first, end=0, limit=3):
            assert one.score == pytest.approx(plain[tuple(one.tokens)], abs=1e-9)


def test_repetition_is_dearer() -> None:
    step = chain(2, 6)
    dear = steps.repetition(step, 2.0)
    state: object = None
    _, state = dear(torch.tensor([1]), state)
    log_probs, state = dear(torch.tensor([4]), state)
    plain, _ = step(torch.tensor([4]), None)
    assert float(log_probs[0, 4]) == pytest.approx(2 * float(plain[0, 4]))
    others = [i for i in range(6) if i != 4]
    assert torch.equal(log_probs[0, others], plain[0, others])


def test_fusion_adds_the_other_log_probabilities() -> None:
    one, other = chain(1), chain(2)
    fused = steps.fuse(one, other, 0.5, first=1, other_first=3)
    log_probs, _ = fused(torch.tensor([1]), (None, None))
    assert torch.allclose(
        log_probs, one(torch.tensor([1]), None)[0] + 0.5 * other(torch.tensor([3]), None)[0]
    )


def test_every_real_position_of_a_source_must_be_covered() -> None:
    """An attention of exactly 0 costs what one of almost 0 does; padding costs nothing."""
    attention = torch.nn.Identity()
    weights = torch.tensor([[0.0, 1e-6, 0.4, 0.7], [1.2, 0.0, 0.0, 0.0]])  # (B, S)
    keep = torch.tensor([[True, True, True, True], [True, True, False, False]])

    def step(tokens: Tensor, state: object) -> tuple[Tensor, object]:
        record(attention, weights[:, None])
        return torch.zeros(2, 6), state

    attended = steps.with_attention_sum(step, attention, keep)
    _, state = attended(torch.tensor([1, 1]), None)
    bonus = steps.coverage(0.5)(state)
    least = log(1e-3)
    expected = [2 * least + log(0.4) + log(0.7), least]
    assert bonus.tolist() == pytest.approx([0.5 * cost for cost in expected], abs=1e-5)
    _, state = attended(torch.tensor([4, 4]), state)
    bonus = steps.coverage(0.5)(state)
    assert bonus.tolist() == pytest.approx([0.5 * (2 * least + log(0.8)), 0.5 * least], abs=1e-5)
    assert torch.equal(reorder(state, torch.tensor([1, 0])).keep.tree, keep)  # the source's own


def test_a_source_that_is_given_up_ends_at_the_next_token_and_others_go_on() -> None:
    step, first = steps.at_least(chain(9, 12), 0, 9), torch.tensor([1, 2, 3])
    calls = []

    def given_up() -> bool:
        calls.append(1)
        return len(calls) > 3

    def never() -> bool:
        return False

    watched = steps.stoppable(step, 0, [never, given_up, never])
    plain = greedy(step, None, first, end=0, limits=[9] * 3)
    found = greedy(watched, None, first, end=0, limits=[9] * 3)
    assert [len(one.tokens) for one in found] == [9, 3, 9]
    assert [found[0].tokens, found[2].tokens] == [plain[0].tokens, plain[2].tokens]
    calls.clear()
    wide = beam_search(step, None, first, end=0, width=3, limits=[9] * 3)
    beams = beam_search(watched, None, first, end=0, width=3, limits=[9] * 3)
    assert len(beams[1][0].tokens) == 3
    assert [beams[0][0], beams[2][0]] == [wide[0][0], wide[2][0]]


def test_coverage_counts_under_other_rules() -> None:
    """Its sum is found in the state, whatever is wrapped around the step."""
    attention = torch.nn.Identity()

    def step(tokens: Tensor, state: object) -> tuple[Tensor, object]:
        record(attention, torch.full((len(tokens), 1, 2), 0.5))
        return chain(9, 6)(tokens, None)[0], None

    summed = steps.with_attention_sum(step, attention)
    _, plain = summed(torch.tensor([1]), None)
    _, ruled = steps.at_least(summed, 0, 2)(torch.tensor([1]), None)
    assert torch.equal(steps.coverage(0.3)(plain), steps.coverage(0.3)(ruled))
