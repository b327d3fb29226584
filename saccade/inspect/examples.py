"""The examples of a run's dev set that it finds hardest."""

from dataclasses import replace
from typing import Any

from saccade.data.lines import Example
from saccade.errors import CheckpointError, ConfigError
from saccade.inspect.packing import log_prob, number
from saccade.runs.guard import check_ids
from saccade.runs.run import Run
from saccade.setup.prepare import reopen
from saccade.tasks.task import Query

MAX_EXAMPLES = 2000  # of the dev set, the first


def worst(run: Run, n: int = 20) -> dict[str, Any]:
    """The view: the dev examples with the lowest log p per token, and the run's outputs."""
    if not 1 <= n <= 1000:
        raise ConfigError(f"n {n}: from 1 to 1,000")
    examples = dev_examples(run)
    scores = run.task.score(run.network, examples)
    per_token = [log_p / max(count, 1) for log_p, count in scores]
    order = sorted(range(len(per_token)), key=per_token.__getitem__)[:n]
    outputs = outputs_of(run, [examples[i] for i in order])
    return {
        "kind": "worst",
        "measured": len(examples),
        "examples": [
            {
                "number": i + 1,
                "where": examples[i].where if examples[i].file else "",
                "source": list(examples[i].source),
                "target": shown(examples[i]),
                "said": text,
                "log_p": log_prob(scores[i][0]),
                "tokens": scores[i][1],
                "per_token": number(per_token[i]),
            }
            for i, text in zip(order, outputs, strict=True)
        ],
    }


def dev_examples(run: Run, most: int | None = MAX_EXAMPLES) -> list[Example]:
    """The first examples of a run's own dev set, or all."""
    try:
        data = reopen(run.config, run.folder)
    except (CheckpointError, OSError) as error:
        raise CheckpointError(
            f"{run.folder}: its dev set is not there: {error}; a run that was imported or moved "
            "without data/ has none"
        ) from None
    check_ids(run.task, data.dev, run.folder)
    count = len(data.dev_examples)
    rows = [data.dev_examples[i] for i in range(count if most is None else min(most, count))]
    if run.task.fallible:
        run.task.remember(data.dev, rows)
    return [replace(row, others=()) for row in rows]


def shown(example: Example) -> str:
    """The target of an example as text."""
    target = example.target
    if target is None:
        return example.source[0] if example.source else ""
    return target if isinstance(target, str) else " ".join(map(str, target))


def outputs_of(run: Run, examples: list[Example]) -> list[str]:
    """A run's outputs for examples; empty for a language model, which has only scores."""
    if not run.task.sources and run.config.task.family != "forecast":
        return [""] * len(examples)
    request = run.request()
    queries = [Query(row.source, number) for number, row in enumerate(examples)]
    return [prediction.text for prediction in run.task.answer(run.network, queries, request)]
