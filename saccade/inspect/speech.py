"""Speech alignments: the time of each token of a text, by attention and by CTC."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from saccade import config as c
from saccade.data.batches import collate
from saccade.data.lines import Example
from saccade.data.sounds import SoundField
from saccade.decoding.ctc import forced_alignment
from saccade.errors import ConfigError
from saccade.inspect.attention import align, new_figure, save
from saccade.models.ensembles import mean_log_probs
from saccade.models.networks import Generator
from saccade.tasks.task import Source, device_of
from saccade.tasks.translate import Translate


@dataclass(frozen=True)
class SpeechAlignment:
    """The alignment of a text with a sound: a row for each token, a column for each position."""

    tokens: list[str]  # with <eos>
    weights: Float[Tensor, "T S"]  # of attention, the mean of layers and heads
    seconds: float  # of a position
    # start and end of each token but <eos> by CTC, in seconds; None without CTC
    spoken: list[tuple[float, float]] | None


def hear(
    task: Translate, network: Generator, source: Source, target: str, layer: int | None = None
) -> SpeechAlignment:
    """The alignment of `target` with a sound.

    By the attention of a layer or the mean of all; CTC's times are those of its best path.
    """
    (field, *others) = task.sources
    if others or not isinstance(field, SoundField):
        raise ConfigError("this model's source is not audio: use inspect.attention")
    alignment = align(task, network, source, target)
    alignment = alignment if layer is None else alignment.only(layer)
    seconds = field.reader.hop_ms / 1000 * frames_of_position(task.config, field.reader)
    spoken = None
    corpus = task.encode([Example(source, target)])
    batch = collate(corpus, np.arange(1)).to(device_of(network))
    with torch.inference_mode():
        heads = network.ctc_heads(network.encode(batch.sources))
        log_probs = [head(memory)[0] for head, memory in heads]
    if heads:
        ids = corpus.tokens[0][1:-1]  # without <bos> and <eos>
        spans = forced_alignment(mean_log_probs(log_probs), ids, heads[0][0].blank)
        if spans is not None:
            spoken = [(seconds * first, seconds * end) for first, end in spans]
    return SpeechAlignment(alignment.target, alignment.mean, seconds, spoken)


def frames_of_position(config: c.Config, reader: c.Sound) -> int:
    """The number of frames of a sound in one position of the memory."""
    layers = config.encoder.num_layers if isinstance(config.encoder, c.Pyramid) else 1
    return reader.stride << (layers - 1)


def draw_speech(alignment: SpeechAlignment, path: str | Path, title: str = "") -> None:
    """The weights over time as a picture, with bars for CTC's times; needs the extra `plot`."""
    rows, columns = alignment.weights.shape
    length = columns * alignment.seconds
    figure = new_figure(min(20.0, 3.0 + 2.5 * length), 1.4 + 0.22 * rows)
    axes = figure.add_subplot()
    # columns are as wide as their time, and row t has its centre at t
    extent = (0.0, length, rows - 0.5, -0.5)
    axes.imshow(alignment.weights.numpy(), cmap="Blues", vmin=0.0, aspect="auto", extent=extent)
    for row, (first, end) in enumerate(alignment.spoken or ()):
        axes.plot([first, end], [row, row], color="tab:orange", linewidth=2.5)
    axes.set_yticks(range(rows), [name.replace(" ", "␣") or "␣" for name in alignment.tokens])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds")
    parts: Sequence[str] = [
        title,
        "attention" if alignment.spoken is None else "attention, CTC orange",
    ]
    axes.set_title(": ".join(part for part in parts if part), fontsize="medium")
    save(figure, path, 150)
