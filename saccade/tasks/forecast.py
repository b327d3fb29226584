"""Forecast: distributions of the next values of series, and baselines beside them."""

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from saccade import config as c
from saccade.data.batches import Batches, Epoch
from saccade.data.corpora import Array, Corpus
from saccade.data.kinds import Vocabularies
from saccade.data.lines import Example, counted
from saccade.data.seasons import after, history, train_and_dev
from saccade.data.series import Table, read_table
from saccade.data.windows import SeriesField, Span, WindowExamples, Windows
from saccade.decoding.series import Choose, drawn, expected, number_stepper, unroll
from saccade.errors import CheckpointError, ConfigError, DataError
from saccade.metrics import numbers as metrics
from saccade.models.build import build_meta
from saccade.models.forecaster import AnyForecaster, Forecaster
from saccade.models.networks import Network
from saccade.nn.state import select
from saccade.tasks.baselines import Baselines
from saccade.tasks.task import (
    NO_VOCABULARIES,
    Evaluation,
    Prediction,
    Query,
    Request,
    Task,
    device_of,
)

INTERVAL = 0.8  # the probability of the interval whose coverage is measured
SAMPLES, QUICK_SAMPLES = 100, 20  # of an autoregressive network; during training
METRICS = ("mae", "mse", "rmse", "mase", "crps", "coverage")
SIMPLE = {"seasonal_naive": "seasonal-naive", "linear": "linear (ridge)"}


class ForecastDistribution(ABC):
    """The predictive distribution of some windows, (B, H, C)."""

    mean: Array

    @property
    @abstractmethod
    def deviation(self) -> Array: ...

    @abstractmethod
    def quantiles(self, levels: Sequence[float]) -> Array:
        """(levels, B, H, C)"""

    @abstractmethod
    def crps(self, gold: Array) -> Array: ...

    @abstractmethod
    def paths(self, count: int, seed: int) -> Array:
        """Samples, (count, B, H, C)."""


class Gaussians(ForecastDistribution):
    """A mean and a deviation of each number, independent of the others."""

    def __init__(self, mean: Array, deviation: Array):
        self.mean, self._deviation = mean, deviation

    @property
    def deviation(self) -> Array:
        return self._deviation

    def quantiles(self, levels: Sequence[float]) -> Array:
        shares = torch.special.ndtri(torch.tensor(levels, dtype=torch.float64)).numpy()
        return np.stack([self.mean + share * self.deviation for share in shares])

    def crps(self, gold: Array) -> Array:
        return metrics.crps(self.mean, self.deviation, gold)

    def paths(self, count: int, seed: int) -> Array:
        draws = np.random.default_rng(seed).standard_normal((count, *self.mean.shape))
        return np.asarray(self.mean + draws * self.deviation)


class Paths(ForecastDistribution):
    """Samples, each drawn step by step, and the path of the means."""

    def __init__(self, mean: Array, samples: Array):
        self.mean, self.samples = mean, samples

    @property
    def deviation(self) -> Array:
        return np.asarray(self.samples.std(0))

    def quantiles(self, levels: Sequence[float]) -> Array:
        return np.asarray(np.quantile(self.samples, levels, 0))

    def crps(self, gold: Array) -> Array:
        return metrics.sample_crps(self.samples, gold)

    def paths(self, count: int, seed: int) -> Array:
        return self.samples[:count]


@dataclass
class Tally:
    """Summed errors of many windows; missing values do not count."""

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(METRICS, 0.0))
    count: int = 0

    def add(self, gold: Array, predicted: ForecastDistribution, unit: Array, naive: Array) -> None:
        """Numbers in deviations; `unit` scales all errors but MASE, which has the scale `naive`."""
        count = int((~np.isnan(gold)).sum())
        if not count:
            return
        low, high = predicted.quantiles([(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
        mean_in_units, gold_in_units = predicted.mean * unit, gold * unit
        errors = {
            "mae": metrics.mae(mean_in_units, gold_in_units),
            "mse": metrics.mse(mean_in_units, gold_in_units),
            "mase": metrics.mase(predicted.mean, gold, naive),
            "crps": float(np.nanmean(predicted.crps(gold) * unit)),
            "coverage": metrics.coverage(low, high, gold),
        }
        for name, value in errors.items():
            self.sums[name] += count * value
        self.count += count

    def means(self) -> dict[str, float]:
        errors = {name: total / max(self.count, 1) for name, total in self.sums.items()}
        return errors | {"rmse": errors["mse"] ** 0.5}


@dataclass(frozen=True)
class Continuation:
    """A table, and the forecast of the next steps, (H, N), in the units of the file."""

    table: Table
    first: int  # the row of the first step
    mean: Array
    levels: tuple[float, ...]
    quantiles: Array  # (levels, H, N)
    samples: Array  # (n, H, N)

    @property
    def times(self) -> list[str]:
        return [self.table.time(self.first + h) for h in range(len(self.mean))]

    def with_levels(self, levels: Sequence[float]) -> "Continuation":
        """The same with some of its quantiles."""
        rows = [self.levels.index(level) for level in levels]
        return replace(self, levels=tuple(levels), quantiles=self.quantiles[rows])

    def record(self) -> dict[str, Any]:
        """For JSON."""
        series = {}
        for i, name in enumerate(self.table.names):
            series[name] = {"mean": self.mean[:, i].tolist()}
            if self.levels:
                pairs = zip(self.levels, self.quantiles, strict=True)
                series[name]["quantiles"] = {f"{x:g}": q[:, i].tolist() for x, q in pairs}
            if len(self.samples):
                series[name]["samples"] = self.samples[:, :, i].tolist()
        return {"times": self.times, "series": series}

    def csv(self) -> str:
        """In the layout of the table: the same columns, then quantiles; a row for each sample."""
        roles, names = self.table.roles, self.table.names
        times, levels = self.times, [f"{level:g}" for level in self.levels]
        text = io.StringIO()
        write = csv.writer(text, lineterminator="\n").writerow
        head = ["sample"] if len(self.samples) else []
        head += [roles.time] if roles.time else []
        if roles.id:
            write([roles.id, *head, roles.series[0], *levels])
        else:
            write(
                [
                    *head,
                    *(one for name in names for one in (name, *(f"{name} {x}" for x in levels))),
                ]
            )
        paths = self.samples if len(self.samples) else self.mean[None]
        for n, values in enumerate(paths, 1):
            lead = [n] if len(self.samples) else []
            for h, time in enumerate(times):
                start = [*lead, *([time] if roles.time else [])]
                cells = [
                    [f"{x:.10g}" for x in (values[h, i], *self.quantiles[:, h, i])]
                    for i in range(len(names))
                ]
                if roles.id:
                    for name, some in zip(names, cells, strict=True):
                        write([name, *start, *some])
                else:
                    write([*start, *(one for some in cells for one in some)])
        return text.getvalue()


class Forecast(Task):
    """A field of series, and the baselines that a network is compared with."""

    higher_is_better: ClassVar[bool] = False

    def __init__(self, config: c.Config, series: SeriesField, simple: Callable[[], Baselines]):
        super().__init__(config, (), series)
        assert isinstance(config.task, c.Forecast)
        self.settings, self.series, self.simple = config.task, series, simple

    @property
    def metric(self) -> str:
        return self.settings.metric

    @classmethod
    def fit(
        cls,
        config: c.Config,
        examples: Callable[[], Iterable[Example]] = tuple,
        given: Vocabularies = NO_VOCABULARIES,
    ) -> "Forecast":
        """Fitted to the training rows; their windows are too many to be examples."""
        assert isinstance(config.task, c.Forecast)
        train, _, _ = train_and_dev(config.task, config.data)
        return cls.fit_table(config, train)

    @classmethod
    def fit_table(cls, config: c.Config, train: Table) -> "Forecast":
        """The task for a table of training rows."""
        task = config.task
        assert isinstance(task, c.Forecast)
        assert task.season
        series = SeriesField.fit(train, Span.of(task), task.season)
        windows = series.windows(train, series.span.lookback)
        baselines = Baselines.fit(windows, task.season)
        return cls(config, series, lambda: baselines)

    @classmethod
    def load(cls, config: c.Config, folder: Path) -> "Forecast":
        task = config.task
        assert isinstance(task, c.Forecast)
        path = folder / cls.files(0)[0]
        series, season = SeriesField.load(path), task.season
        whole = task.lookback and task.horizon and season
        if not whole or not season or series.span != Span.of(task):
            raise CheckpointError(f"{path}: does not fit config.toml: its windows are others")
        return cls(config, series, lambda: Baselines.load(folder, series, season))

    def save(self, folder: Path) -> None:
        super().save(folder)
        self.simple().save(folder)

    def build_meta(self) -> Network:
        N, span = len(self.series.known.names), self.series.span
        beside = c.covariate_sets(self.settings, N) * (span.past + span.known)
        size = (N if span.joint else 1) + beside
        return build_meta(self.config, [c.Vectors(c.Numbers(), size)], self.series.inventory)

    # --- windows ----------------------------------------------------------------------------------

    def encode(self, examples: Sequence[Example]) -> Corpus:
        """Windows that are written as JSON."""
        cells = [(row.source[0], row.target) for row in examples]
        return self.corpus(self.series.encode(cells))

    def corpus(self, windows: Windows) -> Corpus:
        """Windows as what a task trains on."""
        return Corpus((), windows)

    def examples(self, corpus: Corpus) -> WindowExamples:
        """The windows of a corpus as JSON, made lazily."""
        return WindowExamples(self.series, windows_in(corpus))

    def epoch(self, corpus: Corpus, number: int) -> Batches:
        rng = np.random.default_rng([self.config.seed, number])
        order, size = rng.permutation(len(corpus)), self.rows(self.config.train.batch_tokens)
        return Epoch(corpus, [order[i : i + size] for i in range(0, len(order), size)])

    def rows(self, budget: int) -> int:
        """The number of windows in a batch, from a budget of steps."""
        return max(1, budget // (self.series.span.lookback + self.series.span.horizon))

    def predict_distribution(
        self,
        network: AnyForecaster,
        windows: Windows,
        rows: Array,
        samples: int = SAMPLES,
        seed: int = 1,
    ) -> ForecastDistribution:
        """The predictive distribution of some windows; of an autoregressive network by sampling."""
        device = device_of(network)
        sources = [source.to(device) for source in windows.parts(rows)[0]]
        with torch.inference_mode():
            if isinstance(network, Forecaster):
                predicted = network.normal(sources)
                return Gaussians(_array(predicted.mean), _array(predicted.deviation))
            window, state = network.start(sources)
            H, distribution = network.frame.horizon, network.distribution

            def unrolled(choose: Choose, times: int) -> Array:
                """`times` paths of each window, (times, B, H, C)."""
                index = torch.arange(len(rows), device=device).repeat_interleave(times)
                step, first = number_stepper(network.decoder), window.own[index, -1]
                paths = unroll(step, select(state, index), first, distribution, choose=choose,
                               limits=[H] * len(index))  # fmt: skip
                values = torch.stack([one.values for one in paths])
                values = values.view(len(rows), times, *values.shape[1:]).transpose(0, 1)
                return _array(torch.stack([window.unframe(path) for path in values]))

            keys = (rows[:, None] * samples + np.arange(samples)).reshape(-1).tolist()
            mean = unrolled(expected(distribution), 1)[0]
            return Paths(mean, unrolled(drawn(distribution, seed, keys), samples))

    def nll(self, network: AnyForecaster, windows: Windows, rows: Array) -> tuple[Array, Array]:
        """-log p of some windows' targets, and their numbers of values."""
        sources, target = windows.parts(rows)
        device = device_of(network)
        with torch.inference_mode():
            paths = network.nll([source.to(device) for source in sources], target.to(device))
        counts = (~target.values.isnan()).sum((1, 2)).numpy()
        return _array(paths), counts

    # --- the interface of a task ------------------------------------------------------------------

    def evaluating(
        self, network: AnyForecaster, corpus: Corpus, examples: Sequence[Example], quick: bool
    ) -> Evaluation:
        """The metrics of these windows; unless `quick`, also those of the baselines."""
        windows, scales = windows_in(corpus), self.series.scales
        size, tallies = self.rows(self.config.decode.batch_tokens), {"": Tally()}
        simple = None if quick else self.simple()
        nll = 0.0
        for start in range(0, len(examples), size):
            rows = np.arange(start, min(start + size, len(examples)))
            _, series = windows.places(rows)
            samples = QUICK_SAMPLES if quick else SAMPLES
            predicted = self.predict_distribution(network, windows, rows, samples)
            gold = windows.targets(rows)
            unit = scales.deviation[series][:, None]
            naive = scales.naive[series][:, None] / unit
            unit = unit if self.settings.units == "file" else np.ones_like(unit)
            tallies[""].add(gold, predicted, unit, naive)
            nll += float(self.nll(network, windows, rows)[0].sum())
            for name, found in (simple.forecast(windows, rows) if simple else {}).items():
                tallies.setdefault(f"{name}_", Tally()).add(gold, Gaussians(*found), unit, naive)
            yield (rows[-1] + 1) / len(examples)
        scores = {"loss": nll / max(tallies[""].count, 1)}
        for prefix, tally in tallies.items():
            scores |= {f"{prefix}{name}": value for name, value in tally.means().items()}
        return scores

    def report(self, scores: dict[str, float]) -> list[str]:
        """The back-test as a table, a row for each method."""
        names = [name for name in METRICS if name in scores]
        rows = {"this model": "", **{title: f"{key}_" for key, title in SIMPLE.items()}}
        table = [["method", *names]]
        for title, prefix in rows.items():
            if f"{prefix}{names[0]}" in scores:
                table.append([title, *(f"{scores[prefix + name]:.4f}" for name in names)])
        return ["\t".join(row) for row in table]

    def predict(
        self, network: AnyForecaster, queries: Sequence[Query], request: Request
    ) -> list[Prediction]:
        """For each window as JSON the means and deviations of the next steps as JSON."""
        if not queries:
            return []
        corpus = self.encode([Example(query.source, None) for query in queries])
        windows, results = windows_in(corpus), []
        size = self.rows(request.decode.batch_tokens)
        for start in range(0, len(queries), size):
            rows = np.arange(start, min(start + size, len(queries)))
            predicted = self.predict_distribution(network, windows, rows)
            _, series = windows.places(rows)
            means = self.series.in_file_units(predicted.mean, series)
            sizes = predicted.deviation * self.series.scales.deviation[series][:, None]
            for mean, deviation in zip(means, sizes, strict=True):
                record = {"mean": mean.tolist(), "deviation": deviation.tolist()}
                results.append(Prediction(json.dumps(record), 0.0))
        return results

    def score(self, network: AnyForecaster, examples: Sequence[Example]) -> list[tuple[float, int]]:
        windows, results = windows_in(self.encode(examples)), []
        size = self.rows(self.config.decode.batch_tokens)
        for start in range(0, len(examples), size):
            rows = np.arange(start, min(start + size, len(examples)))
            sums, counts = self.nll(network, windows, rows)
            results += [(-float(total), int(n)) for total, n in zip(sums, counts, strict=True)]
        return results

    # --- files ------------------------------------------------------------------------------------

    def table_in(self, path: str) -> Table:
        """The table in a file, which has the columns of the training file."""
        return read_table(path, self.settings, self.config.data, self.series.known)

    def windows_of(self, table: Table, before: Table | None) -> Windows:
        """All windows of a table; the first look back to the rows of another that it continues."""
        span, first = self.series.span, 0
        if before is not None and table.clock is not None:
            table, first = after(before, table, history(self.settings))
        windows = self.series.windows(table, first or span.lookback)
        if not len(windows):
            raise DataError(
                f"{table.file}: {len(table) - first:,} rows are too few for a look-back of "
                f"{span.lookback:,} and a horizon of {span.horizon:,}: give more rows"
            )
        return windows

    def table_of(self, windows: Windows) -> Table:
        """The rows of windows as a table in the units of the file."""
        scales, known = self.series.scales, self.series.known
        values = np.asarray(windows.values) * scales.deviation + scales.mean
        beside = np.asarray(windows.covariates) * scales.beside_deviation + scales.beside_mean
        start = int(windows.steps[0])
        lines = np.zeros(len(values), np.int64)
        return Table("", known.roles, known.clock, start, known.names, values, beside, lines)

    def first_step(self, table: Table) -> int:
        """The row after the last that has a value of a series."""
        observed = np.flatnonzero((~np.isnan(table.values)).any(1))
        if not len(observed):
            raise DataError(f"{table.file}: holds no value to continue from")
        return int(observed[-1]) + 1

    def last_windows(self, table: Table) -> Windows:
        """The windows at a table's end, whose targets are unknown: of all series, or each."""
        span, N, first = self.series.span, len(self.series.known.names), self.first_step(table)
        longer = _lengthened(table, first + span.horizon)
        base = self.series.windows(longer, len(longer))
        index = np.array([first]) if span.joint else first * N + np.arange(N)
        return Windows(base.values, base.covariates, base.steps, index, span)

    def forecast(
        self,
        network: AnyForecaster,
        table: Table,
        levels: Sequence[float] = (),
        samples: int = 0,
        seed: int = 1,
    ) -> Continuation:
        """The steps after the last row of a table that has a value of a series.

        Known covariates of these steps stand in rows whose series are empty; where there are fewer
        rows than the horizon, there are fewer steps.
        """
        if bad := [level for level in levels if not 0 < level < 1]:
            raise ConfigError(f"a quantile is between 0 and 1, not {bad[0]:g}")
        span, N = self.series.span, len(self.series.known.names)
        first, steps = self.first_step(table), span.horizon
        if first < span.lookback:
            raise DataError(
                f"{table.file}: {counted(first, 'row')}, and a forecast looks back on "
                f"{span.lookback:,}: give more rows"
            )
        if span.known:
            given = ~np.isnan(table.covariates[first : first + steps, :, span.past :])
            steps = int(np.append(given.all((1, 2)), False).argmin())
            if not steps:
                raise DataError(
                    f"{table.file}: add rows after {table.time(first - 1)} with empty series and "
                    f"with values of {', '.join(self.settings.known)}: they are known in the future"
                )
        windows = self.last_windows(table)
        rows = np.arange(len(windows))
        predicted = self.predict_distribution(network, windows, rows, max(samples, SAMPLES), seed)
        _, series = windows.places(rows)

        def placed(values: Array) -> Array:
            """(..., B, H, C) as (..., steps, N), in the units of the file."""
            placed_values = self.series.in_file_units(values, series)
            placed_values = (
                placed_values[..., 0, :, :]
                if span.joint
                else np.moveaxis(placed_values[..., 0], -2, -1)
            )
            return np.asarray(placed_values[..., :steps, :])

        return Continuation(
            table,
            first,
            placed(predicted.mean),
            tuple(levels),
            placed(predicted.quantiles(levels)) if levels else np.zeros((0, steps, N)),
            placed(predicted.paths(samples, seed)),
        )


def _array(tensor: torch.Tensor) -> Array:
    return np.asarray(tensor.double().cpu().numpy())


def windows_in(corpus: Corpus) -> Windows:
    """The windows of a corpus."""
    assert isinstance(corpus.target, Windows)
    return corpus.target


def _lengthened(table: Table, rows: int) -> Table:
    """A table with at least `rows` rows: missing ones are added without values."""

    def more(values: Array) -> Array:
        lacking = max(0, rows - len(values))
        return np.concatenate([values, np.full((lacking, *values.shape[1:]), np.nan)])

    return replace(table, values=more(table.values), covariates=more(table.covariates))
