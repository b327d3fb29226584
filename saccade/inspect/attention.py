"""Alignments, as text or a picture: how much each target token attends to each source token."""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

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
    spans: tuple[range, ...] = ()  # the positions of each source, of which there may be several

    @property
    def mean(self) -> Float[Tensor, "T S"]:
        """The mean over modules and heads."""
        return torch.stack(list(self.maps.values())).mean(0)

    def only(self, layer: int) -> "Alignment":
        """The alignment of one layer, counted from 0, or backwards from -1."""
        names = list(self.maps)
        if not -len(names) <= layer < len(names):
            raise ConfigError(f"layer {layer}: there are {len(names)}, from 0 to {len(names) - 1}")
        return replace(self, maps={names[layer]: self.maps[names[layer]]})


def align(task: Translate, network: Generator, source: Source, target: str) -> Alignment:
    """The attention from `target` to `source`, recorded in one pass with teacher forcing."""
    corpus = task.encode([Example(source, target)])
    batch = collate(corpus, np.arange(1)).to(device_of(network))
    tokens, _ = shifted(batch.target)
    with torch.inference_mode(), watch(network) as maps:
        state = network.decoder.start(network.encode(batch.sources), 1)
        network.decoder(tokens, state)
    by_module = {}
    for path, calls in maps.items():
        if path == "decoder.attention" or path.endswith(".cross"):
            weights = over_time(calls)[0].cpu()  # (T, S) or (H, T, S)
            by_module[path] = weights if weights.dim() == 2 else weights.mean(0)
    if not by_module:
        raise ConfigError("this model has no attention to the source: decoder.attention is 'off'")
    positions = next(iter(by_module.values())).size(1)
    names = source_names(task, corpus, source, positions)
    ends = [0, *accumulate(map(len, names))]
    spans = tuple(range(*pair) for pair in pairwise(ends))
    flat = [name for of_source in names for name in of_source]
    return Alignment(flat, task.output.tokens(corpus.tokens[0][1:]), by_module, spans)


def source_names(
    task: Translate, corpus: Corpus, source: Source, positions: int
) -> list[list[str]]:
    """The names of each source's positions: tokens as they are, others by number."""
    names: list[list[str] | None] = []
    for reader, column, cells in zip(
        task.readers, corpus.sources, task.read([source]), strict=True
    ):
        if isinstance(reader, Text):
            assert isinstance(column, Column)
            names.append(reader.tokenizer.tokens(column[0]))
        else:
            names.append([cells[0][0]] if isinstance(reader, SourceLabels) else None)
    unnamed = positions - sum(len(known) for known in names if known is not None)
    numbered = [str(i) for i in range(unnamed // max(1, names.count(None)))]
    return [numbered if known is None else known for known in names]


def draw_text(alignment: Alignment) -> str:
    """The mean map as text: a row for each target token, darker where the weight is larger."""
    left = max(len(token) for token in alignment.target)
    cell = max(len(token) for token in alignment.source)
    rows = [" " * left + "  " + " ".join(token.center(cell) for token in alignment.source)]
    for token, weights in zip(alignment.target, alignment.mean.tolist(), strict=True):
        shades = [SHADES[min(len(SHADES) - 1, int(w * len(SHADES)))] * cell for w in weights]
        rows.append(f"{token:>{left}}  {' '.join(shades)}".rstrip())
    return "\n".join(rows)


def draw_picture(alignment: Alignment, path: str | Path, title: str = "") -> None:
    """The mean map as a picture file; needs the extra `plot`."""
    columns, rows = len(alignment.source), len(alignment.target)
    figure = new_figure(1.5 + 0.45 * columns, 1.2 + 0.4 * rows)
    axes = figure.add_subplot()
    axes.imshow(alignment.mean.numpy(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(columns), alignment.source)
    axes.set_yticks(range(rows), alignment.target)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_title(title)
    save(figure, path, dpi=150)


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure, in inches; ConfigError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("pictures need matplotlib: pip install 'saccade[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: str | Path, dpi: int) -> None:
    """Write a figure, in the format of the file's suffix; ConfigError if that fails."""
    try:
        figure.savefig(path, dpi=dpi)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be written: {error}; name a .png, .svg or .pdf"
        ) from None
