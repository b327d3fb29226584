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
        "np.append(key_order, np.full(len(chosen), UNSEEN))",
        "np.append(key_order, np.zeros(len(chosen), np.int64))",
        (SHARES,),
    ),
    Mutation(
        "masked: what is asked for is not hidden",
        "saccade/tasks/objectives.py",
        "source[chosen[drawn < objective.mask]] = ids.mask",
        "source[chosen[drawn > objective.mask]] = ids.mask",
        (SHARES, LAWS),
    ),
    Mutation(
        "a view: position ids are ignored",
        "saccade/nn/transformer.py",
        "position_ids = None if view is None else view.position_ids",
        "position_ids = None",
        (LAWS,),
    ),
    Mutation(
        "a view: a position sees what it should not",
        "saccade/nn/padded.py",
        "return self.key_order[:, None, :] <= self.query_order[:, :, None]",
        "return self.key_order[:, None, :] <= self.query_order[:, :, None] + 1",
        (LAWS,),
    ),
    Mutation(
        "pretrain: every epoch has the same masks",
        "saccade/tasks/pretrain.py",
        "rng = rng_of(self.config.seed, epoch, n)",
        "rng = rng_of(self.config.seed, 1, n)",
        (f"{RUNS}::test_what_is_measured_on_never_changes_and_training_rows_do_unless_told",),
    ),
)
