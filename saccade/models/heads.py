"""Heads: from a memory to labels or numbers, for the whole sequence or for each word.

The output layer is given: logits of labels, or a distribution of numbers.
"""

from math import inf
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.nn.dropout import Dropout, most_words
from saccade.nn.loss import Loss, Vocabulary
from saccade.nn.padded import Memory, Padded, masked_mean
from saccade.nn.precision import computed
from saccade.nn.products import Linear
from saccade.nn.watch import record

Pool = Literal["last", "first", "mean", "max", "attention"]
Dense = Literal["off", "tanh", "relu"]


class Pooled(nn.Module):
    """One row of logits for a sequence: (B, labels).

    With `dense` the pooled vector goes through a linear layer and a non-linearity: BERT's pooler.
    """

    def __init__(
        self, dim: int, output: nn.Module, pool: Pool, dropout: float, dense: Dense = "off"
    ):
        super().__init__()
        self.pool = pool
        self.activation = dense
        if dense != "off":
            self.dense = Linear(dim, dim)
        if pool == "attention":
            self.score = Linear(dim, 1)  # a learned query: which positions matter
        self.drop = Dropout(dropout)
        self.output = output

    def forward(self, memory: Memory) -> Float[Tensor, "B labels"]:
        return self.output(self.drop(self.vector(memory)))  # type: ignore[no-any-return]

    def vector(self, memory: Memory) -> Float[Tensor, "B D"]:
        """The one vector that the output layer reads."""
        match self.activation:
            case "off":
                return self._pooled(memory)
            case "tanh":
                return torch.tanh(self.dense(self._pooled(memory)))
            case "relu":
                return F.relu(self.dense(self._pooled(memory)))

    def _pooled(self, memory: Memory) -> Float[Tensor, "B D"]:
        values, keep = memory.values, memory.keep
        match self.pool:
            case "last":
                return memory.summary
            case "first":
                return values[:, 0]
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


class CTCHead(nn.Module):
    """Connectionist temporal classification: each memory position predicts a token or the blank.

    Graves et al. 2006; beside attention, Kim et al. 2017, arxiv.org/abs/1609.06773
    """

    def __init__(self, dim: int, vocab_size: int, blank: int):
        super().__init__()
        self.blank = blank  # an id that is in no target
        self.output = Linear(dim, vocab_size)

    def forward(self, memory: Memory) -> Float[Tensor, "B S V"]:
        """The log-probabilities of the tokens and of the blank at each position."""
        return self.output(memory.values).float().log_softmax(-1)  # type: ignore[no-any-return]

    def loss(
        self, log_probs: Float[Tensor, "B S V"], keep: Bool[Tensor, "B S"] | None, target: Padded
    ) -> Float[Tensor, ""]:
        """The summed -log p of the targets, over all their alignments to the positions.

        A target with more tokens than there are positions does not count.
        """
        B, S = log_probs.shape[:2]
        lengths = torch.full((B,), S) if keep is None else keep.sum(1).cpu()
        gold = (target.lengths - 2).clamp(min=0)  # without the marks at both ends
        return F.ctc_loss(
            log_probs.transpose(0, 1),
            target.values[:, 1:],
            lengths,
            gold,
            self.blank,
            "sum",
            zero_infinity=True,
        )


class BagOfWords(nn.Module):
    """The words of a target, in no order, predicted from the mean of a memory.

    Ma et al. 2018, arxiv.org/abs/1805.04871. It gives an encoder that is trained from scratch, such
    as that of pictures, a strong gradient before the decoder has learned to attend.
    """

    def __init__(self, dim: int, vocab_size: int):
        super().__init__()
        self.output = Linear(dim, vocab_size)

    def forward(self, memory: Memory, target: Padded) -> Float[Tensor, ""]:
        """The summed -log p of a target's words."""
        mean = masked_mean(memory.values, memory.keep)
        log_probs = self.output(mean).float().log_softmax(-1)  # (B, V)
        gold = Padded(target.values[:, 1:], (target.lengths - 2).clamp(min=0))  # without the marks
        scores = log_probs.gather(1, gold.values)
        return -(scores if gold.keep is None else scores * gold.keep).sum()  # type: ignore[no-any-return]


class PerToken(nn.Module):
    """A row of logits of the vocabulary for each position: (..., V).

    Before the output, which may be the embedding table, a linear layer, a non-linearity and a norm.
    Devlin et al. 2019, arxiv.org/abs/1810.04805
    """

    def __init__(self, dim: int, output: Vocabulary, activation: str, norm_eps: float):
        super().__init__()
        self.activation = activation
        if activation != "off":
            self.dense = Linear(dim, output.in_features)
            self.norm = nn.LayerNorm(output.in_features, norm_eps)
        self.output = output

    def hidden(self, values: Float[Tensor, "*B C"]) -> Float[Tensor, "*B D"]:
        """What the output layer reads."""
        match self.activation:
            case "off":
                return values
            case "relu":
                values = F.relu(self.dense(values))
            case "gelu":
                values = F.gelu(self.dense(values))
            case _:
                values = F.gelu(self.dense(values), approximate="tanh")
        return computed(self.norm(values.float()))

    def forward(self, values: Float[Tensor, "*B C"]) -> Float[Tensor, "*B V"]:
        return self.output(self.hidden(values))  # type: ignore[no-any-return]

    def loss(
        self, values: Float[Tensor, "N C"], gold: Int[Tensor, "N"], smoothing: float = 0.0
    ) -> Loss:
        """The loss of the tokens at some positions, without all logits in memory."""
        return self.output.loss(self.hidden(values), gold, smoothing)


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
