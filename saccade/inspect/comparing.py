"""Two runs on the same lines: the metrics of their task, and the significance of differences."""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np
import torch

from saccade.data.batches import collate
from saccade.data.lines import UNSCORED, Example, labels_of
from saccade.errors import ConfigError, DataError
from saccade.inspect.packing import number
from saccade.metrics import significance
from saccade.metrics import statistics as sums
from saccade.metrics.labels import is_bio
from saccade.metrics.statistics import Statistics
from saccade.metrics.text import similarity
from saccade.models.networks import Generator, Regressor
from saccade.runs.measuring import windows
from saccade.runs.run import Run
from saccade.tasks.classify import Classify
from saccade.tasks.forecast import Forecast, windows_in
from saccade.tasks.labels import LabelTask
from saccade.tasks.language import LanguageModel
from saccade.tasks.numbers import NumberTask
from saccade.tasks.series import Series, distribution_of
from saccade.tasks.tag import Tag
from saccade.tasks.task import device_of
from saccade.tasks.translate import Translate, references_of
from saccade.tasks.vectors import WordVectors

SHOWN = 10  # lines that differ most
DIFFERS, SAME = "a difference", "no difference"


class Measured(NamedTuple):
    """A run's metrics as sums over lines, and its output and quality for each line."""

    metrics: dict[str, Statistics]  # the main one first
    texts: list[str]
    values: list[float]  # the quality of each line; higher is better
    correct: list[bool]  # of each label, if there are labels


def compare_runs(
    first: Run,
    second: Run,
    data: Any,
    settings: Mapping[str, Any] | None = None,
    samples: int = significance.SAMPLES,
    lines: int = SHOWN,
    seed: int = 1,
) -> dict[str, Any]:
    """The view: for every metric both scores, the interval of their difference, and p-values."""
    tasks = first.task, second.task
    if type(tasks[0]) is not type(tasks[1]):
        raise ConfigError(
            f"{first.folder} and {second.folder} have different tasks: {first.config.task.title}, "
            f"{second.config.task.title}"
        )
    if isinstance(tasks[0], WordVectors):
        raise ConfigError("word vectors are not measured line by line: use evaluate")
    if not 100 <= samples <= 1_000_000:
        raise ConfigError(f"samples = {samples}: from 100 to 1,000,000")
    rows = rows_of(first, data)
    if not rows:
        raise DataError("nothing to compare: there are no examples")
    sources, gold = shown_lines(first, rows)
    found = [measured(run, rows, settings) for run in (first, second)]
    metrics = []
    for name, one in found[0].metrics.items():
        if (other := found[1].metrics.get(name)) is None:
            continue
        tested = significance.compare(one, other, samples, seed)
        metrics.append(
            {
                "name": name,
                "higher_is_better": one.higher,
                **{key: number(value) for key, value in tested._asdict().items()},
                "verdict": DIFFERS if tested.differs else SAME,
            }
        )
    answer = {
        "kind": "compare",
        "runs": [str(first.folder), str(second.folder)],
        "lines": len(sources),
        "samples": samples,
        "level": significance.LEVEL,
        "metrics": metrics,
    }
    if found[0].correct:
        answer["mcnemar"] = significance.mcnemar(found[0].correct, found[1].correct)._asdict()
    differences = [b - a for a, b in zip(found[0].values, found[1].values, strict=True)]
    order = sorted(range(len(differences)), key=lambda i: (-abs(differences[i]), i))[:lines]
    answer["differ_most"] = [
        {
            "line": i + 1,
            "source": sources[i],
            "target": gold[i],
            "first": found[0].texts[i],
            "second": found[1].texts[i],
            "values": [number(found[0].values[i]), number(found[1].values[i])],
        }
        for i in order
        if differences[i] or found[0].texts[i] != found[1].texts[i]
    ]
    return answer


def rows_of(run: Run, data: Any) -> Sequence[Example]:
    """The examples to measure on."""
    files = [data] if isinstance(data, str) else data
    if isinstance(run.task, Forecast):
        corpus = run.task.corpus(windows(run, run.task, files))
        return list(run.task.examples(corpus))
    return list(run.rows(*files) if isinstance(files, list | tuple) else run.rows(files))


def shown_lines(run: Run, rows: Sequence[Example]) -> tuple[list[str], list[str]]:
    """The source and target of each line, as text."""
    if isinstance(run.task, Translate):
        references = references_of(rows)
        return [" | ".join(source) for source in references], [r[0] for r in references.values()]
    targets = ["" if row.target is None else " ".join(labels_of(row.target)) for row in rows]
    return [" ".join(row.source) for row in rows], targets


def measured(run: Run, rows: Sequence[Example], settings: Mapping[str, Any] | None) -> Measured:
    """A run's metrics on these examples, as sums over lines."""
    match run.task:
        case Translate() as task:
            return _texts(run, task, rows, settings)
        case LabelTask() as task:
            return _labels(run, task, rows)
        case Forecast() as task:
            return _forecasts(run, task, rows)
        case NumberTask() as task:
            return _numbers(run, task, rows)
        case task:
            scored = task.score(run.network, rows)
            log_p, counts = [p for p, _ in scored], [n for _, n in scored]
            metrics = {"perplexity": sums.perplexity(log_p, counts)}
            metrics["loss"] = sums.ratio([-p for p in log_p], counts, 1.0, False)
            if isinstance(task, LanguageModel):
                characters = [len(row.source[0]) + 1 for row in rows]
                bits = [-p / log(2) for p in log_p]
                metrics["bits_per_character"] = sums.ratio(bits, characters, 1.0, False)
            each = [p / max(n, 1) for p, n in scored]
            return Measured(metrics, [""] * len(rows), each, [])


def _texts(
    run: Run, task: Translate, rows: Sequence[Example], settings: Mapping[str, Any] | None
) -> Measured:
    references = references_of(rows)
    gold = list(references.values())
    request = run.request(settings=settings, scored=False)
    texts = [prediction.text for prediction in run.stream(references, request)]
    written = [task.as_written(targets) for targets in gold]
    unit = "char" if task.settings.target.kind == "char" else "token"
    names = [name for name in task.measured(rows, texts) if name in COMPARED]
    names.sort(key=lambda name: name != task.metric)
    metrics = {
        name: sums.of_texts(name, texts, written if name in AS_WRITTEN else gold, unit)  # type: ignore[arg-type]
        for name in names
    }
    near = similarity(task.settings.metric, unit)  # type: ignore[arg-type]
    pairs = zip(texts, written, strict=True)
    return Measured(metrics, texts, [max(near(text, targets)) for text, targets in pairs], [])


AS_WRITTEN = {"exact_match", "sequence_error", "token_error", "word_error", "char_error"}
COMPARED = AS_WRITTEN | {
    *("bleu", "chrf", "cider", "bleu_1", "bleu_2", "bleu_3", "bleu_4"),
    *("rouge1", "rouge2", "rougeL", "token_f1", "bracket_f1"),
}


def predict_labels(
    run: Run, task: LabelTask, rows: Sequence[Example]
) -> tuple[list[list[str]], list[list[str]], list[float]]:
    """The gold and the predicted labels of each example, and the mean p of the gold ones."""
    sources = [row.source for row in rows]
    gold, predicted, mean_p = [], [], []
    each = task.logits(run.network, sources, run.config.decode.batch_tokens)
    for logits, row in zip(each, rows, strict=True):
        table = (logits[None] if isinstance(task, Classify) else logits).float()
        targets = [row.target] if isinstance(task, Classify) else labels_of(row.target)
        scored = [i for i, label in enumerate(targets) if label != UNSCORED]
        gold.append([str(targets[i]) for i in scored])
        best = task.likeliest(table) if isinstance(task, Tag) else table.argmax(-1).tolist()
        predicted.append([task.labels.label(best[i]) for i in scored])
        p = table.softmax(-1)
        of_gold = [float(p[i, task.labels.index(str(targets[i]))]) for i in scored]
        mean_p.append(sum(of_gold) / max(len(of_gold), 1))
    return gold, predicted, mean_p


def _labels(run: Run, task: LabelTask, rows: Sequence[Example]) -> Measured:
    gold, predicted, mean_p = predict_labels(run, task, rows)
    correct = [
        [a == b for a, b in zip(*pair, strict=True)] for pair in zip(gold, predicted, strict=True)
    ]
    accuracy = sums.ratio([sum(line) for line in correct], [len(line) for line in correct])
    metrics = {"accuracy": accuracy}
    if isinstance(task, Classify):
        metrics["macro_f1"] = sums.macro_f1(gold, predicted)
    elif is_bio(task.labels.labels):
        metrics = {"span_f1": sums.span_f1(gold, predicted)} | metrics
    texts = [" ".join(labels) for labels in predicted]
    return Measured(metrics, texts, mean_p, [label for line in correct for label in line])


def _numbers(run: Run, task: NumberTask, rows: Sequence[Example]) -> Measured:
    scored = task.score(run.network, rows)
    corpus, network, device = task.encode(rows), run.network, device_of(run.network)
    squares, absolute, counts, texts = [], [], [], []
    for i in range(len(rows)):
        batch = collate(corpus, np.array([i])).to(device)
        with torch.inference_mode():
            if isinstance(task, Series):
                assert isinstance(network, Generator)
                raw, values = task.forced(network, batch)
                mean = distribution_of(network).mean(raw)
            else:
                assert isinstance(network, Regressor)
                raw, values = network.raw(batch.sources), batch.target.values
                mean = network.distribution.mean(raw if raw.dim() == 3 else raw[:, None])
        length = int(batch.target.lengths[0])
        predicted, gold = (task.own_units(x[0, :length]) for x in (mean, values))
        errors = np.where(np.isnan(gold), 0.0, predicted - gold)
        squares.append(float((errors**2).sum()))
        absolute.append(float(np.abs(errors).sum()))
        counts.append(int((~np.isnan(gold)).sum()))
        texts.append(task.target.written(predicted) if len(predicted) else "")
    metrics = {
        "nats": sums.ratio([-p for p, _ in scored], [n for _, n in scored], 1.0, False),
        "rmse": sums.root(squares, counts),
        "mae": sums.ratio(absolute, counts, 1.0, False),
    }
    each = [-a / max(n, 1) for a, n in zip(squares, counts, strict=True)]
    return Measured(metrics, texts, each, [])


def _forecasts(run: Run, task: Forecast, rows: Sequence[Example]) -> Measured:
    windows, network = windows_in(task.encode(rows)), run.network
    size = task.rows(run.config.decode.batch_tokens)
    squares, absolute, counts, losses = [], [], [], []
    for start in range(0, len(rows), size):
        chosen = np.arange(start, min(start + size, len(rows)))
        gold = windows.targets(chosen)
        mean = task.predict_distribution(network, windows, chosen).mean  # type: ignore[arg-type]
        errors = np.where(np.isnan(gold), 0.0, mean - gold)
        squares += (errors**2).sum((1, 2)).tolist()
        absolute += np.abs(errors).sum((1, 2)).tolist()
        counts += (~np.isnan(gold)).sum((1, 2)).tolist()
        losses += task.nll(network, windows, chosen)[0].tolist()  # type: ignore[arg-type]
    metrics = {
        "mse": sums.ratio(squares, counts, 1.0, False),
        "mae": sums.ratio(absolute, counts, 1.0, False),
        "loss": sums.ratio(losses, counts, 1.0, False),
    }
    metrics = dict(sorted(metrics.items(), key=lambda pair: pair[0] != task.metric))
    each = [-a / max(n, 1) for a, n in zip(squares, counts, strict=True)]
    return Measured(metrics, [""] * len(rows), each, [])


def text_of(view: dict[str, Any]) -> list[str]:
    """The view as lines of text."""
    lines = [f"{view['lines']:,} lines, {view['samples']:,} samples, 95 % intervals"]
    lines.append(
        "metric\tfirst\tsecond\tdifference\tinterval\tbootstrap p\trandomisation p\tverdict"
    )
    for one in view["metrics"]:
        lines.append(
            f"{one['name']}\t{one['first']:.4f}\t{one['second']:.4f}\t{one['difference']:+.4f}\t"
            f"{one['low']:+.4f} to {one['high']:+.4f}\t{one['bootstrap_p']:.4f}\t"
            f"{one['randomisation_p']:.4f}\t{one['verdict']}"
        )
    if (test := view.get("mcnemar")) is not None:
        lines.append(
            f"only the first is right: {test['only_first']:,}; only the second: "
            f"{test['only_second']:,}; McNemar's p {test['p']:.4f}"
        )
    return lines
