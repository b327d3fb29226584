"""Decoders: `logits, state = decoder(tokens, state)`, for a whole target or for one column of it.

With a memory they write what it says; without one they are language models. No decoder learns what
the source was, and none remembers anything between calls: all that goes on is in the state.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.models.encoders import Embedding
from saccade.nn.attention import Attention, Cache, additive_mask
from saccade.nn.dropout import Dropout
from saccade.nn.loss import Loss, projected_cross_entropy
from saccade.nn.padded import Memory, Padded
from saccade.nn.recurrent import LayerState, Recurrent
from saccade.nn.state import Fixed, Grown, shared
from saccade.nn.transformer import Block


class Decoder(nn.Module, ABC):
    """What all decoders share: an embedding below, an output layer above."""

    def __init__(self, embedding: Embedding, dim: int, tied: bool):
        super().__init__()
        self.dim = dim
        self.embedding = embedding
        self.output = nn.Linear(dim, embedding.num_embeddings)  # (V, D)
        if tied:
            self.output.weight = embedding.weight

    @abstractmethod
    def start(self, memory: Memory | None, rows: int) -> Any:
        """The state before the first token, for a memory or, without one, for so many rows."""

    @abstractmethod
    def hidden(self, tokens: Int[Tensor, "B T"], state: Any) -> tuple[Float[Tensor, "B T D"], Any]:
        """What the output layer reads at each position, and the state after the last."""

    def forward(self, tokens: Int[Tensor, "B T"], state: Any) -> tuple[Float[Tensor, "B T V"], Any]:
        hidden, state = self.hidden(tokens, state)
        return self.output(hidden), state

    def loss(
        self,
        tokens: Int[Tensor, "B T"],
        targets: Padded,
        state: Any,
        smoothing: float = 0.0,
    ) -> tuple[Loss, Any]:
        """The loss of `targets` after `tokens`, and the state; logits are never all in memory."""
        hidden, state = self.hidden(tokens, state)
        loss, nll = projected_cross_entropy(
            targets.real(hidden),
            self.output.weight,
            self.output.bias,
            targets.real(targets.values),
            smoothing,
        )
        return Loss(loss, nll, targets.count), state


class RecurrentState(NamedTuple):
    layers: tuple[LayerState, ...]
    source: Fixed | None  # (keys, values, keep) with attention, (context,) without


class RecurrentDecoder(Decoder):
    """A recurrent language model, conditioned on a memory if there is one.

    Without attention the memory's summary gives the first state (Sutskever et al. 2014) and is read
    again at every step (Cho et al. 2014). With attention the context of step t enters the cell,
    e = f(s_{t-1}, h_i) and s_t = g(y_{t-1}, s_{t-1}, c_t) (Bahdanau et al. 2015), or only the
    output (Luong et al. 2015), which lets the whole target run through the layers at once.
    """

    def __init__(
        self,
        embedding: Embedding,
        layers: Recurrent,
        *,
        memory_dim: int | None,
        attention: Attention | None,
        context_in_cell: bool,
        dropout: float,
        tied: bool,
    ):
        super().__init__(embedding, layers.dim, tied)
        self.layers = layers
        self.drop = Dropout(dropout)
        self.attention = attention
        self.context_in_cell = context_in_cell
        if memory_dim is not None:
            parts = 2 if layers.cell == "lstm" else 1
            self.first = nn.Linear(memory_dim, len(layers.layers) * parts * layers.dim)
        if attention is not None and memory_dim is not None:
            width = layers.dim + memory_dim + (embedding.embedding_dim if context_in_cell else 0)
            self.readout = nn.Linear(width, layers.dim)

    def start(self, memory: Memory | None, rows: int) -> RecurrentState:
        if memory is None:
            return RecurrentState(self.layers.zeros(rows, self.embedding.weight), None)
        parts = torch.split(torch.tanh(self.first(memory.summary)), self.dim, -1)
        each = len(parts) // len(self.layers.layers)
        layers = tuple(parts[i : i + each] for i in range(0, len(parts), each))
        if self.attention is None:
            return RecurrentState(layers, Fixed((memory.summary,)))
        keys = self.attention.prepare(memory.values)
        return RecurrentState(layers, Fixed((keys, memory.values, memory.keep)))

    def hidden(
        self, tokens: Int[Tensor, "B T"], state: RecurrentState
    ) -> tuple[Float[Tensor, "B T D"], RecurrentState]:
        embedded = self.drop(self.embedding(tokens))
        if state.source is None:
            outputs, layers = self.layers(embedded, state.layers)
        elif self.attention is None:
            (summary,) = state.source.tree
            context = shared(summary, tokens.size(0)).unsqueeze(1).expand(-1, tokens.size(1), -1)
            outputs, layers = self.layers(torch.cat([embedded, context], -1), state.layers)
        elif self.context_in_cell:
            outputs, layers = self._context_in_cell(self.attention, embedded, state)
        else:
            outputs, layers = self.layers(embedded, state.layers)
            context = self.attention(outputs, *state.source.tree)
            outputs = torch.tanh(self.readout(torch.cat([outputs, context], -1)))
        return self.drop(outputs), RecurrentState(layers, state.source)

    def _context_in_cell(
        self, attention: Attention, embedded: Float[Tensor, "B T D"], state: RecurrentState
    ) -> tuple[Float[Tensor, "B T D"], tuple[LayerState, ...]]:
        assert state.source is not None
        layers, outputs, contexts = state.layers, [], []
        for column in torch.split(embedded, 1, dim=1):
            query = layers[-1][0].unsqueeze(1)  # s_{t-1}: (B, 1, D)
            context = attention(query, *state.source.tree)
            output, layers = self.layers(torch.cat([column, context], -1), layers)
            outputs.append(output)
            contexts.append(context)
        read = torch.cat([torch.cat(outputs, 1), torch.cat(contexts, 1), embedded], -1)
        return torch.tanh(self.readout(read)), layers


class TransformerState(NamedTuple):
    """Keys and values of all hypotheses about a source stand together and are never moved: each
    row remembers which are its own."""

    caches: Fixed | None  # each layer's keys and values so far: (M, H, L, K)
    own: Int[Tensor, "B t"] | None  # whose places they have among the L; None: all, in order
    source: Fixed | None  # (each layer's keys and values of the memory, its mask)


class TransformerDecoder(Decoder):
    """Every position looks back at all before it, and at the memory if there is one."""

    def __init__(
        self,
        embedding: Embedding,
        positions: nn.Module,
        blocks: list[Block],
        norm: nn.Module,
        dropout: float,
        tied: bool,
    ):
        super().__init__(embedding, embedding.embedding_dim, tied)
        self.positions = positions
        self.blocks: Sequence[Block] = nn.ModuleList(blocks)  # type: ignore[assignment]
        self.norm = norm
        self.drop = Dropout(dropout)

    def start(self, memory: Memory | None, rows: int) -> TransformerState:
        if memory is None:
            return TransformerState(None, None, None)
        sources = tuple(block.cross.prepare(memory.values) for block in self.blocks)
        mask = additive_mask(memory.keep, memory.values.dtype)
        return TransformerState(None, None, Fixed((sources, mask)))

    def hidden(
        self, tokens: Int[Tensor, "B T"], state: TransformerState
    ) -> tuple[Float[Tensor, "B T D"], TransformerState]:
        B, before = tokens.size(0), None if state.caches is None else state.caches.tree
        own = state.own
        if own is not None and before is not None and own.size(1) % TIDY == 0:
            before, own = _tidy(before, own)
        L = 0 if before is None else before[0][0].length
        past = L if own is None else own.size(1)
        heard, memory_mask = (None, None) if state.source is None else state.source.tree
        M = B if before is None else before[0][0].buffer.size(0)
        M = M if heard is None else heard[0][0].size(0)
        mask = None
        if B > M:
            own, mask = _own(tokens, own, M, L, self.embedding.weight.dtype)
        x = self.drop(self.positions(self.embedding(tokens), past))
        caches = []
        for i, block in enumerate(self.blocks):
            x, cache = block(
                x,
                mask,
                cache=None if before is None else before[i],
                causal=mask is None,
                past=past,
                sources=M,
                memory=None if heard is None else heard[i],
                memory_mask=memory_mask,
            )
            caches.append(cache)
        return self.norm(x), TransformerState(Fixed(tuple(caches)), own, state.source)


TIDY = 8  # steps, after which the keys and values of what was given up are left out


def _tidy(
    caches: tuple[Cache, ...], own: Int[Tensor, "B t"]
) -> tuple[tuple[Cache, ...], Int[Tensor, "B t"]]:
    """The caches without the places that are no row's own any more, and the rows' places then.

    Hypotheses about one source have most of their past in common.
    """
    sources, _, length, _ = caches[0][0].tensor.shape
    theirs = own.view(sources, -1)  # (M, rows * t)
    used = torch.zeros(sources, length, dtype=torch.long, device=own.device)
    used.scatter_(1, theirs, 1)
    kept = int(used.sum(1).max())
    if 2 * kept > length:
        return caches, own
    places = used.argsort(dim=1, descending=True, stable=True)[:, :kept]  # (M, kept)
    own = (used.cumsum(1) - 1).gather(1, theirs).view_as(own)

    def few(grown: Grown) -> Grown:
        _, H, _, K = grown.buffer.shape
        index = places[:, None, :, None].expand(-1, H, -1, K)
        return Grown.of(grown.tensor.gather(2, index))

    return tuple((few(key), few(value)) for key, value in caches), own


def _own(
    tokens: Int[Tensor, "B T"],
    own: Int[Tensor, "B t"] | None,
    sources: int,
    length: int,
    dtype: torch.dtype,
) -> tuple[Int[Tensor, "B n"], Float[Tensor, "M 1 q k"]]:
    """Where the rows' keys are among those of their source, with these tokens' behind the rest,
    and what to add to scores so that each token sees its own row's, up to itself."""
    (B, T), device = tokens.shape, tokens.device
    if own is None:
        own = torch.arange(length, device=device).expand(B, -1)
    total = length + B // sources * T
    new = torch.arange(length, total, device=device).view(-1, T).repeat(sources, 1)  # (B, T)
    own = torch.cat([own, new], 1)
    mask = torch.full((B, T, total), -inf, dtype=dtype, device=device)
    for i in range(T):
        mask[:, i].scatter_(1, own[:, : own.size(1) - T + i + 1], 0.0)
    return own, mask.view(sources, 1, -1, total)
