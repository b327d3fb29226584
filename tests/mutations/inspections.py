"""Ways to break inspection, comparisons and pages, and the tests that notice."""

from tests.mutations.mutation import Mutation

LAWS = "tests/inspect/test_laws.py"
VIEWS = "tests/inspect/test_views.py"
FLOW = "tests/inspect/test_flow.py"
TABLES = "tests/inspect/test_tables.py"
PAGE = "tests/inspect/test_page.py"
RUNS = "tests/inspect/test_runs.py"
SIGNIFICANCE = "tests/metrics/test_significance.py"

INSPECTION = (
    Mutation(
        "integrated gradients are taken at the beginning of each part",
        "saccade/inspect/saliency.py",
        "torch.split((starts + stops) / 2, case.rows_at_once)",
        "torch.split(starts, case.rows_at_once)",
        (f"{LAWS}::test_integrated_gradients_are_complete_up_to_their_error",),
    ),
    Mutation(
        "occlusion hides the position after",
        "saccade/inspect/saliency.py",
        "occluded[torch.arange(len(places)), places] = blank[0, places]",
        "occluded[torch.arange(len(places)), places - 1] = blank[0, places]",
        (f"{LAWS}::test_occlusion_is_what_a_position_takes_away",),
    ),
    Mutation(
        "another head is muted",
        "saccade/inspect/maps.py",
        "mixed[torch.arange(len(heads)), :, heads] = 0.0",
        "mixed[torch.arange(len(heads)), :, heads[::-1]] = 0.0",
        (f"{LAWS}::test_a_head_is_worth_what_its_weights_are",),
    ),
    Mutation(
        "a view leaves its hooks on the network",
        "saccade/inspect/case.py",
        "stack.callback(module.register_forward_hook(partial(put, new)).remove)",
        "module.register_forward_hook(partial(put, new))",
        (f"{LAWS}::test_views_are_the_same_twice_and_change_nothing",),
    ),
    Mutation(
        "a view leaves the network in evaluation",
        "saccade/inspect/view.py",
        "            module.training = mode",
        "            module.training = False",
        (f"{VIEWS}::test_a_view_is_json_and_leaves_the_network_in_its_mode",),
    ),
    Mutation(
        "the answer of a tree is any node with its last token",
        "saccade/inspect/beams.py",
        "    for token in tokens:\n        same =",
        "    for token in tokens[-1:]:\n        same =",
        (f"{VIEWS}::test_node_scores_equal_a_rescoring",),
    ),
    Mutation(
        "norms of gradients leave out the cell of an LSTM",
        "saccade/inspect/flow.py",
        "                total += grad.square().sum(-1)",
        "                total = grad.square().sum(-1)",
        (f"{FLOW}::test_the_norms_are_those_of_the_jacobians",),
    ),
    Mutation(
        "rotary positions have the usual theta",
        "saccade/inspect/tables.py",
        "speeds = module.rotary_frequencies.speeds(module.head_dim, None)",
        "speeds = module.rotary_frequencies._replace(theta=10000.0).speeds(module.head_dim, None)",
        (f"{TABLES}::test_turns_are_those_of_rotary_positions",),
    ),
    Mutation(
        "text is not escaped in pages",
        "saccade/inspect/page.py",
        'return escape("".join(map(_visible, str(text))))',
        'return "".join(map(_visible, str(text)))',
        (f"{PAGE}::test_hostile_tokens_are_shown_as_they_are",),
    ),
    Mutation(
        "what no page can hold is written as it is",
        "saccade/inspect/page.py",
        'return escape("".join(map(_visible, str(text))))',
        "return escape(str(text))",
        (f"{PAGE}::test_hostile_tokens_are_shown_as_they_are",),
    ),
    Mutation(
        "curves of a resumed run keep what was done twice",
        "saccade/inspect/curves.py",
        'steps = [event for event in steps if (event["step"] or 0) <= start]',
        "pass",
        (f"{RUNS}::test_curves_of_a_run_on_its_way_are_those_so_far",),
    ),
    Mutation(
        "a margin is the worse less the better",
        "saccade/inspect/probes.py",
        "scores[2 * i][0] - scores[2 * i + 1][0] for i",
        "scores[2 * i + 1][0] - scores[2 * i][0] for i",
        (f"{RUNS}::test_probes_are_differences_of_log_p",),
    ),
    Mutation(
        "columns of a confusion matrix are the right labels",
        "saccade/inspect/confusion.py",
        "counts[index.get(a, len(names) - 1)][index.get(b, len(names) - 1)] += 1",
        "counts[index.get(b, len(names) - 1)][index.get(a, len(names) - 1)] += 1",
        (f"{RUNS}::test_a_confusion_matrix_counts_every_label",),
    ),
    Mutation(
        "randomisation swaps lines of one system alone",
        "saccade/metrics/significance.py",
        "first.value(second.rows.sum(0) - swapped)",
        "first.value(second.rows.sum(0) + 0 * swapped)",
        (f"{SIGNIFICANCE}::test_samples_are_the_same_for_a_seed_and_any_memory",),
    ),
    Mutation(
        "the bootstrap draws other lines for each system",
        "saccade/metrics/significance.py",
        "second.value(weights @ second.rows) - first.value(weights @ first.rows)",
        "second.value(weights[::-1] @ second.rows) - first.value(weights @ first.rows)",
        (f"{SIGNIFICANCE}::test_the_same_system_twice_never_differs",),
    ),
    Mutation(
        "McNemar's test is one-sided",
        "saccade/metrics/significance.py",
        "min(1.0, 2 * tail)",
        "min(1.0, tail)",
        (f"{SIGNIFICANCE}::test_mcnemar_is_the_binomial_test",),
    ),
)  # fmt: skip
