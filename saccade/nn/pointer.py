"""The pointer: what is said next is generated, or copied from the source."""

from math import sqrt
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.nn.attention import attention_weights
from saccade.nn.loss import Loss
from saccade.nn.padded import Memory, Padded
from saccade.nn.products import Linear
from saccade.nn.watch import record


class Pointed(NamedTuple):
    """What is read of a source at every step."""

    keys: Float[Tensor, "M S D"]
    values: Float[Tensor, "M S C"]
    tokens: Int[Tensor, "M S"]  # by the ids of the target
    keep: Bool[Tensor, "M S"] | None


class Copied(NamedTuple):
    """How much of what comes next is copied, and from where."""

    weights: Float[Tensor, "M n S"]  # over the positions of each source; n = rows of it * T
    gate: Float[Tensor, "M n 1"]  # log-odds of copying


class Pointer(nn.Module):
    """p(y) = (1 - g) p_generated(y) + g (attention to the positions of the source that hold y)

    See et al. 2017, arxiv.org/abs/1704.04368, with an attention of its own in place of the
    decoder's. Source and target have one vocabulary, of pieces or characters: a word that was
    never seen is copied piece by piece, so there is nothing that a source has and the vocabulary
    has not.
    """

    def __init__(self, dim: int, memory_dim: int):
        super().__init__()
        self.query = Linear(dim, dim, bias=False)
        self.key = Linear(memory_dim, dim, bias=False)
        self.gate = Linear(dim + memory_dim, 1)

    def prepare(self, memory: Memory) -> Pointed:
        """What is read of a memory: computed once a source."""
        assert memory.tokens is not None
        tokens, keep = memory.tokens, memory.keep
        if bool((tokens < 0).any()):  # what is no token cannot be copied
            tokens, keep = tokens.clamp(min=0), tokens >= 0
        return Pointed(self.key(memory.values), memory.values, tokens, keep)

    def point(self, hidden: Float[Tensor, "B T D"], source: Pointed) -> Copied:
        """Several rows may share a source, as hypotheses about it do; see `Attention`."""
        folded = hidden.reshape(source.keys.size(0), -1, hidden.size(-1))
        scores = self.query(folded) @ source.keys.mT / sqrt(hidden.size(-1))
        keep = None if source.keep is None else source.keep.unsqueeze(1)
        weights = attention_weights(scores, keep)
        record(self, weights.reshape(*hidden.shape[:2], -1))
        return Copied(weights, self.gate(torch.cat([folded, weights @ source.values], -1)))

    def forward(
        self,
        hidden: Float[Tensor, "B T D"],
        logits: Float[Tensor, "B T V"],
        source: Pointed,
    ) -> Float[Tensor, "B T V"]:
        """The log-probabilities of what comes next, in place of the logits of generating."""
        weights, gate = (part.float() for part in self.point(hidden, source))
        said = logits.float().softmax(-1).view(*gate.shape[:2], -1)
        where = source.tokens.unsqueeze(1).expand(-1, gate.size(1), -1)
        mixed = said * torch.sigmoid(-gate)
        mixed = mixed.scatter_add(2, where, weights * torch.sigmoid(gate))
        return mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log().view(logits.shape)

    def loss(
        self,
        hidden: Float[Tensor, "B T D"],
        logits: Float[Tensor, "n V"],
        source: Pointed,
        targets: Padded,
        smoothing: float,
    ) -> Loss:
        """The loss of the real targets, of which these are the logits; smoothed as generated."""
        weights, gate = self.point(hidden, source)
        here = source.tokens.unsqueeze(1) == targets.values.reshape(len(weights), -1, 1)
        copied = targets.real((weights * here).sum(-1).view(targets.values.shape)).float()
        gate = targets.real(gate.view(targets.values.shape)).float()
        log_p = logits.float().log_softmax(-1)
        gold = log_p.gather(1, targets.real(targets.values)[:, None])[:, 0]
        mixed = torch.sigmoid(-gate) * gold.exp() + torch.sigmoid(gate) * copied
        nll = -mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log().sum()
        total = nll
        if smoothing:
            total = (1 - smoothing) * nll - smoothing * log_p.mean(-1).sum()
        return Loss(total, nll.detach(), targets.count)
