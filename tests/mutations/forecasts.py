"""Ways to break forecasts, and the tests that notice."""

from tests.mutations.mutation import Mutation

LAWS = "tests/laws/test_forecasts.py"
COMMANDS = "tests/cli/test_forecast.py"

FORECASTS = (
    Mutation(
        "windows: a look-back ends in its target",
        "saccade/data/windows.py",
        "rows = first[:, None] + np.arange(-S, H)",
        "rows = first[:, None] + np.arange(-S + 1, H + 1)",
        (f"{LAWS}::test_changing_the_future_changes_no_forecast",),
    ),
    Mutation(
        "windows: the last window is dropped",
        "saccade/data/windows.py",
        "len(values) - span.horizon + 1)",
        "len(values) - span.horizon)",
        (f"{COMMANDS}::test_a_back_test_scores_every_window",),
    ),
    Mutation(
        "forecasts: what a window was divided by is forgotten in its density",
        "saccade/models/forecaster.py",
        "return self.distribution.nll(raw, values).sum(1) + scale.sum((1, 2))",
        "return self.distribution.nll(raw, values).sum(1)",
        (f"{LAWS}::test_a_density_is_one_of_the_series_themselves",),
    ),
    Mutation(
        "forecasts: effects are not added to the forecast",
        "saccade/models/forecaster.py",
        "return forecast * self.level.scale + self.level.centre + self.effects",
        "return forecast * self.level.scale + self.level.centre",
        (f"{COMMANDS}::test_known_covariates_stand_in_rows_that_are_still_empty",),
    ),
    Mutation(
        "tables: a dev file looks back to nothing",
        "saccade/data/seasons.py",
        "if not 0 <= missing < lookback:",
        "if True:",
        (f"{COMMANDS}::test_a_dev_file_looks_back_to_the_training_file",),
    ),
    Mutation(
        "forecast: rows before the first are made up",
        "saccade/tasks/forecast.py",
        "if first < span.lookback:",
        "if not first:",
        (f"{COMMANDS}::test_a_table_shorter_than_the_look_back_is_no_basis_of_a_forecast",),
    ),
)
