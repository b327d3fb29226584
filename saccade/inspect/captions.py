"""A caption's path over its picture: the attention of each word, as in Show, Attend and Tell.

Xu et al. 2015, arxiv.org/abs/1502.03044
"""

from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from saccade.data.media import Features
from saccade.data.pictures import PictureField
from saccade.errors import ConfigError
from saccade.inspect.attention import align, new_figure, save
from saccade.models.networks import Generator
from saccade.tasks.task import Source
from saccade.tasks.translate import Translate
from saccade.text.tokenizers import Tokenizer

PANELS_A_ROW = 6
DARKEST = 0.15  # brightness of regions without attention


@dataclass(frozen=True)
class CaptionPath:
    """The picture as the network reads it, and for each word how it attends to the grid."""

    picture: UInt8[np.ndarray, "H W C"]
    words: list[str]
    maps: Float[Tensor, "T rows columns"]

    @property
    def upsampled(self) -> Float[Tensor, "T H W"]:
        """The maps at the picture's size."""
        size = list(self.picture.shape[:2])
        wide = F.interpolate(self.maps[:, None], size, mode="bilinear", align_corners=False)
        return wide[:, 0]


def caption_path(
    task: Translate, network: Generator, source: Source, caption: str, layer: int = -1
) -> CaptionPath:
    """The path of a caption, by the attention of one layer (the mean over its heads).

    A recurrent decoder has one layer of attention; of a Transformer's -1 is the last.
    """
    number, field = picture_field(task)
    alignment = align(task, network, source, caption).only(layer)
    span = alignment.spans[number]
    rows, columns = field.reader.grid
    if len(span) != rows * columns:
        raise ConfigError(
            f"the encoder leaves {len(span)} positions for a {rows} x {columns} grid: caption "
            "paths need a body that keeps the grid, which a pyramid does not"
        )
    words, weights = by_word(task.output, caption, alignment.mean[:, span.start : span.stop])
    cells = task.read([source])[number]
    column = field.encode(cells)
    assert isinstance(column, Features)
    return CaptionPath(column.row(0), words, weights.view(-1, rows, columns))


def picture_field(task: Translate) -> tuple[int, PictureField]:
    """The first of a task's sources that is pictures, and its number; ConfigError without one."""
    for number, field in enumerate(task.sources):
        if isinstance(field, PictureField):
            return number, field
    raise ConfigError("a caption's path is over a picture, and this model reads none")


def by_word(
    output: Tokenizer, caption: str, weights: Float[Tensor, "T S"]
) -> tuple[list[str], Float[Tensor, "W S"]]:
    """The words of a caption, without <eos>, and the mean weights of the tokens of each."""
    ids = output.encode([caption])[0]
    prefixes = output.decode([ids[: i + 1] for i in range(len(ids))])
    if not prefixes or not prefixes[-1].split():
        raise ConfigError("the caption is empty: there is no word to follow")
    count = [max(1, len(text.split())) for text in prefixes]  # words begun, by token
    rows = [weights[:-1][torch.tensor(count) == word] for word in range(1, count[-1] + 1)]
    return prefixes[-1].split(), torch.stack([of_word.mean(0) for of_word in rows])


def draw_path(path: CaptionPath, out: str | Path) -> None:
    """The picture, then a panel for each word, bright where it attends; needs the extra `plot`."""
    count = len(path.words) + 1
    columns = min(count, PANELS_A_ROW)
    figure = new_figure(1.5 * columns, 1.75 * ceil(count / columns))
    grid = figure.subplots(ceil(count / columns), columns, squeeze=False)
    picture = np.broadcast_to(path.picture, (*path.picture.shape[:2], 3)) / 255
    light = path.upsampled / path.upsampled.amax((1, 2), keepdim=True)
    shades = [np.ones(picture.shape[:2]), *(DARKEST + (1 - DARKEST) * light).numpy()]
    for axes in grid.flat:
        axes.axis("off")
    for axes, title, shade in zip(grid.flat, ["", *path.words], shades, strict=False):
        axes.imshow(picture * shade[..., None], interpolation="nearest")
        axes.set_title(title, fontsize=11)
    save(figure, out, dpi=100)
