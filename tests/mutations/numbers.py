"""Ways to break what is said in numbers, and the tests that notice."""

from tests.mutations.mutation import Mutation

DISTRIBUTIONS = "tests/nn/test_distributions.py"
LAWS = "tests/laws/test_numbers.py"
TARGETS = "tests/data/test_targets.py"
COMMANDS = "tests/cli/test_numbers.py"
SERIES = "tests/decoding/test_series.py"

NUMBERS = (
    Mutation(
        "distributions: a deviation has no floor",
        "saccade/nn/distributions.py",
        "return self.floor + F.softplus(raw)",
        "return F.softplus(raw)",
        (DISTRIBUTIONS,),
    ),
    Mutation(
        "distributions: a missing number is the mean",
        "saccade/nn/distributions.py",
        "total = density.where(known, 0.0).sum(-1)",
        "total = density.sum(-1)",
        (f"{DISTRIBUTIONS}::test_a_missing_number_is_summed_over",),
    ),
    Mutation(
        "distributions: binary numbers stand behind the others",
        "saccade/nn/distributions.py",
        "self.order = [joined.index(i) for i in range(size)]",
        "self.order = list(range(size))",
        (DISTRIBUTIONS,),
    ),
    Mutation(
        "distributions: a sample is of the likeliest component",
        "saccade/nn/distributions.py",
        "cdf <= uniforms[..., :1] * cdf[..., -1:]",
        "cdf <= 0.5 * cdf[..., -1:]",
        (f"{DISTRIBUTIONS}::test_samples_have_the_mean_and_the_distribution_function",),
    ),
    Mutation(
        "networks: a decoder of numbers reads what it is to say",
        "saccade/models/networks.py",
        "return torch.cat([missing(target.values[:, :1]), target.values[:, :-1]], 1), target",
        "return target.values, target",
        (f"{LAWS}::test_before_the_first_numbers_all_are_missing",),
    ),
    Mutation(
        "series: every step draws the same numbers",
        "saccade/decoding/series.py",
        "uniforms(seed, row_keys, t * draws + i)",
        "uniforms(seed, row_keys, i)",
        (f"{SERIES}::test_steps_are_drawn_each_by_itself",),
    ),
    Mutation(
        "series: a draw depends on the row, not on its key",
        "saccade/decoding/series.py",
        "np.array([keys[row] for row in rows])",
        "np.array(rows)",
        (f"{LAWS}::test_a_series_is_drawn_the_same_in_any_batch",),
    ),
    Mutation(
        "series: an end is for nothing",
        "saccade/decoding/series.py",
        "no_numbers[:, end] = 1.0",
        "no_numbers[:, end] = nan",
        (SERIES,),
    ),
    Mutation(
        "targets: what was always 0 or 1 has a density",
        "saccade/data/targets.py",
        "bits: Array = np.all(np.isin(series, (0.0, 1.0)) | np.isnan(series), 0)",
        "bits: Array = np.all(np.isnan(series), 0)",
        (TARGETS,),
    ),
    Mutation(
        "numbers: log p forgets the units",
        "saccade/tasks/numbers.py",
        "return -(nll + ((~values.isnan()) * scale).sum(-1))",
        "return -nll",
        (f"{COMMANDS}::test_nats_do_not_depend_on_the_units",),
    ),
    Mutation(
        "split: all examples of a label are on one side",
        "saccade/setup/split.py",
        "key, seen = _by_example, None",
        "seen = None",
        (f"{COMMANDS}::test_every_law_holds_on_a_run_of_numbers",),
    ),
)
