"""Heads: from a memory to labels or numbers, for the whole or for each word.

The output layer is given: logits of labels, or a distribution of numbers.
"""

from math import inf
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.nn.dropout import Dropout, most_words
from saccade.nn.padded import Memory, Padded, masked_mean
from saccade.nn.precision import computed
from saccade.nn.products import Linear
from saccade.nn.watch import record

Pool = Literal["last", "mean", "max", "attention"]


class Pooled(nn.Module):
    """One row of logits for a sequence: (B, labels)."""

    def __init__(self, dim: int, output: nn.Module, pool: Pool, dropout: float):
        super().__init__()
        self.pool = pool
        if pool == "attention":
            self.score = Linear(dim, 1)  # a learned query: which positions matter
        self.drop = Dropout(dropout)
        self.output = output

    def forward(self, memory: Memory) -> Float[Tensor, "B labels"]:
        return self.output(self.drop(self._pooled(memory)))  # type: ignore[no-any-return]

    def _pooled(self, memory: Memory) -> Float[Tensor, "B D"]:
        values, keep = memory.values, memory.keep
        match self.pool:
            case "last":
                return memory.summary
            case "mean":
                return masked_mean(values, keep)
            case "max":
                hidden = values if keep is None else values.masked_fill(~keep.unsqueeze(-1), -inf)
                return hidden.amax(1)
            case "attention":
                scores = self.score(values).mT  # (B, 1, S)
                if keep is not None:
                    scores = scores.masked_fill(~keep.unsqueeze(1), -inf)
                weights: Tensor = scores.softmax(-1)
                record(self, weights)
                return (weights @ values).squeeze(1)


class Monotone(nn.Module):
    """Connectionist temporal classification: every position of a memory says a token or nothing.

    Graves et al. 2006; beside attention, Kim et al. 2017, arxiv.org/abs/1609.06773
    """

    def __init__(self, dim: int, vocab_size: int, blank: int):
        super().__init__()
        self.blank = blank  # an id that is never said
        self.output = Linear(dim, vocab_size)

    def forward(self, memory: Memory) -> Float[Tensor, "B S V"]:
        """What each position says: the log-probabilities of tokens, and of none."""
        return self.output(memory.values).float().log_softmax(-1)  # type: ignore[no-any-return]

    def loss(
        self, log_probs: Float[Tensor, "B S V"], keep: Bool[Tensor, "B S"] | None, target: Padded
    ) -> Float[Tensor, ""]:
        """The summed -log p of all ways in which positions can say a target, in its order.

        A target that has more tokens than there are positions counts nothing.
        """
        B, S = log_probs.shape[:2]
        lengths = torch.full((B,), S) if keep is None else keep.sum(1).cpu()
        said = (target.lengths - 2).clamp(min=0)  # without the marks at both ends
        return F.ctc_loss(
            log_probs.transpose(0, 1),
            target.values[:, 1:],
            lengths,
            said,
            self.blank,
            "sum",
            zero_infinity=True,
        )


class Tokens(nn.Module):
    """A token of the vocabulary for a position, of which the encoder may have read another.

    Before the output layer a linear layer, GELU and a norm.
    Devlin et al. 2019, arxiv.org/abs/1810.04805
    """

    def __init__(self, dim: int, norm: nn.Module, output: nn.Linear):
        super().__init__()
        self.dense = Linear(dim, dim)
        self.norm = norm
        self.output = output  # (V, D)

    def hidden(self, values: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape D"]:
        """What the output layer reads."""
        return computed(self.norm(F.gelu(self.dense(values)).float()))

    def forward(self, values: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape V"]:
        return self.output(self.hidden(values).to(self.output.weight.dtype))  # type: ignore[no-any-return]


class PerWord(nn.Module):
    """A row of logits for each word, read from the mean of its pieces: (B, words, labels)."""

    def __init__(self, output: nn.Module, dropout: float):
        super().__init__()
        self.drop = Dropout(dropout)
        self.output = output

    def forward(self, memory: Memory, words: Int[Tensor, "B S"]) -> Float[Tensor, "B words labels"]:
        """`words` says to which word each position belongs; a position of no word has -1."""
        means = word_means(memory.values, words)
        return self.output(self.drop(means))  # type: ignore[no-any-return]


def word_means(
    values: Float[Tensor, "B S D"], words: Int[Tensor, "B S"]
) -> Float[Tensor, "B words D"]:
    """For each word the mean of its positions; zeros for words beyond a row's last."""
    B, _, D = values.shape
    slots = most_words(int(words.max()) + 1) + 1  # slot 0 collects what belongs to no word
    where = (words + 1 + torch.arange(B, device=words.device)[:, None] * slots).flatten()
    sums = values.new_zeros(B * slots, D).index_add(0, where, values.flatten(0, 1))
    counts = values.new_zeros(B * slots).index_add(0, where, values.new_ones(where.numel()))
    return (sums / counts.clamp(min=1).unsqueeze(-1)).view(B, slots, D)[:, 1:]
