"""Sentence vectors: the mean of an encoder's outputs."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.data.fields import Text
from saccade.errors import ConfigError
from saccade.models.encoders import Encoder
from saccade.nn.padded import masked_mean, pad
from saccade.runs.run import Run
from saccade.tasks.task import device_of, in_batches


def sentence_vectors(run: Run, texts: Sequence[str]) -> Float[Tensor, "n D"]:
    """The mean-pooled vector of each text, by a run whose encoder reads text."""
    encoder = getattr(run.network, "encoder", None)
    field = next((field for field in run.task.fields if isinstance(field, Text)), None)
    if not isinstance(encoder, Encoder) or field is None:
        kind = run.config.task.kind
        raise ConfigError(f"{run.folder}: the task '{kind}' has no encoder of text: no vectors")
    rows = Text(field.tokenizer).rows([(text,) for text in texts])

    def encode(batch: list[list[int]]) -> list[Tensor]:
        memory = encoder(pad(batch, field.pad).to(device_of(encoder)))
        return list(masked_mean(memory.values, memory.keep).float().cpu())

    with torch.inference_mode():
        budget = run.config.decode.batch_tokens
        return torch.stack(in_batches(rows, [len(row) for row in rows], budget, encode))
