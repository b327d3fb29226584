"""Tokens and labels with their probabilities and alternatives."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import ConfigError, DataError
from saccade.inspect.case import GeneratedCase, LanguageModelCase, go_on
from saccade.inspect.opening import (
    Item,
    Settings,
    continued,
    filled,
    generated,
    read_sources,
    source_of,
)
from saccade.inspect.packing import log_prob, number
from saccade.models.networks import Classifier, Tagger, TokenPredictor
from saccade.runs.run import Run
from saccade.tasks.generate import ALTERNATIVES, GeneratingTask
from saccade.tasks.labels import LabelTask
from saccade.tasks.language import LanguageModel
from saccade.tasks.pretrain import Fill
from saccade.text.tokenizers import Tokenizer
from saccade.text.vocab import MASK

MAX_PREFIXES = 512  # tokens of an output: longer ones are listed without prefixes


def tokens(
    run: Run,
    item: Item,
    target: str = "",
    settings: Settings = None,
    prefix: str = "",
    complete: bool = True,
    alternatives: int = ALTERNATIVES,
) -> dict[str, Any]:
    """Each token of an output with its log-probability and the likeliest alternatives.

    A language model's prompt is included, marked as given; without `complete` there is only that. A
    masked language model fills in masks; in a text without <mask> each token is masked in turn.
    """
    task = run.task
    if isinstance(task, Fill):
        return _masked(run, task, item, target, alternatives)
    if not isinstance(task, GeneratingTask):
        raise ConfigError(
            f"a run of {run.config.task.title} generates no tokens: look at its labels or its "
            "saliency"
        )
    if isinstance(task, LanguageModel):
        if prefix:
            raise ConfigError("a language model completes its input: put the prefix there")
        case: GeneratedCase = continued(run, item, target, settings, complete)
        given = len(case.outputs)
        if complete:  # the tokens of the prompt
            given = len(task.output.encode([source_of(run, item)[0]])[0])
    else:
        case, given = generated(run, item, target, settings, prefix), 0
    with torch.inference_mode():
        log_probs = case.logits(1)[0].log_softmax(-1)
    ids = case.ids[0].tolist()
    listing = listed(task.output, ids, log_probs, alternatives)
    if isinstance(case, LanguageModelCase):
        for i, entry in enumerate(listing):
            entry["given"] = i < given
    add_prefixes(task.output, ids, listing)
    return view_of(case.text, listing)


def view_of(text: str, listing: list[dict[str, Any]]) -> dict[str, Any]:
    total = sum(entry["log_p"] or 0.0 for entry in listing)
    return {"kind": "tokens", "text": text, "score": log_prob(total), "tokens": listing}


def listed(
    output: Tokenizer, ids: Sequence[int], log_probs: Float[Tensor, "T V"], count: int
) -> list[dict[str, Any]]:
    """Tokens for JSON, with alternatives among those that a model may generate."""
    gold = torch.tensor(ids, device=log_probs.device)
    own = log_probs.gather(1, gold[:, None])[:, 0].tolist()
    allowed = log_probs.index_fill(
        1, torch.tensor(output.specials.never_generated, device=log_probs.device), float("-inf")
    )
    best = allowed.topk(min(count, allowed.size(1)), -1)
    rows = zip(output.tokens(ids), own, best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        {
            "text": name,
            "log_p": log_prob(log_p),
            "alternatives": [
                {"text": other, "log_p": log_prob(score), "id": i}
                for other, score, i in zip(output.tokens(best_ids), scores, best_ids, strict=True)
                if log_prob(score) is not None
            ],
        }
        for name, log_p, best_ids, scores in rows
    ]


def add_prefixes(output: Tokenizer, ids: Sequence[int], listing: list[dict[str, Any]]) -> None:
    """Add to each token and alternative the text up to and including it; None for <eos>."""
    end = output.specials.eos
    if len(ids) > MAX_PREFIXES:
        return
    rows = []
    for t, entry in enumerate(listing):
        rows.append([*ids[: t + 1]])
        rows += [[*ids[:t], other["id"]] for other in entry["alternatives"]]
    texts = iter(output.decode(rows))
    for entry, i in zip(listing, ids, strict=True):
        text = next(texts)
        entry["prefix"] = None if i == end else text
        for other in entry["alternatives"]:
            text = next(texts)
            other["prefix"] = None if other["id"] == end else text


def _masked(run: Run, task: Fill, item: Item, target: str, count: int) -> dict[str, Any]:
    (text, *_) = source_of(run, item)
    if MASK in text or target:
        case = filled(run, task, item, target)
        with torch.inference_mode():
            log_probs = case.logits(1)[0].log_softmax(-1)
        return view_of(case.text, listed(task.tokenizer, case.ids[0].tolist(), log_probs, count))
    network = run.network
    assert isinstance(network, TokenPredictor)
    row = np.array(task.encode_masked(text, ()))
    samples = task.samples_of_each(row[: task.max_tokens])
    if not samples:
        raise DataError("the vocabulary has no token of this text: there is nothing to predict")

    def gold_and_log_probs(logits: Tensor, gold: Tensor) -> Tensor:
        go_on()
        return torch.cat([gold[:, None].float(), logits.log_softmax(-1)], 1)

    budget = run.config.decode.batch_tokens
    rows = torch.cat(task.computed(network, samples, budget, gold_and_log_probs))
    ids = rows[:, 0].long().tolist()
    return view_of(text, listed(task.tokenizer, ids, rows[:, 1:], count))


def labels(run: Run, item: Item) -> dict[str, Any]:
    """The probabilities of all labels, for an input or each of its words."""
    task, network = run.task, run.network
    if not isinstance(task, LabelTask):
        raise ConfigError(f"a run of {run.config.task.title} gives no labels")
    assert isinstance(network, Classifier | Tagger)
    source = source_of(run, item)
    sources, _ = read_sources(run, source)
    with torch.inference_mode():
        p = network.logits(sources)[0].float().softmax(-1)
    if p.dim() == 1:
        return {"kind": "labels", "labels": ranked(task, p)}
    rows = sources[0].words
    assert rows is not None
    count = int(rows.max()) + 1
    words = list(source) if len(source) == count else [str(i + 1) for i in range(count)]
    by_word = [ranked(task, row) for row in p[:count]]
    return {
        "kind": "labels",
        "words": words,
        "labels": [
            {"word": word, "labels": labels} for word, labels in zip(words, by_word, strict=True)
        ],
    }


def ranked(task: LabelTask, p: Float[Tensor, "labels"]) -> list[dict[str, Any]]:
    order = p.argsort(descending=True, stable=True).tolist()
    return [{"text": task.labels.label(i), "p": number(float(p[i]))} for i in order]
