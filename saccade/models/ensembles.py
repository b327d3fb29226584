"""Ensembles: several networks of one kind as one network of that kind.

Its probabilities are the mean of theirs. They have the same vocabulary.
"""

from collections.abc import Sequence
from math import log
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.models.decoders import Decoder, Inputs, TokenIO
from saccade.models.heads import CTCHead
from saccade.models.networks import Classifier, Generator, Network, Tagger
from saccade.nn.loss import Loss, label_loss
from saccade.nn.padded import Memory, Padded


def mean_log_probs(logits: Sequence[Float[Tensor, "*shape V"]]) -> Float[Tensor, "*shape V"]:
    """The log of the mean of several distributions."""
    stacked = torch.stack([part.float().log_softmax(-1) for part in logits])
    return stacked.logsumexp(0) - log(len(logits))


class DecoderEnsemble(Decoder):
    """Decoders, each with its own state; the state is the tuple of them."""

    def __init__(self, members: Sequence[Decoder]):
        first = members[0]
        super().__init__(TokenIO(first.embedding, first.words, first.output), first.dim)
        self.members: Sequence[Decoder] = nn.ModuleList(members)  # type: ignore[assignment]

    def start(self, memory: Memory | None, rows: int) -> tuple[Any, ...]:
        assert memory is not None
        memories = (memory._replace(others=()), *memory.others)
        pairs = zip(self.members, memories, strict=True)
        return tuple(member.start(read, rows) for member, read in pairs)

    def hidden(self, inputs: Inputs, state: Any) -> tuple[Float[Tensor, "B T D"], Any]:
        raise AssertionError("each member has its own")

    def forward(
        self, inputs: Inputs, state: tuple[Any, ...]
    ) -> tuple[Float[Tensor, "B T V"], tuple[Any, ...]]:
        steps = [member(inputs, part) for member, part in zip(self.members, state, strict=True)]
        return mean_log_probs([logits for logits, _ in steps]), tuple(after for _, after in steps)

    def loss(
        self, inputs: Inputs, targets: Padded, state: tuple[Any, ...], smoothing: float = 0.0
    ) -> tuple[Loss, tuple[Any, ...]]:
        log_probs, state = self(inputs, state)
        return label_loss(targets.real(log_probs), targets.real(targets.values), smoothing), state


class GeneratorEnsemble(Generator):
    """Encoders and decoders in pairs."""

    def __init__(self, members: Sequence[Generator]):
        first = members[0]
        decoder = DecoderEnsemble([member.decoder for member in members])
        super().__init__(first.encoder, decoder, special=first.special)
        self.members: Sequence[Generator] = nn.ModuleList(members)  # type: ignore[assignment]

    def encode(self, sources: Sequence[Padded]) -> Memory | None:
        memories = [read for member in self.members if (read := member.encode(sources))]
        return memories[0]._replace(others=tuple(memories[1:]))

    def ctc_heads(self, memory: Memory | None) -> list[tuple[CTCHead, Memory]]:
        assert memory is not None
        memories = (memory._replace(others=()), *memory.others)
        pairs = zip(self.members, memories, strict=True)
        return [head for member, read in pairs for head in member.ctc_heads(read)]


class ClassifierEnsemble(Classifier):
    def __init__(self, members: Sequence[Classifier]):
        super().__init__(members[0].encoder, members[0].head)
        self.members: Sequence[Classifier] = nn.ModuleList(members)  # type: ignore[assignment]

    def logits(self, sources: Sequence[Padded]) -> Float[Tensor, "B labels"]:
        return mean_log_probs([member.logits(sources) for member in self.members])


class TaggerEnsemble(Tagger):
    def __init__(self, members: Sequence[Tagger]):
        super().__init__(members[0].encoder, members[0].head)
        self.members: Sequence[Tagger] = nn.ModuleList(members)  # type: ignore[assignment]

    def logits(self, sources: Sequence[Padded]) -> Float[Tensor, "B words labels"]:
        return mean_log_probs([member.logits(sources) for member in self.members])


def build_ensemble(members: Sequence[Network]) -> Network:
    """The networks as one of the same kind."""
    for kind, ensemble in (
        (Generator, GeneratorEnsemble),
        (Classifier, ClassifierEnsemble),
        (Tagger, TaggerEnsemble),
    ):
        if all(isinstance(member, kind) for member in members):
            return ensemble(members)  # type: ignore[arg-type]
    raise AssertionError(f"no ensemble of {type(members[0]).__name__}")
