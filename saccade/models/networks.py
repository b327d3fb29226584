"""Networks: `network(batch, carry, progress) -> Loss, carry`, one entry for every kind.

All parameters are used inside `forward` of a module, so that wrappers of a network (data
parallelism, sharding, hooks) see every use. What a network carries from one batch to the next (the
state of a recurrent language model) is a value.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.models.decoders import Decoder, Inputs, RecurrentDecoder
from saccade.models.encoders import AnyEncoder, Encoder
from saccade.models.forecaster import AnyForecaster
from saccade.models.heads import BagOfWords, CTCHead, PerToken, PerWord, Pooled
from saccade.models.vectors import WordVectors
from saccade.nn.distributions import Distribution
from saccade.nn.dropout import uniform
from saccade.nn.loss import Loss, label_loss, rdrop_loss
from saccade.nn.padded import UNSCORED_ID, Memory, Padded
from saccade.nn.precision import Halved
from saccade.nn.state import detach


@runtime_checkable
class Batch(Protocol):
    """The input of a network: a padded tensor for each source, and one for the target."""

    @property
    def sources(self) -> tuple[Padded, ...]: ...
    @property
    def target(self) -> Padded: ...


class Generator(nn.Module):
    """An encoder and a decoder, or as a language model a decoder alone."""

    def __init__(
        self,
        encoder: AnyEncoder | None,
        decoder: Decoder,
        *,
        label_smoothing: float = 0.0,
        scheduled_sampling: float = 0.0,
        special: Sequence[int] = (),
        monotone: CTCHead | None = None,
        ctc: float = 0.0,
        words: BagOfWords | None = None,
        bag: float = 0.0,
        rdrop: float = 0.0,
    ):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.label_smoothing = label_smoothing
        self.scheduled_sampling = scheduled_sampling
        self.special = tuple(special)  # special ids of the target
        self.monotone, self.ctc = monotone, ctc  # the CTC loss, and its weight
        self.words, self.bag = words, bag  # the bag-of-words loss, and its weight
        self.rdrop = rdrop  # the weight of the divergence between two passes

    @property
    def carries(self) -> bool:
        """Whether a batch continues the one before it."""
        return self.encoder is None and self.decoder.carries

    def forward(self, batch: Batch, carry: Any = None, progress: float = 1.0) -> tuple[Loss, Any]:
        """Teacher forcing: the loss of a target, of which the decoder reads the gold prefix.

        `progress` through training goes from 0 to 1.
        """
        tokens, targets = shifted(batch.target)
        memory = self.encode(batch.sources)
        if self.training and self.scheduled_sampling * progress > 0.0:
            share = self.scheduled_sampling * progress
            tokens = scheduled_inputs(self, memory, tokens, share)
        state = self.decoder.start(memory, tokens.size(0)) if carry is None else carry
        smoothing = self.label_smoothing if self.training else 0.0
        if self.training and self.rdrop:
            second = self.encode(batch.sources)
            again = state if carry is not None else self.decoder.start(second, tokens.size(0))
            one, state = self.decoder(tokens, state)
            both = targets.real(one), targets.real(self.decoder(tokens, again)[0])
            loss = rdrop_loss(*both, targets.real(targets.values), smoothing, self.rdrop)
        else:
            loss, state = self.decoder.loss(tokens, targets, state, smoothing)
        if self.training and self.monotone is not None and memory is not None:
            aligned = self.monotone.loss(self.monotone(memory), memory.keep, batch.target)
            loss = replace(loss, sum=(1.0 - self.ctc) * loss.sum + self.ctc * aligned)
        if self.training and self.words is not None and memory is not None:
            unordered = self.words(memory, batch.target)
            loss = replace(loss, sum=(1.0 - self.bag) * loss.sum + self.bag * unordered)
        # Truncated back-propagation: the state is carried on without its gradient.
        return loss, detach(state) if self.carries else None

    def zero_state(self, rows: int) -> Any:
        """The state to carry before the first batch, for `rows` rows."""
        assert isinstance(self.decoder, RecurrentDecoder)
        return self.decoder.zero_state(rows)

    def encode(self, sources: Sequence[Padded]) -> Memory | None:
        """The memory of the sources; None without sources."""
        if self.encoder is None:
            return None
        memory: Memory = self.encoder(*sources)
        if not self.decoder.copies:
            return memory
        return memory._replace(tokens=source_tokens(sources[0], memory.values.size(1)))

    def ctc_heads(self, memory: Memory | None) -> list[tuple[CTCHead, Memory]]:
        """Each CTC head, and the memory that it reads."""
        return [] if self.monotone is None or memory is None else [(self.monotone, memory)]


class Labeller(nn.Module, ABC):
    """An encoder and a head for labels."""

    def __init__(
        self,
        encoder: AnyEncoder,
        head: Pooled | PerWord,
        *,
        label_smoothing: float = 0.0,
        rdrop: float = 0.0,
    ):
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.label_smoothing = label_smoothing
        self.rdrop = rdrop

    carries = False

    @abstractmethod
    def scored_logits(self, batch: Batch) -> Float[Tensor, "N labels"]:
        """The logits of the scored positions of a batch."""

    def label_loss(self, batch: Batch, gold: Int[Tensor, "N"]) -> Loss:
        """The loss of a batch whose labels are `gold`."""
        logits = self.scored_logits(batch)
        if self.training and self.rdrop:
            return rdrop_loss(logits, self.scored_logits(batch), gold, self.smoothing, self.rdrop)
        return label_loss(logits, gold, self.smoothing)

    @property
    def smoothing(self) -> float:
        return self.label_smoothing if self.training else 0.0


class Classifier(Labeller):
    """One label for an example: (B, labels)."""

    def logits(self, sources: Sequence[Padded]) -> Float[Tensor, "B labels"]:
        return self.head(self.encoder(*sources))  # type: ignore[no-any-return]

    def forward(self, batch: Batch, carry: Any = None, progress: float = 1.0) -> tuple[Loss, None]:
        return self.label_loss(batch, batch.target.values[:, 0]), None

    def scored_logits(self, batch: Batch) -> Float[Tensor, "B labels"]:
        return self.logits(batch.sources)


class Tagger(Labeller):
    """A label for each word of a source: (B, words, labels)."""

    def logits(self, sources: Sequence[Padded]) -> Float[Tensor, "B words labels"]:
        (source,) = sources
        memory: Memory = self.encoder(source)
        words = source.words if memory.words is None else memory.words
        return self.head(memory, words)  # type: ignore[no-any-return]

    def forward(self, batch: Batch, carry: Any = None, progress: float = 1.0) -> tuple[Loss, None]:
        return self.label_loss(batch, batch.target.scored(batch.target.values)), None

    def scored_logits(self, batch: Batch) -> Float[Tensor, "n labels"]:
        return batch.target.scored(self.logits(batch.sources))


class TokenPredictor(nn.Module):
    """An encoder and a head that predicts tokens at the scored positions of the source.

    With a second head it predicts whether the two segments of a row belong together; the first
    position of a target is the label of that.
    """

    carries = False

    def __init__(
        self,
        encoder: Encoder,
        head: PerToken,
        pair: Pooled | None = None,
        *,
        pair_weight: float = 0.0,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.pair = pair
        self.pair_weight = pair_weight  # in tokens
        self.label_smoothing = label_smoothing

    def tokens(self, target: Padded) -> Padded:
        """A target without the label of its pair."""
        if self.pair is None:
            return target
        values = target.values.clone()
        values[:, 0] = UNSCORED_ID
        return Padded(values, target.lengths)

    def logits(self, sources: Sequence[Padded], target: Padded) -> Float[Tensor, "n V"]:
        """Those of the scored positions of the target, one after the other."""
        return self.head(target.scored(self.encoder(*sources).values))  # type: ignore[no-any-return]

    def pairs(self, sources: Sequence[Padded]) -> Float[Tensor, "B 2"]:
        """Whether the second text follows the first (0), or is another (1)."""
        assert self.pair is not None
        return self.pair(self.encoder(*sources))  # type: ignore[no-any-return]

    def forward(self, batch: Batch, carry: Any = None, progress: float = 1.0) -> tuple[Loss, None]:
        memory, target = self.encoder(*batch.sources), self.tokens(batch.target)
        smoothing = self.label_smoothing if self.training else 0.0
        gold = target.scored(target.values)
        loss = self.head.loss(target.scored(memory.values), gold, smoothing)
        if self.pair is not None:
            pairs = label_loss(self.pair(memory), batch.target.values[:, 0])
            loss = replace(loss, sum=loss.sum + self.pair_weight * pairs.sum)
        return loss, None


class BidirectionalLM(TokenPredictor):
    """A forward and a backward language model that share the head and the embedding.

    A token is predicted from those before it, and again from those after it.
    Peters et al. 2018, arxiv.org/abs/1802.05365
    """

    def contexts(self, sources: Sequence[Padded]) -> tuple[Tensor, Tensor]:
        """For each position the states before it and after it: (B, S, D / 2) each."""
        memory: Memory = self.encoder(*sources)
        values = memory.values
        if memory.keep is not None:
            values = values.masked_fill(~memory.keep.unsqueeze(-1), 0.0)
        left, right = values.chunk(2, -1)
        return F.pad(left[:, :-1], (0, 0, 1, 0)), F.pad(right[:, 1:], (0, 0, 0, 1))

    def directional_logits(
        self, sources: Sequence[Padded], target: Padded
    ) -> tuple[Float[Tensor, "n V"], Float[Tensor, "n V"]]:
        """The logits of either direction, at the scored positions of the target."""
        before, after = self.contexts(sources)
        return self.head(target.scored(before)), self.head(target.scored(after))

    def logits(self, sources: Sequence[Padded], target: Padded) -> Float[Tensor, "n V"]:
        """Those of both together: the product of their probabilities."""
        before, after = self.directional_logits(sources, target)
        return before.log_softmax(-1) + after.log_softmax(-1)

    def forward(self, batch: Batch, carry: Any = None, progress: float = 1.0) -> tuple[Loss, None]:
        target = batch.target
        gold = target.scored(target.values)
        hidden = torch.cat([target.scored(side) for side in self.contexts(batch.sources)])
        smoothing = self.label_smoothing if self.training else 0.0
        return self.head.loss(hidden, torch.cat([gold, gold]), smoothing), None


class Regressor(nn.Module):
    """An encoder and a head for numbers: for an example, or for each word of it."""

    carries = False

    def __init__(self, encoder: AnyEncoder, head: Pooled | PerWord):
        super().__init__()
        self.encoder = encoder
        self.head = head

    @property
    def distribution(self) -> Distribution:
        output = self.head.output
        assert isinstance(output, Distribution)
        return output

    def raw(self, sources: Sequence[Padded]) -> Float[Tensor, "B n"] | Float[Tensor, "B words n"]:
        """The parameters of the distribution."""
        memory = self.encoder(*sources)
        if isinstance(self.head, Pooled):
            return self.head(memory)  # type: ignore[no-any-return]
        return self.head(memory, sources[0].words)  # type: ignore[no-any-return]

    def forward(self, batch: Batch, carry: Any = None, progress: float = 1.0) -> tuple[Loss, None]:
        raw, gold = self.raw(batch.sources), batch.target
        if isinstance(self.head, Pooled):
            return self.distribution.loss(raw, gold.values[:, 0]), None
        return self.distribution.loss(gold.real(raw), gold.real(gold.values)), None


Network = Generator | Classifier | Tagger | TokenPredictor | WordVectors | Regressor | AnyForecaster


def shifted(target: Padded) -> tuple[Inputs, Padded]:
    """The inputs and the targets of teacher forcing.

    Tokens begin with a start symbol; before the first numbers all are missing.
    """
    if target.values.is_floating_point():
        return torch.cat([missing(target.values[:, :1]), target.values[:, :-1]], 1), target
    gold = Padded(target.values[:, 1:], (target.lengths - 1).clamp(min=0))
    return target.values[:, :-1], gold


def source_tokens(source: Padded, positions: int) -> Int[Tensor, "B S"]:
    """The tokens at the positions of a memory that begins with this source; -1 at all others."""
    tokens = source.values
    if source.keep is not None:
        tokens = tokens.masked_fill(~source.keep, -1)
    return F.pad(tokens, (0, positions - tokens.size(1)), value=-1)


def missing(like: Float[Tensor, "B n F"]) -> Float[Tensor, "B n F"]:
    """The first input of a decoder of numbers."""
    return torch.full_like(like, nan)


def scheduled_inputs(
    network: Generator, memory: Memory | None, tokens: Int[Tensor, "B T"], share: float
) -> Int[Tensor, "B T"]:
    """Scheduled sampling: a share of the decoder's inputs replaced by its own predictions.

    Bengio et al. 2015, arxiv.org/abs/1506.03099: step by step, each prediction after those before.
    """
    with torch.no_grad():
        state = network.decoder.start(memory, tokens.size(0))
        special = torch.tensor(network.special, device=tokens.device)
        columns = [tokens[:, :1]]
        for t in range(1, tokens.size(1)):
            logits, state = network.decoder(columns[-1], state)
            guess, real = logits.argmax(-1), tokens[:, t : t + 1]
            own = (uniform(guess.shape, guess.device) < share) & ~torch.isin(real, special)
            columns.append(torch.where(own, guess, real))
    return torch.cat(columns, 1)


def half_precision(network: nn.Module, dtype: torch.dtype) -> Halved:
    """A network that computes in half precision, except for large output layers."""
    single: tuple[nn.Module, ...] = ()
    if isinstance(network, Generator):
        single = (network.decoder.output,)
    elif isinstance(network, TokenPredictor):
        single = (network.head.output,)
    return Halved(network, dtype, single)
