"""Tokens and labels with how likely they are, and what else might stand in their place."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import ConfigError
from saccade.inspect.case import Case, GeneratedCase, LanguageModelCase
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

MAX_PREFIXES = 512  # tokens of an output for which the text before each is written out


def tokens(
    run: Run,
    item: Item,
    target: str = "",
    settings: Settings = None,
    prefix: str = "",
    complete: bool = True,
    alternatives: int = ALTERNATIVES,
) -> dict[str, Any]:
    """Each token of an output with its log-probability and the likeliest in its place.

    A language model's own text is among them, marked as given; without `complete` it is all. A
    masked model says what it would fill in; of a text without <mask> each token is hidden in turn.
    """
    task = run.task
    if isinstance(task, Fill):
        return _blanks(run, task, item, target, alternatives)
    if not isinstance(task, GeneratingTask):
        raise ConfigError(
            f"a run of {run.config.task.title} generates no tokens: look at its labels or its "
            "saliency"
        )
    if isinstance(task, LanguageModel):
        if prefix:
            raise ConfigError("a language model completes its input: put the prefix there")
        case: GeneratedCase = continued(run, item, target, settings, complete)
        given = len(case.said)
        if complete:  # the tokens that are the user's
            given = len(task.output.encode([source_of(run, item)[0]])[0])
    else:
        case, given = generated(run, item, target, settings, prefix), 0
    with torch.inference_mode():
        log_probs = case.logits(1)[0].log_softmax(-1)
    ids = case.ids[0].tolist()
    said = listed(task.output, ids, log_probs, alternatives)
    if isinstance(case, LanguageModelCase):
        for i, one in enumerate(said):
            one["given"] = i < given
    prefixes(task.output, ids, said)
    return view_of(case, said)


def view_of(case: Case, said: list[dict[str, Any]]) -> dict[str, Any]:
    total = sum(one["log_p"] or 0.0 for one in said)
    return {"kind": "tokens", "text": case.text, "score": log_prob(total), "tokens": said}


def listed(
    output: Tokenizer, ids: Sequence[int], log_probs: Float[Tensor, "T V"], count: int
) -> list[dict[str, Any]]:
    """Tokens for JSON; what a model never says is no alternative."""
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
                for other, score, i in zip(output.tokens(places), scores, places, strict=True)
                if log_prob(score) is not None
            ],
        }
        for name, log_p, places, scores in rows
    ]


def prefixes(output: Tokenizer, ids: Sequence[int], said: list[dict[str, Any]]) -> None:
    """Beside each token and alternative the text with which an output begins that has it there.

    What ends an output has none.
    """
    end = output.specials.eos
    if len(ids) > MAX_PREFIXES:
        return
    rows = []
    for t, one in enumerate(said):
        rows.append([*ids[: t + 1]])
        rows += [[*ids[:t], other["id"]] for other in one["alternatives"]]
    texts = iter(output.decode(rows))
    for one, i in zip(said, ids, strict=True):
        text = next(texts)
        one["prefix"] = None if i == end else text
        for other in one["alternatives"]:
            text = next(texts)
            other["prefix"] = None if other["id"] == end else text


def _blanks(run: Run, task: Fill, item: Item, target: str, count: int) -> dict[str, Any]:
    (text, *_) = source_of(run, item)
    if MASK in text or target:
        case = filled(run, task, item, target)
        with torch.inference_mode():
            log_probs = case.logits(1)[0].log_softmax(-1)
        return view_of(case, listed(task.tokenizer, case.ids[0].tolist(), log_probs, count))
    network = run.network
    assert isinstance(network, TokenPredictor)
    row = np.array(task.read_masks(text, ()))
    made = task.each_asked(row[: task.room])
    found: list[tuple[Int[Tensor, "n"], Float[Tensor, "n V"]]] = []

    def noted(logits: Tensor, gold: Tensor) -> Tensor:
        log_probs = logits.log_softmax(-1)
        return torch.cat([gold[:, None].float(), log_probs], 1)

    for rows in task.worked(network, made, run.config.decode.batch_tokens, noted):
        found.append((rows[:, 0].long(), rows[:, 1:]))
    ids = torch.cat([gold for gold, _ in found]).tolist()
    said = listed(task.tokenizer, ids, torch.cat([rows for _, rows in found]), count)
    total = sum(one["log_p"] or 0.0 for one in said)
    return {"kind": "tokens", "text": text, "score": log_prob(total), "tokens": said}


def labels(run: Run, item: Item) -> dict[str, Any]:
    """The probabilities of all labels: of an input, or of each of its words."""
    task, network = run.task, run.network
    if not isinstance(task, LabelTask):
        raise ConfigError(f"a run of {run.config.task.title} gives no labels")
    assert isinstance(network, Classifier | Tagger)
    source = source_of(run, item)
    sources, _ = read_sources(run, source)
    with torch.inference_mode():
        shares = network.logits(sources)[0].float().softmax(-1)
    if shares.dim() == 1:
        return {"kind": "labels", "labels": ranked(task, shares)}
    rows = sources[0].words
    assert rows is not None
    count = int(rows.max()) + 1
    words = list(source) if len(source) == count else [str(i + 1) for i in range(count)]
    each = [ranked(task, row) for row in shares[:count]]
    return {
        "kind": "labels",
        "words": words,
        "labels": [{"word": word, "labels": some} for word, some in zip(words, each, strict=True)],
    }


def ranked(task: LabelTask, shares: Float[Tensor, "labels"]) -> list[dict[str, Any]]:
    order = shares.argsort(descending=True, stable=True).tolist()
    return [{"text": task.labels.label(i), "p": number(float(shares[i]))} for i in order]
