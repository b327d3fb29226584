"""Encoders: a stem and a body, `Padded -> Memory`; of several sources, memories laid end to end."""

import torch
from torch import nn

from saccade.nn.bodies import Body
from saccade.nn.padded import Memory, Padded, end_to_end


class Encoder(nn.Module):
    """One source: its stem makes vectors, its body relates them."""

    def __init__(self, stem: nn.Module, body: Body, dim: int):
        super().__init__()
        self.dim = dim
        self.stem = stem
        self.body = body

    def forward(self, source: Padded) -> Memory:
        return self.body(self.stem(source), source.keep, source.lengths)  # type: ignore[no-any-return]


class Encoders(nn.Module):
    """Several sources: their memories end to end, each with a learned mark of its own."""

    def __init__(self, encoders: list[Encoder]):
        super().__init__()
        self.dim = encoders[0].dim
        self.encoders = nn.ModuleList(encoders)
        self.marks = nn.Embedding(len(encoders), self.dim)  # (sources, D)

    def forward(self, *sources: Padded) -> Memory:
        marks = self.marks(torch.arange(len(sources), device=sources[0].values.device))
        memories = []
        for encoder, source, mark in zip(self.encoders, sources, marks, strict=True):
            memory: Memory = encoder(source)
            memories.append(memory._replace(values=memory.values + mark))
        return end_to_end(memories)
