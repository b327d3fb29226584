"""Stems: from any kind of source to vectors of one width, for bodies.

`Padded -> Padded`, from ids (B, S) or features (B, S, F) to vectors (B, S, D). A stem may
downsample, so it returns lengths of its own.
"""

from collections.abc import Sequence
from math import sqrt

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.nn.dropout import WordDropout, most_words
from saccade.nn.padded import Padded
from saccade.nn.precision import computed
from saccade.nn.products import Linear


class Embedding(nn.Embedding):
    """A table of vectors, scaled by sqrt(dim) for Transformers.     (V, D)"""

    def __init__(self, vocab_size: int, dim: int, scaled: bool = False):
        super().__init__(vocab_size, dim)
        self.scale = sqrt(dim) if scaled else 1.0

    def forward(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape D"]:
        vectors = computed(super().forward(tokens))
        return vectors if self.scale == 1.0 else vectors * self.scale


class NumberEmbedding(nn.Module):
    """The inputs of a decoder of numbers: F numbers, by one linear layer.     (D, 2 F)

    A missing number (NaN) is replaced by the mean, 0, and an indicator. Before the first step all
    are missing.
    """

    def __init__(self, size: int, dim: int):
        super().__init__()
        self.embedding_dim = dim
        self.linear = Linear(2 * size, dim)

    def forward(self, values: Float[Tensor, "*shape F"]) -> Float[Tensor, "*shape D"]:
        both = torch.cat([values.nan_to_num(0.0), values.isnan().to(values.dtype)], -1)
        return self.linear(computed(both))  # type: ignore[no-any-return]


class TextStem(nn.Module):
    """Token embeddings, with word dropout.

    With `segments` a segment embedding is added: a segment ends with a separator, and surplus ones
    count as the last.
    """

    def __init__(
        self, embedding: Embedding, words: WordDropout, segments: int = 0, separator: int = -1
    ):
        super().__init__()
        self.embedding = embedding
        self.words = words
        self.separator = separator
        dim = embedding.embedding_dim
        self.segments = nn.Embedding(segments, dim) if segments else None  # (segments, D)

    def forward(self, source: Padded) -> Padded:
        x = self.embedding(self.words(source.values))
        if self.segments is not None:
            most = self.segments.num_embeddings - 1
            x = x + self.segments(self.segment(source.values, most)).to(x.dtype)
        return Padded(x, source.lengths)

    def segment(self, tokens: Int[Tensor, "B S"], most: int) -> Int[Tensor, "B S"]:
        """The segment of each position, from 0."""
        ends = (tokens == self.separator).long()
        return (ends.cumsum(1) - ends).clamp(max=most)


class SpelledStem(nn.Module):
    """Word embeddings plus a character CNN: a vector for each word.     (V, D)

    The first id of a word is the word itself, or the unknown one; those after it are its
    characters, with two convolutions and max pooling, which recognise suffixes or capitals of
    unknown words. Santos & Zadrozny 2014 (proceedings.mlr.press/v32);
    Ma & Hovy 2016, arxiv.org/abs/1603.01354
    """

    def __init__(self, embedding: Embedding, words: WordDropout):
        super().__init__()
        self.embedding = embedding
        self.words = words
        dim = embedding.embedding_dim
        self.near = nn.Conv1d(dim, dim // 2, 3, padding=1)
        self.far = nn.Conv1d(dim // 2, dim // 2, 3, padding=1)
        self.spelling = Linear(dim // 2, dim)

    def forward(self, source: Padded) -> Padded:
        words = source.words
        assert words is not None
        x = self.embedding(self.words(source.values))  # (B, S, D)
        begins = F.pad(words[:, 1:] != words[:, :-1], (1, 0), value=True) & (words >= 0)
        # all but characters are zeros, so that no convolution sees beyond its word
        letter = (~begins & (words >= 0)).unsqueeze(-1)  # (B, S, 1)
        spelled = F.relu(self.near((x * letter).mT)).mT * letter
        spelled = F.relu(self.far(spelled.mT)).mT * letter  # (B, S, D / 2)
        lengths = words.amax(1) + 1
        B, S = words.shape
        W = most_words(int(lengths.max()))
        rows = torch.arange(B, device=words.device)[:, None]
        slot = rows * (W + 1) + torch.where(words >= 0, words, W)  # (B, S); the last slot is unused
        largest = spelled.new_zeros(B * (W + 1), spelled.size(2)).scatter_reduce(
            0, slot.view(-1, 1).expand(-1, spelled.size(2)), spelled.flatten(0, 1), "amax"
        )
        indices = torch.arange(B * S, device=words.device).view(B, S)
        first = indices.new_zeros(B * (W + 1)).index_copy(0, slot[begins], indices[begins])
        vectors = x.flatten(0, 1)[first] + self.spelling(largest)
        vectors = vectors.view(B, W + 1, -1)[:, :W]
        index = torch.arange(W, device=words.device).expand(B, -1)
        own = index.masked_fill(index >= lengths.to(index.device)[:, None], -1)
        return Padded(vectors, lengths.cpu(), own)


class LinearStem(nn.Module):
    """Vectors of numbers to vectors of the network's width, by one linear layer.     (D, F)"""

    def __init__(self, size: int, dim: int):
        super().__init__()
        self.linear = Linear(size, dim)

    def forward(self, source: Padded) -> Padded:
        return Padded(self.linear(computed(source.values.float())), source.lengths)


class StridedStem(nn.Module):
    """Frames, downsampled by convolutions of stride 2.     (D, F, 3), (D, D, 3) ...

    The kernels have 3 frames; padding is zeros, as beyond the edge.
    """

    def __init__(self, size: int, dim: int, stride: int):
        super().__init__()
        layers = max(1, stride.bit_length() - 1)
        self.stride = 2 if stride > 1 else 1
        self.layers: Sequence[nn.Conv1d] = nn.ModuleList(  # type: ignore[assignment]
            nn.Conv1d(dim if i else size, dim, 3, self.stride, padding=1) for i in range(layers)
        )

    def forward(self, source: Padded) -> Padded:
        x, lengths = computed(source.values.float()), source.lengths
        for layer in self.layers:
            keep = Padded(x, lengths).keep
            if keep is not None:
                x = x * keep.unsqueeze(-1)
            x = F.gelu(layer(x.mT)).mT
            lengths = (lengths + self.stride - 1) // self.stride
        return Padded(x, lengths)


class GridPositions(nn.Module):
    """Adds learned row and column embeddings to the cells of a grid."""

    def __init__(self, grid: tuple[int, int], dim: int):
        super().__init__()
        self.grid = grid
        self.rows = nn.Embedding(grid[0], dim)  # (rows, D)
        self.columns = nn.Embedding(grid[1], dim)  # (columns, D)

    def forward(self, x: Float[Tensor, "B S D"]) -> Float[Tensor, "B S D"]:
        index = torch.arange(max(self.grid), device=x.device)
        rows, columns = self.rows(index[: self.grid[0]]), self.columns(index[: self.grid[1]])
        marks: Tensor = (rows[:, None] + columns).flatten(0, 1)  # (rows * columns, D)
        return x + marks.to(x.dtype)


class PatchStem(nn.Module):
    """The patches of a picture, by one linear layer.     (D, cell * cell * C)

    Dosovitskiy et al. 2021, arxiv.org/abs/2010.11929
    """

    def __init__(self, size: int, grid: tuple[int, int], dim: int):
        super().__init__()
        self.cells = grid[0] * grid[1]
        self.linear = Linear(size, dim)
        self.positions = GridPositions(grid, dim)

    def forward(self, source: Padded) -> Padded:
        x = self.linear(brightness(source.values[:, : self.cells]))
        return Padded(self.positions(x), torch.full_like(source.lengths, self.cells))


class ResidualStem(nn.Module):
    """A small residual CNN, which ends in a grid with a vector for each cell.

    He et al. 2016, arxiv.org/abs/1512.03385, with group norms, so that vectors do not depend on the
    other pictures in a batch. If there are four halvings or more, the first layer already has
    stride 2: full resolution would take half of the time.
    """

    def __init__(
        self,
        colours: int,
        grid: tuple[int, int],
        cell: int,
        dim: int,
        channels: int,
        blocks: int,
        standardised: bool = True,
    ):
        super().__init__()
        self.grid, self.cell, self.cells = grid, cell, grid[0] * grid[1]
        convolution = StandardisedConv2d if standardised else nn.Conv2d
        halvings = range(cell.bit_length() - 1)
        self.first = nn.Conv2d(colours, channels, 3, padding=1)
        if len(halvings) >= 4:
            self.first, halvings = nn.Conv2d(colours, channels, 5, 2, padding=2), halvings[1:]
        stages: list[nn.Module] = []
        before = channels
        for stage in halvings:
            after = min(channels << stage, max(dim, channels))
            for block in range(blocks):
                stages.append(ResidualBlock(before, after, 2 if block == 0 else 1, convolution))
                before = after
        self.stages = nn.Sequential(*stages)
        self.norm = group_norm(before)
        self.last = Linear(before, dim)
        self.positions = GridPositions(grid, dim)

    def forward(self, source: Padded) -> Padded:
        picture = brightness(source.values[:, : self.cells])
        x: Tensor = self.stages(self.first(unpatched(picture, self.grid, self.cell)))
        x = F.relu(self.norm(x)).flatten(2).mT  # (B, rows * columns, channels)
        return Padded(self.positions(self.last(x)), torch.full_like(source.lengths, self.cells))


class ResidualBlock(nn.Module):
    """x + f(x), with f two convolutions of 3 x 3; norms and ReLUs before them."""

    def __init__(self, before: int, after: int, stride: int, convolution: type[nn.Conv2d]):
        super().__init__()
        self.norm1, self.norm2 = group_norm(before), group_norm(after)
        self.conv1 = convolution(before, after, 3, stride, padding=1, bias=False)
        self.conv2 = convolution(after, after, 3, padding=1, bias=False)
        self.stride = stride
        same = before == after and stride == 1
        self.skip = nn.Identity() if same else convolution(before, after, 1, bias=False)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B E G V"]:
        inner = F.relu(self.norm1(x))
        skipped = x
        if not isinstance(self.skip, nn.Identity):
            # Average pooling rather than a stride: it uses all inputs, and oneDNN's gradient of a
            # strided 1 x 1 convolution writes out of bounds (torch 2.13, two threads).
            skipped = self.skip(F.avg_pool2d(inner, self.stride) if self.stride > 1 else inner)
        inner = self.conv2(F.relu(self.norm2(self.conv1(inner))))
        return skipped + inner  # type: ignore[no-any-return]


class StandardisedConv2d(nn.Conv2d):
    """Weight standardisation: a convolution whose filters have mean 0 and norm 1.

    Qiao et al. 2019, arxiv.org/abs/1903.10520. With group norms alone a CNN trained from scratch
    soon has the same output for all pictures, as their common component grows fastest.
    """

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B E G V"]:
        weight = self.weight.float().flatten(1)  # one dimension to sum over: twice as fast
        weight = weight - weight.mean(1, keepdim=True)
        scale = torch.rsqrt(weight.square().sum(1, keepdim=True) + 1e-6)
        filters = (weight * scale).view_as(self.weight).to(x.dtype)
        return F.conv2d(x, filters, self.bias, self.stride, self.padding)


class GroupNorm(nn.GroupNorm):
    """A group norm in single precision, whatever it reads: torch's own in bf16 takes four times
    as long.
    """

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        return super().forward(x.float()).to(x.dtype)


def group_norm(channels: int) -> GroupNorm:
    """A norm over groups of about eight channels."""
    groups = next(n for n in range(max(1, channels // 8), 0, -1) if channels % n == 0)
    return GroupNorm(groups, channels)


def brightness(values: Tensor) -> Tensor:
    """Pixel values from 0..255 to -1..1."""
    return computed(values.float() / 127.5 - 1.0)


def unpatched(
    cells: Float[Tensor, "B S F"], grid: tuple[int, int], cell: int
) -> Float[Tensor, "B C H W"]:
    """A picture from its cells, row by row; a cell is (side, side, colours)."""
    B, (rows, columns) = cells.size(0), grid
    x = cells.view(B, rows, columns, cell, cell, -1).transpose(2, 3)  # (B, rows, side, columns, ..)
    x = x.reshape(B, rows * cell, columns * cell, -1)
    return x.permute(0, 3, 1, 2)  # colours last in memory, as a CPU's kernels like them
