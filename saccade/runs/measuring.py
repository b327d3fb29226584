"""The evaluation of a run: metrics on data, log p of each target, and beams beside exact search."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from saccade.data.lines import Example
from saccade.data.vectors import read_tests
from saccade.data.windows import Windows
from saccade.errors import CheckpointError, ConfigError
from saccade.models.networks import Generator
from saccade.runs.guard import check_ids, with_root
from saccade.setup.prepare import reopen
from saccade.tasks.exact import Comparison
from saccade.tasks.exact import compare as compare_searches
from saccade.tasks.forecast import Forecast, windows_in
from saccade.tasks.generate import GeneratingTask
from saccade.tasks.task import Evaluation, chunks
from saccade.tasks.translate import EVALUATED_AT_ONCE, Translate
from saccade.tasks.vectors import WordVectors

if TYPE_CHECKING:
    from saccade.runs.run import Run

SCORED_AT_ONCE = 2048  # lines


def evaluate(
    run: "Run",
    data: Sequence[Any],
    settings: Mapping[str, Any] | None,
    others: Sequence["Run"],
) -> Evaluation:
    """A generator that yields the share done and returns the task's metrics on data.

    Without data it is the run's own dev set.
    """
    task, network = run.task, run.network
    rows: Sequence[Example]
    if data and isinstance(task, Forecast):
        corpus = task.corpus(windows(run, task, data))
        rows = task.examples(corpus)
    elif data and isinstance(task, WordVectors) and (tests := read_tests(data)):
        return (yield from task.score_tests(run.require_vectors()[1], tests))
    elif data:
        rows = list(run.rows(*data))
        corpus = task.encode(rows)
    else:
        found = reopen(with_root(run.config, run.root), run.folder)
        corpus, rows = found.dev, found.dev_examples
        check_ids(task, corpus, run.folder)
        if task.fallible:
            task.remember(corpus, rows)
            run.engines.close()  # processes that were forked before do not have it
    request = run.request(settings=settings, others=others)
    if isinstance(task, Translate) and isinstance(network, Generator):
        answer = partial(run.answers, request=request, at_once=EVALUATED_AT_ONCE)
        return (yield from task.evaluate_answers(network, corpus, rows, answer))
    own, decode = run.config.decode, request.decode
    same = own.model_copy(update={"int8": decode.int8, "engine": decode.engine})
    if others or decode != same or decode.engine == "ctranslate2":
        raise ConfigError(
            f"the task '{run.config.task.kind}' is measured without a search: of the settings "
            "only int8 has an effect"
        )
    measured = run.engines.packed(int8=True) if decode.int8 else network
    return (yield from task.evaluating(measured, corpus, rows, quick=False))


def score(run: "Run", data: Sequence[Any]) -> Iterator[tuple[float, int]]:
    """For each example log p(target | source), and its number of tokens."""
    rows = run.rows(*data)
    if isinstance(run.task, Forecast):
        rows = iter(run.task.examples(run.task.corpus(windows(run, run.task, data))))
    for some in chunks(rows, SCORED_AT_ONCE):
        yield from run.task.score(run.network, some)


def compare(
    run: "Run", data: Any, settings: Mapping[str, Any] | None, budget: int, order: str
) -> Iterator[Comparison]:
    """For each source the optimum of exact search, beside the results of beam search."""
    if not isinstance(run.task, GeneratingTask) or not isinstance(run.network, Generator):
        raise ConfigError(f"the task '{run.config.task.kind}' does not search")
    request = run.exact_request(dict(settings or {}) | {"budget": budget, "order": order})
    yield from compare_searches(run.task, run.network, list(run.rows(data)), request)


def windows(run: "Run", task: Forecast, data: Sequence[Any]) -> Windows:
    """All windows of a table; the first look back to the run's own rows, if they continue."""
    if len(data) != 1:
        raise ConfigError(f"a forecast is measured on one table of series, not {len(data)}")
    if not isinstance(data[0], str | os.PathLike):
        raise ConfigError("a forecast is measured on the table in a file: give its path")
    before = None
    with suppress(CheckpointError):  # its data may be gone
        before = task.table_of(windows_in(reopen(run.config, run.folder).dev))
    return task.windows_of(task.table_in(os.fspath(data[0])), before)
