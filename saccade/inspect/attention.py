"""Attention to look at, in a terminal or a picture: which source tokens each target token heard."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from saccade.data.batches import collate
from saccade.data.corpora import Column, Corpus
from saccade.data.fields import SourceLabels, Text
from saccade.data.lines import Example
from saccade.errors import ConfigError
from saccade.models.networks import Generator, shifted
from saccade.nn.watch import over_time, watch
from saccade.tasks.task import Source, device_of
from saccade.tasks.translate import Translate

SHADES = " ·░▒▓█"


@dataclass(frozen=True)
class Alignment:
    """The weights of one source and one target, under each module that attends to the source."""

    source: list[str]
    target: list[str]
    maps: dict[str, Float[Tensor, "T S"]]

    @property
    def mean(self) -> Float[Tensor, "T S"]:
        """The mean over modules and heads."""
        return torch.stack(list(self.maps.values())).mean(0)


def align(task: Translate, network: Generator, source: Source, target: str) -> Alignment:
    """The attention from `target` to `source` as the decoder reads it: one forced pass, watched."""
    corpus = task.encode([Example(source, target)])
    batch = collate(corpus, np.arange(1)).to(device_of(network))
    tokens, _ = shifted(batch.target)
    with torch.inference_mode(), watch(network) as maps:
        state = network.decoder.start(network.encode(batch.sources), 1)
        network.decoder(tokens, state)
    found = {}
    for path, calls in maps.items():
        if path == "decoder.attention" or path.endswith(".cross"):
            weights = over_time(calls)[0].cpu()  # (T, S) or (H, T, S)
            found[path] = weights if weights.dim() == 2 else weights.mean(0)
    if not found:
        raise ConfigError("this model has no attention to the source: decoder.attention is 'off'")
    positions = next(iter(found.values())).size(1)
    read = source_names(task, corpus, source, positions)
    return Alignment(read, task.output.tokens(corpus.tokens[0][1:]), found)


def source_names(task: Translate, corpus: Corpus, source: Source, positions: int) -> list[str]:
    """What each position of a memory is called: tokens as they are, what is no text by number."""
    names: list[list[str] | None] = []
    for reader, column, cells in zip(
        task.readers, corpus.sources, task.read([source]), strict=True
    ):
        if isinstance(reader, Text):
            assert isinstance(column, Column)
            names.append(reader.tokenizer.tokens(column[0]))
        else:
            names.append([cells[0][0]] if isinstance(reader, SourceLabels) else None)
    left = positions - sum(len(one) for one in names if one is not None)
    each = left // max(1, names.count(None))
    numbered = [str(i) for i in range(each)]
    return [name for one in names for name in (numbered if one is None else one)]


def draw_text(alignment: Alignment) -> str:
    """The mean map as text: a row for each target token, darker where it listened more."""
    left = max(len(token) for token in alignment.target)
    cell = max(len(token) for token in alignment.source)
    rows = [" " * left + "  " + " ".join(token.center(cell) for token in alignment.source)]
    for token, weights in zip(alignment.target, alignment.mean.tolist(), strict=True):
        shades = [SHADES[min(len(SHADES) - 1, int(w * len(SHADES)))] * cell for w in weights]
        rows.append(f"{token:>{left}}  {' '.join(shades)}".rstrip())
    return "\n".join(rows)


def draw_picture(alignment: Alignment, path: str | Path, title: str = "") -> None:
    """The mean map as a picture file; needs the extra `plot`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("pictures need matplotlib: pip install 'saccade[plot]'") from None
    columns, rows = len(alignment.source), len(alignment.target)
    figure = Figure(figsize=(1.5 + 0.45 * columns, 1.2 + 0.4 * rows), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(alignment.mean.numpy(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(columns), alignment.source)
    axes.set_yticks(range(rows), alignment.target)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_title(title)
    figure.savefig(path, dpi=150)
