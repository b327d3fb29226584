"""Speech to look at: when each token of a text was heard, by attention and by CTC."""

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
from saccade.decoding.ctc import best_path
from saccade.errors import ConfigError
from saccade.inspect.attention import align, new_figure, save
from saccade.models.ensembles import mean_log_probs
from saccade.models.networks import Generator
from saccade.tasks.task import Source, device_of
from saccade.tasks.translate import Translate


@dataclass(frozen=True)
class Heard:
    """A text and the sound it was heard in: a row for each token, a column for each position."""

    tokens: list[str]  # the end among them
    weights: Float[Tensor, "T S"]  # of attention, the mean of layers and heads
    seconds: float  # from one position to the next
    # by CTC, when each token but the end is said: from and to, in seconds; None without CTC
    spoken: list[tuple[float, float]] | None


def hear(
    task: Translate, network: Generator, source: Source, target: str, layer: int | None = None
) -> Heard:
    """When each token of `target` is heard in a sound, as the decoder reads it.

    By the mean of all layers of attention, or by one. CTC's times are those of the likeliest
    alignment.
    """
    (field, *others) = task.sources
    if others or not isinstance(field, SoundField):
        raise ConfigError("this model's source is not audio: use inspect.attention")
    found = align(task, network, source, target)
    found = found if layer is None else found.only(layer)
    seconds = field.reader.hop_ms / 1000 * frames_of_position(task.config, field.reader)
    spoken = None
    corpus = task.encode([Example(source, target)])
    batch = collate(corpus, np.arange(1)).to(device_of(network))
    with torch.inference_mode():
        heads = network.ctc_heads(network.encode(batch.sources))
        spelled = [head(memory)[0] for head, memory in heads]
    if heads:
        ids = corpus.tokens[0][1:-1]  # without the marks at both ends
        places = best_path(mean_log_probs(spelled), ids, heads[0][0].blank)
        if places is not None:
            spoken = [(seconds * first, seconds * end) for first, end in places]
    return Heard(found.target, found.mean, seconds, spoken)


def frames_of_position(config: c.Config, reader: c.Sound) -> int:
    """How many frames of a sound one position of the memory stands for."""
    layers = config.encoder.num_layers if isinstance(config.encoder, c.Pyramid) else 1
    return reader.stride << (layers - 1)


def draw_speech(heard: Heard, path: str | Path, title: str = "") -> None:
    """The weights over time as a picture, with a bar where CTC hears a token; extra `plot`."""
    rows, columns = heard.weights.shape
    length = columns * heard.seconds
    figure = new_figure(min(20.0, 3.0 + 2.5 * length), 1.4 + 0.22 * rows)
    axes = figure.add_subplot()
    # Columns are as wide as their time, and row t has its middle at t.
    extent = (0.0, length, rows - 0.5, -0.5)
    axes.imshow(heard.weights.numpy(), cmap="Blues", vmin=0.0, aspect="auto", extent=extent)
    for row, (first, end) in enumerate(heard.spoken or ()):
        axes.plot([first, end], [row, row], color="tab:orange", linewidth=2.5)
    axes.set_yticks(range(rows), [name.replace(" ", "␣") or "␣" for name in heard.tokens])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds")
    parts: Sequence[str] = [title, "attention" if heard.spoken is None else "attention, CTC orange"]
    axes.set_title(": ".join(part for part in parts if part), fontsize="medium")
    save(figure, path, 150)
