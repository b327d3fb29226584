"""From a run and an input to a case: with the run's own output, or a given target."""

from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from saccade.data.batches import collate, padded
from saccade.data.fields import SourceLabels, Text
from saccade.data.lines import Example
from saccade.errors import ConfigError, DataError
from saccade.inspect.case import (
    Case,
    ForecastCase,
    GeneratedCase,
    LabelCase,
    LanguageModelCase,
    MaskedCase,
    NumbersCase,
    SeriesCase,
    go_on,
    stopped,
)
from saccade.models.forecaster import AnyForecaster, StepForecaster
from saccade.models.networks import Classifier, Generator, Regressor, Tagger, TokenPredictor
from saccade.nn.padded import Padded, pad
from saccade.runs.run import Run
from saccade.tasks.classify import Classify
from saccade.tasks.forecast import Forecast, windows_in
from saccade.tasks.generate import EncodedQuery, GeneratingTask, SearchResult
from saccade.tasks.labels import LabelTask
from saccade.tasks.language import LanguageModel
from saccade.tasks.pretrain import Fill, Restore, batch_of
from saccade.tasks.regress import Regress
from saccade.tasks.series import Series
from saccade.tasks.tag import Tag
from saccade.tasks.task import Query, Request, Source, device_of

Item = str | Sequence[str] | Path  # as `predict` takes it; of a forecast also the file of a table
Settings = Mapping[str, Any] | None
EMPTY = "the input is empty: write something to look at"


class Searched(NamedTuple):
    """A query and the result of its search."""

    query: EncodedQuery
    request: Request
    found: SearchResult
    text: str


def open_case(
    run: Run, item: Item, target: str = "", settings: Settings = None, prefix: str = ""
) -> Case:
    """The case of an input and a target, by default the run's prediction."""
    task, network = run.task, run.network
    match task:
        case LanguageModel() if isinstance(network, Generator):
            return continued(run, item, target, settings)
        case GeneratingTask() if isinstance(network, Generator):
            return generated(run, item, target, settings, prefix)
        case LabelTask():
            return labelled(run, task, item, target)
        case Fill() if isinstance(network, TokenPredictor):
            return filled(run, task, item, target)
        case Regress() if isinstance(network, Regressor):
            return measured(run, task, item, target)
        case Series() if isinstance(network, Generator):
            return drawn(run, task, item, target)
        case Forecast() if isinstance(network, AnyForecaster):
            return forecast(run, task, item, target)
        case _:
            raise ConfigError(
                f"a run of {run.config.task.title} reads no input that could be looked into; look "
                "at its embeddings"
            )


def source_of(run: Run, item: Item) -> Source:
    """The columns of an input that is not empty."""
    if isinstance(item, Path):
        item = str(item)
    source = run.source_of(item)
    if not any(text.strip() for text in source):
        raise DataError(EMPTY)
    problems = run.task.problems([Query(source)]) if run.task.fallible else {}
    if problems:
        raise DataError(problems[0])
    return source


def read_sources(run: Run, source: Source) -> tuple[tuple[Padded, ...], list[list[str] | None]]:
    """One row of each source, and the names of its positions, None if they are numbered."""
    task, device = run.task, device_of(run.network)
    rows, names = [], []
    for field, cells in zip(task.sources, task.read([source]), strict=True):
        row = padded(field.encode(cells), np.arange(1)).to(device)
        rows.append(row)
        names.append(names_of(field, row, cells))
    if any(row.values.size(1) == 0 for row in rows):
        raise DataError(EMPTY)
    return tuple(rows), names


def names_of(field: Any, row: Padded, cells: Sequence[Any]) -> list[str] | None:
    """The names of a row's positions: tokens as they are, labels by name."""
    if isinstance(field, Text) and field.inventory.spelled:
        return list(cells[0])  # a position for each word
    if isinstance(field, Text):
        return field.tokenizer.tokens(row.values[0].tolist())
    return [cells[0][0]] if isinstance(field, SourceLabels) else None


# --- text -----------------------------------------------------------------------------------------


def searched(
    run: Run, item: Item, settings: Settings = None, prefix: str = "", details: bool = False
) -> Searched:
    """The result of a run's search for an input."""
    task, network = run.task, run.network
    assert isinstance(task, GeneratingTask)
    assert isinstance(network, Generator)
    request = task.with_permitted(run.request(settings=settings, details=details))
    query = Query(source_of(run, item), 0, prefix, stopped=stopped.get())
    (encoded,) = task.encode_queries([query], request)
    (found,) = task.search(network, [encoded], request)
    if found.problem:
        raise DataError(found.problem)
    go_on()  # a search that was stopped has the beginning of an output
    (answer,) = task.to_text([encoded], [found], request)
    return Searched(encoded, request, found, answer.text)


def generated(
    run: Run, item: Item, target: str = "", settings: Settings = None, prefix: str = ""
) -> GeneratedCase:
    """A source and the tokens of a decoder's output."""
    task, network = run.task, run.network
    assert isinstance(task, GeneratingTask)
    assert isinstance(network, Generator)
    output, text = task.output, target
    if target and isinstance(task, Restore):
        raise ConfigError("target: what is missing is filled in by the run: leave it out")
    if target:
        ids = output.encode([target])[0]
        check_length(task, item_reading(run, task, item), ids)
    else:
        answer = searched(run, item, settings, prefix)
        ids, text = answer.found.hypotheses[0].tokens, answer.text
    sources: tuple[Padded, ...]
    if isinstance(task, Restore):
        ((row,),) = task.encode_sources([Query(source_of(run, item))])
        sources = (pad([row]).to(device_of(network)),)
        names: list[list[str] | None] = [output.tokens(row)]
    else:
        sources, names = read_sources(run, source_of(run, item))
    ids = [*ids, output.specials.eos]
    marks = output.frame.start
    read = output.tokens([marks[-1], *ids[:-1]])
    outputs = output.tokens(ids)
    return GeneratedCase(network, sources, names, outputs, text, read, marks=marks, ids=ids)


def item_reading(run: Run, task: GeneratingTask, item: Item) -> Any:
    (encoded_source,) = task.encode_sources([Query(source_of(run, item))])
    return encoded_source


def check_length(task: GeneratingTask, encoded_source: Any, ids: Sequence[int]) -> None:
    """DataError for a source or a target that is longer than the model's positions."""
    available = task.positions_left(encoded_source)
    if available < 0:
        raise DataError("the input is longer than the model's positions: shorten it")
    if len(ids) > available:
        raise DataError(
            f"the output has {len(ids):,} tokens, and the model has positions for {available:,}: "
            "shorten it"
        )


def continued(
    run: Run, item: Item, target: str = "", settings: Settings = None, complete: bool = True
) -> LanguageModelCase:
    """A text and its continuation by a language model, or the given one.

    Without `complete` only the text and the end of its line.
    """
    task, network = run.task, run.network
    assert isinstance(task, LanguageModel)
    (text, *_), output = source_of(run, item), task.output
    start = list(output.frame.line)
    if target or not complete:
        full_text = text + target
        tokens = output.encode([full_text])[0]
        check_length(task, ([*start, *tokens],), [])
    else:
        answer = searched(run, item, settings)
        tokens = task.full_output(answer.query.sources[0], answer.found.hypotheses[0].tokens)
        tokens, full_text = tokens[len(start) :], answer.text
    ids = [*tokens, output.specials.eos]
    read, outputs = output.tokens([*start, *ids[:-1]]), output.tokens(ids)
    return LanguageModelCase(network, (), [read], outputs, full_text, read, marks=start, ids=ids)


# --- labels, masks and numbers --------------------------------------------------------------------


def labelled(run: Run, task: LabelTask, item: Item, target: str = "") -> LabelCase:
    """The label of an input, or of each of its words."""
    network = run.network
    assert isinstance(network, Classifier | Tagger)
    sources, names = read_sources(run, source_of(run, item))
    with torch.inference_mode():
        logits = network.logits(sources)[0]
    if isinstance(task, Classify):
        ids = [task.labels.index(target) if target else int(logits.argmax())]
    else:
        assert isinstance(task, Tag)
        words = sources[0].words
        assert words is not None
        count = int(words.max()) + 1
        ids = task.likeliest(logits[:count])
        if target:
            given = target.split()
            if len(given) != count:
                raise DataError(f"target: {len(given)} labels, but there are {count} words")
            ids = [task.labels.index(label) for label in given]
    labels = [task.labels.label(i) for i in ids]
    return LabelCase(network, sources, names, labels, " ".join(labels), ids=ids)


def filled(run: Run, task: Fill, item: Item, target: str = "") -> MaskedCase:
    """A text and the predictions for its masks."""
    network = run.network
    assert isinstance(network, TokenPredictor)
    if target:
        raise ConfigError("target: what is missing is filled in by the run: leave it out")
    (text, *_) = source_of(run, item)
    row = np.array(task.encode_masked(text, repeat(task.vocab.mask)))
    if problem := task.problem(row):
        raise DataError(problem)
    sample = task.sample_at(row, row == task.vocab.mask)
    batch = batch_of([sample], task.target.pad).to(device_of(network))
    special = task.tokenizer.specials.ids
    case = MaskedCase(
        network,
        batch.sources,
        [task.tokenizer.tokens(sample.source.tolist())],
        [],
        "",
        target=network.tokens(batch.target),
        banned=special,
    )
    with torch.inference_mode():
        ids = case.logits(1)[0].argmax(-1).tolist()
    case.ids = torch.tensor([ids], device=case.ids.device)
    case.outputs, case.text = task.tokenizer.tokens(ids), task.fill_masks(text, ids)
    return case


def measured(run: Run, task: Regress, item: Item, target: str = "") -> NumbersCase:
    """The numbers of an input, or of each of its positions."""
    refuse_target(target)
    assert isinstance(run.network, Regressor)
    sources, names = read_sources(run, source_of(run, item))
    with torch.inference_mode():
        mean = run.network.distribution.mean(run.network.raw(sources))[0]
    outputs = [str(i + 1) for i in range(len(mean))]
    if task.per_position:
        assert sources[0].words is not None
        outputs = [str(i + 1) for i in range(int(sources[0].words.max()) + 1)]
    text = run.predict([source_of(run, item)])[0].text
    return NumbersCase(run.network, sources, names, outputs, text)


def drawn(run: Run, task: Series, item: Item, target: str = "") -> SeriesCase:
    """The rows of a series."""
    assert isinstance(run.network, Generator)
    source = source_of(run, item)
    text = target or run.predict([source])[0].text
    batch = collate(task.encode([Example(source, text)]), np.arange(1)).to(device_of(run.network))
    inputs = torch.cat(
        [torch.full_like(batch.target.values[:, :1], torch.nan), batch.target.values[:, :-1]], 1
    )
    _, names = read_sources(run, source)
    steps = [str(i + 1) for i in range(inputs.size(1))]
    read = ["<bos>", *steps[:-1]]
    return SeriesCase(run.network, batch.sources, names, steps, text, read, inputs=inputs)


def forecast(run: Run, task: Forecast, item: Item, target: str = "") -> ForecastCase:
    """A window, in JSON as for `predict` or the last of a table, and the steps after it."""
    refuse_target(target)
    network, device = run.network, device_of(run.network)
    assert isinstance(network, AnyForecaster)
    windows, row = forecast_window(task, item)
    sources, _ = windows.parts(row)
    sources = tuple(source.to(device) for source in sources)
    S, H = task.series.span.lookback, task.series.span.horizon
    inputs = None
    if isinstance(network, StepForecaster):
        mean = torch.tensor(
            task.predict_distribution(network, windows, row).mean, device=device
        ).float()
        with torch.inference_mode():
            window, _ = network.start(sources)
            inputs = ((mean - window.effects - window.level.centre) / window.level.scale)[:, :-1]
        inputs = inputs.clone()
    names = [str(i - S) for i in range(S)]
    steps = [f"+{h + 1}" for h in range(H)]
    read = [names[-1], *steps[:-1]] if isinstance(network, StepForecaster) else []
    return ForecastCase(network, sources, [names], steps, "", read, inputs=inputs)


def forecast_window(task: Forecast, item: Item) -> Any:
    """The windows with the requested one, and its number."""
    if isinstance(item, Path):
        return task.last_windows(task.table_in(str(item))), np.arange(1)
    text = item if isinstance(item, str) else item[0]
    if not text.strip():
        raise DataError(EMPTY)
    return windows_in(task.encode([Example((text,), None)])), np.arange(1)


def refuse_target(target: str) -> None:
    if target:
        raise ConfigError("target: numbers are always those that the run predicts: leave it out")
