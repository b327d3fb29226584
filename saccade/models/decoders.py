"""Decoders: `logits, state = decoder(tokens, state)`, for a whole target or for one column of it.

With a memory they are conditioned on a source; without one they are language models. No decoder
knows the kind of the source, and none keeps anything between calls: all of it is in the state.

Tokens and numbers differ at the input and the output alone: an embedding table or a linear layer,
and logits of a vocabulary or the raw parameters of a distribution.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.nn.attention import Attention, additive_mask
from saccade.nn.cache import KVCache
from saccade.nn.distributions import Distribution
from saccade.nn.dropout import Dropout
from saccade.nn.edits import Edits, EditSource, Places
from saccade.nn.loss import Loss, Vocabulary, label_loss
from saccade.nn.padded import Memory, Padded
from saccade.nn.pointer import Pointer
from saccade.nn.products import Linear
from saccade.nn.recurrent import LayerState, Recurrent
from saccade.nn.state import Fixed, shared
from saccade.nn.stems import Embedding, NumberEmbedding
from saccade.nn.transformer import CausalStack

Inputs = Int[Tensor, "B T"] | Float[Tensor, "B T F"]  # tokens, or numbers


class TokenIO(NamedTuple):
    """A decoder's input embedding, word dropout and output layer, of tokens or numbers."""

    embedding: Embedding | NumberEmbedding
    words: nn.Module  # word dropout
    output: Vocabulary | Distribution  # (V, D), or as many as the distribution has parameters


class Decoder(nn.Module, ABC):
    """What all decoders share: an embedding and an output layer."""

    carries = False  # whether a language model continues the batch before

    def __init__(self, ends: TokenIO, dim: int):
        super().__init__()
        self.dim = dim
        self.words = ends.words
        self.embedding = ends.embedding
        self.output = ends.output
        self.pointer: Pointer | None = None  # copies from the source

    @property
    def copies(self) -> bool:
        """Whether a memory needs the tokens of its source."""
        return self.pointer is not None

    @abstractmethod
    def start(self, memory: Memory | None, rows: int) -> Any:
        """The state before the first token, for a memory or, without one, for `rows` rows.

        Uses no parameters: projections of the memory are computed with the first token, inside
        `forward`.
        """

    @abstractmethod
    def hidden(self, inputs: Inputs, state: Any) -> tuple[Float[Tensor, "B T D"], Any]:
        """The input of the output layer at each position, and the state after the last."""

    def forward(self, inputs: Inputs, state: Any) -> tuple[Float[Tensor, "B T V"], Any]:
        hidden, state = self.hidden(inputs, state)
        if isinstance(self.embedding, Embedding):
            hidden = hidden.to(self.embedding.weight.dtype)
        if self.pointer is not None:
            state = self._with_pointer_source(self.pointer, state)
            return self.pointer(hidden, self.output(hidden), state.pointed.tree), state
        return self.output(hidden), state

    def _with_pointer_source(self, pointer: Pointer, state: Any) -> Any:
        """The state with the pointer's projection of the memory, computed once a source."""
        if isinstance(state.pointed.tree, Memory):
            return state._replace(pointed=Fixed(pointer.prepare(state.pointed.tree)))
        return state

    def loss(
        self,
        inputs: Inputs,
        targets: Padded,
        state: Any,
        smoothing: float = 0.0,
    ) -> tuple[Loss, Any]:
        """The loss of `targets` after `inputs`, and the state, without all logits in memory."""
        hidden, state = self.hidden(inputs, state)
        output = self.output
        if isinstance(output, Distribution):
            return output.loss(output(targets.real(hidden)), targets.real(targets.values)), state
        if self.pointer is not None:
            state = self._with_pointer_source(self.pointer, state)
            source = state.pointed.tree
            return self.pointer.loss(hidden, output, source, targets, smoothing), state
        hidden_and_gold = targets.real(hidden), targets.real(targets.values)
        return output.loss(*hidden_and_gold, smoothing), state


def pointer_memory(memory: Memory | None) -> Fixed | None:
    """A memory for a pointer, if it is to be copied from."""
    return None if memory is None or memory.tokens is None else Fixed(memory)


class RecurrentState(NamedTuple):
    layers: tuple[LayerState, ...] | None  # None before the first token
    source: Fixed | None  # a Memory; after the first token its projections for every step
    pointed: Fixed | None = None  # the same for a pointer


class RecurrentDecoder(Decoder):
    """A recurrent language model, conditioned on a memory if there is one.

    Without attention the memory's summary gives the first state (Sutskever et al. 2014) and is read
    again at every step (Cho et al. 2014). With attention the context of step t enters the cell,
    e = f(s_{t-1}, h_i) and s_t = g(y_{t-1}, s_{t-1}, c_t) (Bahdanau et al. 2015), or only the
    output (Luong et al. 2015), which lets the whole target run through the layers at once.
    """

    carries = True

    def __init__(
        self,
        ends: TokenIO,
        layers: Recurrent,
        *,
        memory_dim: int | None,
        attention: Attention | None,
        context_in_cell: bool,
        dropout: float,
        copied: bool = False,
    ):
        super().__init__(ends, layers.dim)
        self.copied = copied  # the first state is the memory's summary, which is not read again
        self.layers = layers
        self.drop = Dropout(dropout)
        self.attention = attention
        self.context_in_cell = context_in_cell
        if memory_dim is not None and not copied:
            parts = 2 if layers.cell == "lstm" else 1
            self.first = Linear(memory_dim, len(layers.layers) * parts * layers.dim)
        if attention is not None and memory_dim is not None:
            width = layers.dim + memory_dim + (layers.dim if context_in_cell else 0)
            self.readout = Linear(width, layers.dim)

    def start(self, memory: Memory | None, rows: int) -> RecurrentState:
        source = None if memory is None else Fixed(memory)
        return RecurrentState(None, source, pointer_memory(memory))

    def zero_state(self, rows: int) -> RecurrentState:
        """The state of a language model that has read nothing."""
        return RecurrentState(self.layers.zeros(rows, next(self.parameters()).detach()), None)

    def hidden(
        self, inputs: Inputs, state: RecurrentState
    ) -> tuple[Float[Tensor, "B T D"], RecurrentState]:
        embedded = self.drop(self.embedding(self.words(inputs)))
        layers, source, _ = state
        if source is not None and isinstance(source.tree, Memory):
            source = Fixed(self._prepared(source.tree))
        if layers is None:
            layers = self._first_layers(state, embedded)
        if source is None or self.copied:
            outputs, layers = self.layers(embedded, layers)
        elif self.attention is None:
            (summary,) = source.tree
            context = shared(summary, inputs.size(0)).unsqueeze(1).expand(-1, inputs.size(1), -1)
            outputs, layers = self.layers(torch.cat([embedded, context], -1), layers)
        elif self.context_in_cell:
            outputs, layers = self._context_in_cell(self.attention, embedded, layers, source.tree)
        else:
            outputs, layers = self.layers(embedded, layers)
            context = self.attention(outputs, *source.tree)
            outputs = torch.tanh(self.readout(torch.cat([outputs, context], -1)))
        return self.drop(outputs), RecurrentState(layers, source, state.pointed)

    def _prepared(self, memory: Memory) -> tuple[Tensor | None, ...]:
        """The parts of a memory for every step: (keys, values, keep), or its summary alone."""
        if self.attention is None:
            return (memory.summary,)
        return self.attention.prepare(memory.values), memory.values, memory.keep

    def _first_layers(
        self, state: RecurrentState, embedded: Float[Tensor, "B T D"]
    ) -> tuple[LayerState, ...]:
        if state.source is None:
            return self.layers.zeros(embedded.size(0), embedded)
        if self.copied:
            return ((shared(state.source.tree.summary, embedded.size(0)),),)
        first = torch.tanh(self.first(state.source.tree.summary))  # (M, layers * parts * D)
        parts = torch.split(shared(first, embedded.size(0)), self.dim, -1)
        each = len(parts) // len(self.layers.layers)
        return tuple(parts[i : i + each] for i in range(0, len(parts), each))

    def _context_in_cell(
        self,
        attention: Attention,
        embedded: Float[Tensor, "B T D"],
        layers: tuple[LayerState, ...],
        source: tuple[Any, ...],
    ) -> tuple[Float[Tensor, "B T D"], tuple[LayerState, ...]]:
        outputs, contexts = [], []
        for column in torch.split(embedded, 1, dim=1):
            query = layers[-1][0].unsqueeze(1)  # s_{t-1}: (B, 1, D)
            context = attention(query, *source)
            output, layers = self.layers(torch.cat([column, context], -1), layers)
            outputs.append(output)
            contexts.append(context)
        read = torch.cat([torch.cat(outputs, 1), torch.cat(contexts, 1), embedded], -1)
        return torch.tanh(self.readout(read)), layers


class TransformerState(NamedTuple):
    cache: KVCache
    source: Fixed | None  # a Memory; after the first token (keys and values of each layer, mask)
    pointed: Fixed | None = None  # the same for a pointer


class TransformerDecoder(Decoder):
    """Every position attends to all before it, and to the memory if there is one."""

    def __init__(self, ends: TokenIO, stack: CausalStack):
        super().__init__(ends, ends.embedding.embedding_dim)
        self.stack = stack

    def start(self, memory: Memory | None, rows: int) -> TransformerState:
        source = None if memory is None else Fixed(memory)
        return TransformerState(KVCache(), source, pointer_memory(memory))

    def hidden(
        self, inputs: Inputs, state: TransformerState
    ) -> tuple[Float[Tensor, "B T D"], TransformerState]:
        x = self.embedding(self.words(inputs))
        if state.source is None:
            x, cache, _ = self.stack(x, state.cache)
            return x, TransformerState(cache, None)
        source: Any = state.source.tree
        if isinstance(source, Memory):
            source = source.values, additive_mask(source.keep, x.dtype)
        memory, mask = source
        x, cache, heads = self.stack(x, state.cache, memory, mask)
        return x, TransformerState(cache, Fixed((heads, mask)), state.pointed)


class EditState(NamedTuple):
    layers: tuple[LayerState, ...] | None  # None before the first token
    source: Fixed  # a Memory; after the first token an EditSource
    places: Places | None  # the state of the pass over the source


class EditDecoder(Decoder):
    """A recurrent language model that writes words in one pass over a source; see `Edits`.

    The layers read the target alone, so that it runs through them at once. `forward` returns exact
    log-probabilities: the sum over all edit sequences that write a target.
    """

    def __init__(
        self,
        ends: TokenIO,
        layers: Recurrent,
        *,
        memory_dim: int,
        end: int,
        copies: bool,
        dropout: float,
    ):
        super().__init__(ends, layers.dim)
        self.layers = layers
        self.drop = Dropout(dropout)
        assert isinstance(ends.output, nn.Linear)
        self.attention = Edits(ends.output, layers.dim, memory_dim, end, copies, dropout)

    @property
    def copies(self) -> bool:
        return self.attention.copies

    def start(self, memory: Memory | None, rows: int) -> EditState:
        assert memory is not None, "there is nothing to edit"
        return EditState(None, Fixed(memory), None)

    def hidden(self, inputs: Inputs, state: EditState) -> tuple[Float[Tensor, "B T D"], EditState]:
        embedded = self.drop(self.embedding(self.words(inputs)))
        layers = state.layers or self.layers.zeros(embedded.size(0), embedded)
        outputs, layers = self.layers(embedded, layers)
        source = state.source
        if isinstance(source.tree, Memory):
            source = Fixed(self.attention.prepare(source.tree))
        return self.drop(outputs), EditState(layers, source, state.places)

    def forward(self, inputs: Inputs, state: EditState) -> tuple[Float[Tensor, "B T V"], EditState]:
        hidden, state = self.hidden(inputs, state)
        source: EditSource = state.source.tree
        log_probs, places = self.attention(hidden, inputs, source, state.places)
        return log_probs, state._replace(places=places)

    def loss(
        self, inputs: Inputs, targets: Padded, state: EditState, smoothing: float = 0.0
    ) -> tuple[Loss, EditState]:
        gold = targets.real(targets.values)
        if smoothing or state.places is not None:
            log_probs, state = self(inputs, state)
            return label_loss(targets.real(log_probs), gold, smoothing), state
        hidden, state = self.hidden(inputs, state)
        log_p = self.attention.log_likelihood(hidden, targets.values, state.source.tree)
        total = -targets.real(log_p).sum()
        return Loss(total, total.detach(), gold.numel()), state
