"""Ways to break searches and what changes their steps, and the tests that notice."""

from tests.mutations.mutation import Mutation

EXACT = "tests/decoding/test_exact.py"
SEARCH = "tests/decoding/test_search.py"
LENGTH = "tests/decoding/test_length.py"
STEPS = "tests/decoding/test_steps.py"
RULES = f"{STEPS}::test_rules_forbid_just_what_they_name"
FILTERS = "tests/decoding/test_filters.py"
SAMPLE = "tests/decoding/test_sample.py"
RISK = "tests/decoding/test_risk.py"
SEARCH_LAWS = "tests/laws/test_search.py"
SEARCHES_LAWS = "tests/laws/test_searches.py"

DECODING = (
    Mutation(
        "trees: closed before all words are in it",
        "saccade/decoding/steps.py",
        "allowed &= (depth_after > 0) | (missing == 0) | (after == START)",
        "allowed &= (depth_after > 0) | (missing >= 0) | (after == START)",
        ("tests/decoding/test_brackets.py::test_a_tree_has_as_many_words_as_it_should",),
    ),
    Mutation(
        "length: gnmt with (6 + n) / 6",
        "saccade/decoding/search.py",
        "(5 + length) / 6",
        "(6 + length) / 6",
        (LENGTH,),
    ),
    Mutation(
        "length: alpha is a factor",
        "saccade/decoding/search.py",
        "score / length**self.alpha",
        "score / (length * self.alpha)",
        (LENGTH,),
    ),
    Mutation(
        "beam: stops as if an open prefix ended at once",
        "saccade/decoding/search.py",
        "going = length(score.amax(-1), limit + 1.0) > best[:, -1]",
        "going = length(score.amax(-1), t + 2.0) > best[:, -1]",
        (LENGTH,),
    ),
    Mutation(
        "beam: stops when the best is found, not the n best",
        "saccade/decoding/search.py",
        "> best[:, -1]",
        "> best[:, 0]",
        (LENGTH,),
    ),
    Mutation(
        "beam: one token beyond the limit",
        "saccade/decoding/search.py",
        "at_limit = limit <= t",
        "at_limit = limit < t",
        (SEARCH_LAWS,),
    ),
    Mutation(
        "beam: groups seek what others said",
        "saccade/decoding/search.py",
        "here - diversity * used[:, None]",
        "here + diversity * used[:, None]",
        (f"{SEARCH}::test_groups_say_different_things",),
    ),
    Mutation(
        "beam: one more than enough have to end",
        "saccade/decoding/search.py",
        "finished[b] >= stop_after",
        "finished[b] > stop_after",
        (LENGTH,),
    ),
    Mutation(
        "beam: the end token is not counted",
        "saccade/decoding/search.py",
        "value = length(score, t + 1)",
        "value = length(score, max(t, 1))",
        (SEARCHES_LAWS,),
    ),
    Mutation(
        "beam: a bonus is subtracted",
        "saccade/decoding/search.py",
        "value = value + bonus(state)[rows]",
        "value = value - bonus(state)[rows]",
        (f"{SEARCHES_LAWS}::test_coverage_adds_what_was_not_listened_to",),
    ),
    Mutation(
        "greedy: one token beyond the limit",
        "saccade/decoding/search.py",
        "torch.where(limit[alive] <= t, end",
        "torch.where(limit[alive] < t, end",
        (SEARCH_LAWS,),
    ),
    Mutation(
        "top: padding of the last block is taken",
        "saccade/decoding/search.py",
        "values.masked_fill(column >= V, -inf)",
        "values",
        (f"{SEARCH}::test_nothing_is_found_twice_at_the_end_of_a_short_block",),
    ),
    Mutation(
        "exact: pushed by the next length",
        "saccade/decoding/exact.py",
        "(length(scores, limit + 1) > bound)",
        "(length(scores, depth + 2) > bound)",
        (LENGTH,),
    ),
    Mutation(
        "exact: popped by its own length",
        "saccade/decoding/exact.py",
        "if length(prefix.score, limit + 1) > bound:",
        "if length(prefix.score, len(prefix.tokens) + 1) > bound:",
        (LENGTH,),
    ),
    Mutation(
        "exact: proved by the lengths of what is left",
        "saccade/decoding/exact.py",
        "left = any(length(prefix.score, limit + 1) > bound for prefix in heap)",
        "left = any(length(prefix.score, len(prefix.tokens) + 1) > bound for prefix in heap)",
        (LENGTH,),
    ),
    Mutation(
        "exact: depth first in both orders",
        "saccade/decoding/exact.py",
        'if order == "best" else',
        "if False else",
        (EXACT,),
        equivalent="the order decides how soon the optimum is found, never which it is",
    ),
    Mutation(
        "top-p: one too few",
        "saccade/decoding/steps.py",
        "before < p)",
        "cdf < p)",
        (FILTERS,),
    ),
    Mutation(
        "typical: away from the expected surprise",
        "saccade/decoding/steps.py",
        "(log_probs + entropy).abs()",
        "(log_probs - entropy).abs()",
        (FILTERS,),
    ),
    Mutation(
        "no_repeat: begins one step late",
        "saccade/decoding/steps.py",
        "if history.size(1) < n:",
        "if history.size(1) <= n:",
        (RULES,),
    ),
    Mutation(
        "at_least: one token more",
        "saccade/decoding/steps.py",
        "if history.size(1) >= length:",
        "if history.size(1) > length:",
        (RULES,),
    ),
    Mutation(
        "ensemble: weights do not add up to 1",
        "saccade/decoding/steps.py",
        "log(share / sum(shares))",
        "log(share)",
        (f"{SEARCHES_LAWS}::test_an_ensemble_is_the_mean_of_its_probabilities",),
    ),
    Mutation(
        "temperature: the wrong way",
        "saccade/decoding/steps.py",
        "(log_probs / temperature)",
        "(log_probs * temperature)",
        (FILTERS,),
    ),
    Mutation(
        "coverage: attention beyond 1 is a bonus",
        "saccade/decoding/steps.py",
        "clamp(1e-3, 1.0)",
        "clamp(min=1e-3)",
        (STEPS,),
    ),
    Mutation(
        "prompted: the prefix costs nothing",
        "saccade/decoding/steps.py",
        "forced.scatter_(1, column, log_probs.gather(1, column))",
        "forced.scatter_(1, column, 0.0)",
        (STEPS,),
    ),
    Mutation(
        "sample: what is forbidden makes the last token likelier",
        "saccade/decoding/sample.py",
        "at = u.to(cdf.device)[:, None] * cdf[:, -1:]",
        "at = u.to(cdf.device)[:, None]",
        (SAMPLE,),
    ),
    Mutation(
        "sample: the same number at every step",
        "saccade/decoding/sample.py",
        "x = _mix(x ^ np.uint64(t))",
        "x = _mix(x)",
        (SAMPLE,),
    ),
    Mutation(
        "risk: equal texts do not add",
        "saccade/decoding/risk.py",
        "weights.get(text, 0.0) + exp(log_weight - top)",
        "exp(log_weight - top)",
        (RISK,),
    ),
    Mutation(
        "risk: all texts weigh the same",
        "saccade/decoding/risk.py",
        "exp(log_weight - top)",
        "1.0",
        (RISK,),
    ),
    Mutation(
        "ensembles: the CTC head of the first member alone",
        "saccade/models/ensembles.py",
        "for head in member.ctc_heads(read)]",
        "for head in member.ctc_heads(read)][:1]",
        ("tests/tasks/test_ctc.py::test_seeds_of_one_run_are_heard_as_members_given_beside_it",),
    ),
    Mutation(
        "cache: a lone hypothesis hears its siblings",
        "saccade/nn/cache.py",
        "if rows == M and cache.slots is None:",
        "if rows == M:",
        ("tests/laws/test_models.py::test_reordering_a_state_is_reordering_its_rows",),
    ),
)
