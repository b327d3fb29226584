"""Ways to break pre-training, and the tests that notice."""

from tests.mutations.mutation import Mutation

LAWS = "tests/laws/test_objectives.py"
SHARES = "tests/tasks/test_objectives.py"
RUNS = "tests/tasks/test_pretrain.py"

OBJECTIVES = (
    Mutation(
        "permuted: a query sees its own token",
        "saccade/tasks/objectives.py",
        "np.append(ranks, ranks[chosen] - 1)",
        "np.append(ranks, ranks[chosen])",
        (LAWS, SHARES),
    ),
    Mutation(
        "permuted: queries are seen",
        "saccade/tasks/objectives.py",
        "np.append(order, np.full(len(chosen), UNSEEN))",
        "np.append(order, np.zeros(len(chosen), np.int64))",
        (SHARES,),
    ),
    Mutation(
        "masked: what is asked for is not hidden",
        "saccade/tasks/objectives.py",
        "source[chosen[lot < objective.mask]] = ids.mask",
        "source[chosen[lot > objective.mask]] = ids.mask",
        (SHARES, LAWS),
    ),
    Mutation(
        "a view: places are ignored",
        "saccade/nn/transformer.py",
        "places = None if view is None else view.places",
        "places = None",
        (LAWS,),
    ),
    Mutation(
        "a view: a position sees what it should not",
        "saccade/nn/padded.py",
        "return self.order[:, None, :] <= self.sight[:, :, None]",
        "return self.order[:, None, :] <= self.sight[:, :, None] + 1",
        (LAWS,),
    ),
    Mutation(
        "pretrain: every epoch has the same masks",
        "saccade/tasks/pretrain.py",
        "draws = draws_of(self.config.seed, epoch, n)",
        "draws = draws_of(self.config.seed, 1, n)",
        (f"{RUNS}::test_what_is_measured_on_never_changes_and_training_rows_do_unless_told",),
    ),
)
