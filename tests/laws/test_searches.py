"""What must hold for exact search, sampling and every change of a step, over every decoder."""

from collections import Counter
from itertools import pairwise
from math import exp, inf, log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from saccade.decoding import steps
from saccade.decoding.exact import exact_search, exhaustive
from saccade.decoding.sample import sample
from saccade.decoding.search import (
    LOG_P,
    Hypothesis,
    Length,
    Step,
    beam_search,
    greedy,
    likeliest,
    token_log_probs,
    top,
    walk,
)
from saccade.decoding.steps import ban, stepper
from saccade.decoding.tree import Tree
from saccade.errors import ConfigError
from saccade.nn.padded import Padded
from saccade.nn.state import select
from tests.architectures import SPEAKERS, VOCAB, begin, generator, source_batch

END, LETTERS, LIMIT = 3, (5, 6, 7), 3
BANNED = [i for i in range(VOCAB) if i not in (*LETTERS, END)]
LENGTHS = [LOG_P, Length("power", 0.6), Length("power", 1.0), Length("gnmt", 0.8)]


def start(decoder: str, lengths: tuple[int, ...] = (4,)) -> tuple[Step, object, Tensor]:
    """The step of a small model that knows three letters, and where it begins."""
    step, state = begin(decoder, source_batch(lengths), BANNED)
    return step, state, torch.full((len(lengths),), 2)


def forced(step: Step, state: object, first: Tensor, tokens: list[int]) -> float:
    return float(token_log_probs(step, state, torch.tensor([[*tokens, END]]), first).sum())


def chain(seed: int, size: int = 6) -> Step:
    """A step that is a random table: what comes next depends on the last token alone."""
    numbers = torch.Generator().manual_seed(seed)
    table = (3 * torch.randn(size, size, generator=numbers)).log_softmax(-1)
    return lambda tokens, state: (table[tokens], state)


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


def test_a_known_text_is_kept_until_it_is_beaten() -> None:
    step, first = chain(4, 8), torch.tensor([1])
    known = Hypothesis([9, 9], -0.001, -0.001)  # better than anything the table has
    found = exact_search(step, None, first, end=0, limit=6, budget=10, known=known)
    assert found.best is known
    assert found.proved
    spent = exact_search(step, None, first, end=0, limit=6, budget=1)
    assert spent.verdict == "budget exhausted"


def test_enumeration_of_too_much_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than 1,000 texts"):
        exhaustive(chain(1, 12), None, torch.tensor([1]), end=0, limit=9, most=1000)


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
    k = min(k, width * size)
    values, places = top(score, log_probs, k)
    total = (score[:, :, None] + log_probs).flatten(1)
    assert torch.equal(values, total.topk(k).values)
    assert torch.equal(total.gather(1, places), values)


@pytest.mark.parametrize(("rows", "vocab"), [(3, 100), (60, 10_000), (300, 2_049)])
def test_the_likeliest_is_the_largest(rows: int, vocab: int) -> None:
    log_probs = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows))
    log_probs[0, -1] = 9.0
    assert torch.equal(likeliest(log_probs, [], 0), log_probs.argmax(-1))


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


def test_the_same_seed_gives_the_same_text_and_another_another() -> None:
    step, first = ban(chain(9, 12), [1]), torch.ones(20, dtype=torch.long)
    one, again, other = (
        sample(step, None, first, end=0, limits=[9] * 20, seed=seed, keys=range(20))
        for seed in (1, 1, 2)
    )
    assert one == again
    assert sum(a.tokens != b.tokens for a, b in zip(one, other, strict=True)) > 10
    assert len({tuple(found.tokens) for found in one}) > 5  # rows differ, too


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


def test_a_low_temperature_is_greedy() -> None:
    step, first = chain(3, 8), torch.tensor([1])
    cold = steps.tempered(step, 1e-3)
    (drawn,) = sample(cold, None, first, end=0, limits=[9], seed=1, keys=[0])
    assert drawn.tokens == greedy(step, None, first, end=0, limits=[9])[0].tokens


# --- rules ----------------------------------------------------------------------------------------


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


def test_what_nothing_satisfies_has_no_hypotheses() -> None:
    step, first = chain(1), torch.tensor([1, 1])
    never = steps.only(ban(step, [2]), 0, [(2, 3)])
    assert beam_search(never, None, first, end=0, width=3, limits=[4, 4]) == [[], []]
    assert greedy(never, None, first, end=0, limits=[4, 4])[0].score == -inf


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


# --- several models, groups, coverage -------------------------------------------------------------


def test_an_ensemble_is_the_mean_of_its_probabilities() -> None:
    net, other = generator("lstm", "transformer"), generator("lstm", "gru_off")
    with torch.inference_mode():
        source = source_batch((4, 2))
        one, two = (n.decoder.start(n.encode(source), 2) for n in (net, other))
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


def test_fusion_adds_the_other_log_probabilities() -> None:
    one, other = chain(1), chain(2)
    fused = steps.fuse(one, other, 0.5, first=1, other_first=3)
    log_probs, _ = fused(torch.tensor([1]), (None, None))
    assert torch.allclose(
        log_probs, one(torch.tensor([1]), None)[0] + 0.5 * other(torch.tensor([3]), None)[0]
    )


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


@pytest.mark.parametrize("decoder", ["lstm_additive_cell", "lstm_dot_output", "transformer"])
def test_coverage_adds_what_was_not_listened_to(decoder: str) -> None:
    from saccade.tasks.generate import attention_of

    net = generator("lstm", decoder)
    source = source_batch((6, 3))
    with torch.inference_mode():
        state = net.decoder.start(net.encode(source), 2)
    step = steps.with_attention_sum(
        stepper(net.decoder), attention_of(net.decoder), source.keep
    )
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


def test_numbers_drawn_are_even_and_differ_by_every_part() -> None:
    from saccade.decoding.sample import uniforms

    u = uniforms(5, np.arange(100_000), 3)
    assert 0 <= u.min() < u.max() < 1
    counts, _ = np.histogram(u, bins=20, range=(0, 1))
    assert ((counts - 5000) ** 2 / 5000).sum() < 19 + 4 * 38**0.5
    assert not np.array_equal(u, uniforms(6, np.arange(100_000), 3))
    assert not np.array_equal(u, uniforms(5, np.arange(100_000), 4))
