"""Encoders: a stem and a body, `Padded -> Memory`; several sources are concatenated."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.nn.bodies import Body, TransformerBody
from saccade.nn.padded import Memory, Padded, end_to_end


class Encoder(nn.Module):
    """One source: its stem embeds the positions, its body contextualises them."""

    def __init__(self, stem: nn.Module, body: Body, dim: int):
        super().__init__()
        self.dim = dim
        self.stem = stem
        self.body = body

    @property
    def first_stem(self) -> nn.Module:
        return self.stem

    def forward(self, source: Padded) -> Memory:
        read: Padded = self.stem(source)
        parts = read.values, read.keep, read.lengths
        if source.view is None:
            memory: Memory = self.body(*parts)
            return memory if read.words is None else memory._replace(words=read.words)
        assert isinstance(self.body, TransformerBody)
        return self.body(*parts, source.view)  # type: ignore[no-any-return]


class EarlyFusion(nn.Module):
    """Several sources, each with a stem and a learned mark, concatenated before one body.

    The sum of a source without order, such as tags, is added to every position of the others: no
    tag is nearer to a letter than another (Wu et al. 2021, arxiv.org/abs/2005.10213).
    """

    def __init__(self, stems: list[nn.Module], body: Body, dim: int, ordered: Sequence[bool] = ()):
        super().__init__()
        self.dim = dim
        self.ordered = tuple(ordered) or (True,) * len(stems)
        self.stems = nn.ModuleList(stems)
        self.marks = nn.Embedding(len(stems), dim)  # (sources, D)
        self.body = body

    @property
    def first_stem(self) -> nn.Module:
        return self.stems[0]

    def forward(self, *sources: Padded) -> Memory:
        marks = self.marks(torch.arange(len(sources), device=sources[0].values.device))
        parts = []
        for stem, source, mark in zip(self.stems, sources, marks, strict=True):
            read: Padded = stem(source)
            parts.append(Padded(read.values + mark.to(read.values.dtype), read.lengths))
        pairs = list(zip(parts, self.ordered, strict=True))
        bags = [sum_pooled(part) for part, ordered in pairs if not ordered]
        if bags:
            bag = torch.stack(bags).sum(0)
            parts = [
                Padded(part.values + bag, part.lengths) if ordered else part
                for part, ordered in pairs
            ]
        x, keep, lengths = concat_rows(parts)
        return self.body(x, keep, lengths)  # type: ignore[no-any-return]


def sum_pooled(read: Padded) -> Float[Tensor, "B 1 D"]:
    """The sum of each row's vectors, divided by the root of their number."""
    values = read.values
    if read.keep is not None:
        values = values * read.keep.unsqueeze(-1)
    count = read.lengths.to(values.device, values.dtype)[:, None, None]
    return values.sum(1, keepdim=True) * count.rsqrt()


def concat_rows(parts: Sequence[Padded]) -> tuple[Tensor, Tensor | None, Tensor]:
    """Vectors of several sources (B, S, D), row by row without padding between; keep; lengths."""
    x = torch.cat([part.values for part in parts], 1)
    lengths = torch.stack([part.lengths for part in parts]).sum(0)
    if all(part.keep is None for part in parts):
        return x, None, lengths
    keeps = [torch.arange(part.values.size(1)) < part.lengths[:, None] for part in parts]
    order = (~torch.cat(keeps, 1)).to(torch.uint8).argsort(dim=1, stable=True)
    order = order[:, : int(lengths.max())].to(x.device)
    x = x.gather(1, order.unsqueeze(-1).expand(-1, -1, x.size(-1)))
    keep = torch.arange(x.size(1)) < lengths[:, None]
    return x, None if bool(keep.all()) else keep.to(x.device), lengths


class LateFusion(nn.Module):
    """Late fusion: the concatenated memories of several sources, each with a learned mark."""

    def __init__(self, encoders: list[Encoder]):
        super().__init__()
        self.dim = encoders[0].dim
        self.encoders = nn.ModuleList(encoders)
        self.marks = nn.Embedding(len(encoders), self.dim)  # (sources, D)

    @property
    def first_stem(self) -> nn.Module:
        first = self.encoders[0]
        assert isinstance(first, Encoder)
        return first.stem

    def forward(self, *sources: Padded) -> Memory:
        marks = self.marks(torch.arange(len(sources), device=sources[0].values.device))
        memories = []
        for encoder, source, mark in zip(self.encoders, sources, marks, strict=True):
            memory: Memory = encoder(source)
            memories.append(memory._replace(values=memory.values + mark.to(memory.values.dtype)))
        return end_to_end(memories)


AnyEncoder = Encoder | EarlyFusion | LateFusion
