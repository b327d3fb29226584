"""Edits: a target is written in one pass over its source, from left to right.

At the position that was written at last a token more may be inserted, or the pass goes on; at a
position that was just reached a token is substituted for it, or it is copied, or deleted. The end
of the source is the end of the target. Where the pass stands is not known, only how likely it is to
stand at each position: all ways to write a target count, so what is said next has a distribution
over tokens, as with any decoder, and no alignment has to be given.

Ristad & Yianilos 1998 (learned edit distance); Graves 2012, arxiv.org/abs/1211.3711 (transducers);
Wu & Cotterell 2019, arxiv.org/abs/1905.06319 (exact hard monotonic attention).
"""

from math import log
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from saccade.nn.attention import tanh_of_sums
from saccade.nn.dropout import Dropout
from saccade.nn.padded import Memory
from saccade.nn.products import Linear, linear
from saccade.nn.watch import is_watched, record

LOG_ZERO = -1e4  # log of a probability that is 0; finite, so that no gradient is NaN
# Added to the logits of what is no token: with them a pass has about the pace of the source at
# first, and alignments are learned from there.
MOVE, COPY, DELETE = 1.0, 1.0, -1.5  # above the log of the number of tokens


class EditSource(NamedTuple):
    """What is read of a source at every step. Position 0 is before the first of the source."""

    keys: Float[Tensor, "M P D"]
    real: Bool[Tensor, "M P"] | None  # padding is passed by
    copied: Float[Tensor, "M P V"] | None  # 0 at the token that a position holds, else LOG_ZERO


class Places(NamedTuple):
    """Where a pass stands."""

    hidden: Float[Tensor, "N D"]  # by which the last token was said
    log_p: Float[Tensor, "N P"]  # of having written the token before that at each position


class Moves(NamedTuple):
    """Log-probabilities of what is done at each position, after each of Q tokens."""

    insert: Float[Tensor, "N Q P V"]
    move: Float[Tensor, "N Q P"]  # on, from the position that was written at
    write: Float[Tensor, "N Q P V"]  # at a position that was just reached: substitute or copy
    delete: Float[Tensor, "N Q P"]


class Edits(nn.Module):
    """log p(next token | source, target so far), over all ways to have written the target so far.

    `output` gives the logits of substitution; `end` is the token that ends a target.
    """

    def __init__(
        self, output: nn.Linear, dim: int, memory_dim: int, end: int, copies: bool, dropout: float
    ):
        super().__init__()
        self.output, self.end, self.copies = output, end, copies
        self.size = output.out_features
        self.key = Linear(memory_dim, dim)
        self.query = Linear(dim, dim, bias=False)
        self.start = nn.Embedding(1, dim)  # the key of position 0
        self.insert = Linear(dim, self.size)
        self.acts = Linear(dim, 3)  # move, copy, delete
        self.drop = Dropout(dropout)

    def prepare(self, memory: Memory) -> EditSource:
        """What is read of a memory: computed once a source."""
        keys = self.key(memory.values)
        first = self.start.weight.to(keys.dtype).expand(keys.size(0), 1, -1)
        real, copied = memory.keep, None
        if real is not None:
            real = torch.cat([real.new_ones(real.size(0), 1), real], 1)
        if self.copies:
            assert memory.tokens is not None
            held = memory.tokens.unsqueeze(-1) == torch.arange(self.size, device=keys.device)
            held[..., self.end] = False  # which is said by reaching the end
            held = nn.functional.pad(held, (0, 0, 1, 0))
            copied = torch.zeros(held.shape, device=keys.device).masked_fill(~held, LOG_ZERO)
        return EditSource(torch.cat([first, keys], 1), real, copied)

    def forward(
        self,
        hidden: Float[Tensor, "N T D"],
        tokens: Int[Tensor, "N T"],
        source: EditSource,
        places: Places | None,
    ) -> tuple[Float[Tensor, "N T V"], Places]:
        """Log-probabilities of what follows each of `tokens`, and where the pass then stands.

        `places` is None where the first token is the mark before a target.
        """
        N, T, _ = hidden.shape
        asked = hidden
        if places is not None:
            asked = torch.cat([places.hidden.unsqueeze(1), hidden], 1)
        moves = self.moves(asked, source)
        first = asked.size(1) - T  # the column of `moves` that belongs to the first token
        # After each column comes a token: where it is written, if it is inserted, if it is new.
        followed = tokens[:, 1 - first :, None, None].expand(-1, -1, source.keys.size(1), 1)
        Q = followed.size(1)
        inserted = moves.insert[:, :Q].gather(3, followed).squeeze(3)  # (N, Q, P)
        written = moves.write[:, :Q].gather(3, followed).squeeze(3)
        gone = nn.functional.pad(moves.delete[..., 1:].cumsum(-1), (1, 0))  # (N, T + first, P)
        if places is None:
            at = moves.move.new_full((N, source.keys.size(1)), LOG_ZERO)
            at[:, 0] = 0.0
        else:
            at = places.log_p
        stands, reaches = [], []
        for q in range(asked.size(1)):
            reached = arrivals(at, moves.move[:, q], gone[:, q])
            stands.append(at)
            reaches.append(reached)
            if q < Q:
                new = nn.functional.pad(reached[:, :-1], (1, 0), value=LOG_ZERO) + written[:, q]
                at = torch.logaddexp(at + inserted[:, q], new)
                at = at - at.detach().logsumexp(-1, keepdim=True)  # near 0, whatever the length
        stood = torch.stack(stands[first:], 1)  # (N, T, P)
        new = torch.stack(reaches[first:], 1)
        total = stood.logsumexp(-1, keepdim=True)
        ways = torch.cat(
            [
                (stood - total).unsqueeze(-1) + moves.insert[:, first:],
                (new - total)[..., :-1, None] + moves.write[:, first:, 1:],
            ],
            2,
        )
        said = ways.logsumexp(2)  # (N, T, V)
        if is_watched(self):  # where the next token is written
            here = (ways.logsumexp(-1)[:, :, i : i + new.size(-1) - 1] for i in (1, stood.size(-1)))
            record(self, torch.logaddexp(*here).softmax(-1))
        ended = new[..., -1:] - total
        said = torch.cat([said[..., : self.end], ended, said[..., self.end + 1 :]], -1)
        return said, Places(hidden[:, -1], (stood - total)[:, -1])

    def log_likelihood(
        self, hidden: Float[Tensor, "N T D"], targets: Int[Tensor, "N T"], source: EditSource
    ) -> Float[Tensor, "N T"]:
        """Log-probabilities of whole targets, token by token, from the mark before the first.

        The same numbers as `forward` gives, but of no other token: a fraction of its memory.
        """
        logits = self._logits(hidden, source)
        chosen = targets.view(source.keys.size(0), -1, 1, 1).expand(*logits.insert.shape[:-1], 1)
        insert_total, inserted = _Chosen.apply(logits.insert, chosen)  # type: ignore[no-untyped-call]
        write_total, written = _Chosen.apply(logits.write, chosen)  # type: ignore[no-untyped-call]
        acts = self._acts(logits, insert_total, write_total, source)
        written = written - acts.write_total
        if source.copied is not None:
            copied = source.copied.unsqueeze(1).expand(*logits.write.shape).gather(3, chosen)
            written = torch.logaddexp(written, acts.copy + copied.squeeze(3))
        if source.real is not None:
            written = written.masked_fill(~source.real[:, None], LOG_ZERO)
        N, T = targets.shape
        tables = (inserted - acts.insert_total, written, acts.move, acts.delete)
        insert, write, move, delete = (table.reshape(N, T, -1) for table in tables)
        gone = nn.functional.pad(delete[..., 1:].cumsum(-1), (1, 0))  # (N, T, P)
        at = move.new_full((N, move.size(-1)), LOG_ZERO)
        at[:, 0] = 0.0
        found = []
        for t in range(T):
            reached = arrivals(at, move[:, t], gone[:, t])
            new = nn.functional.pad(reached[:, :-1], (1, 0), value=LOG_ZERO) + write[:, t]
            at = torch.logaddexp(at + insert[:, t], new)
            total = at.logsumexp(-1, keepdim=True)
            found.append(torch.where(targets[:, t] == self.end, reached[:, -1], total[:, 0]))
            at = at - total
        return torch.stack(found, 1)

    def moves(self, hidden: Float[Tensor, "N Q D"], source: EditSource) -> Moves:
        """Several rows may share a source, as hypotheses about it do; see `Attention`."""
        N, Q, _ = hidden.shape
        logits = self._logits(hidden, source)
        insert_total, write_total = logits.insert.logsumexp(-1), logits.write.logsumexp(-1)
        acts = self._acts(logits, insert_total, write_total, source)
        insert = logits.insert - acts.insert_total.unsqueeze(-1)
        write = logits.write - acts.write_total.unsqueeze(-1)
        if source.copied is not None:
            write = torch.logaddexp(write, acts.copy.unsqueeze(-1) + source.copied.unsqueeze(1))
        if source.real is not None:
            write = write.masked_fill(~source.real[:, None, :, None], LOG_ZERO)
        tables = (insert, acts.move, write, acts.delete)
        return Moves(*(table.reshape(N, Q, *table.shape[2:]) for table in tables))

    def _logits(self, hidden: Float[Tensor, "N Q D"], source: EditSource) -> "_Logits":
        """What is scored for each token at each position of a source; n rows share one."""
        M, V = source.keys.size(0), self.size
        queries = self.query(hidden).view(M, -1, hidden.size(-1))
        joint = self.drop(tanh_of_sums(queries, source.keys))  # (M, n, P, D)
        shift = torch.zeros(2 * V + 3, device=hidden.device)
        shift[[self.end, V + self.end]] = LOG_ZERO  # it is said by reaching the end of the source
        shift[2 * V :] = shift.new_tensor([MOVE, COPY, DELETE]) + log(V)
        logits = self._product(joint).float() + shift
        return _Logits(*torch.split(logits, [V, V, 1, 1, 1], -1))

    def _product(self, joint: Float[Tensor, "M n P D"]) -> Float[Tensor, "M n P F"]:
        """What the three layers make of the same vectors; in training as one product."""
        if not torch.is_grad_enabled():  # they may be packed
            write = self.output(joint.to(self.start.weight.dtype))  # which stays single precision
            return torch.cat([self.insert(joint).float(), write, self.acts(joint).float()], -1)
        layers = (self.insert, self.output, self.acts)
        weight = torch.cat([layer.weight.to(joint.dtype) for layer in layers])
        biases = [
            weight.new_zeros(self.size) if (b := layer.bias) is None else b for layer in layers
        ]
        return linear(joint, weight, torch.cat([b.to(joint.dtype) for b in biases]))

    def _acts(
        self,
        logits: "_Logits",
        insert_total: Float[Tensor, "M n P"],
        write_total: Float[Tensor, "M n P"],
        source: EditSource,
    ) -> "_Acts":
        """Log-probabilities of what is no token, and the normalisers of what is."""
        move, copy, delete = (part.squeeze(-1) for part in logits[2:])
        insert_total = torch.logaddexp(insert_total, move)
        write_total = torch.logaddexp(write_total, delete)
        if source.copied is not None:
            copy = copy + source.copied.amax(-1).unsqueeze(1)  # LOG_ZERO where nothing can be
            write_total = torch.logaddexp(write_total, copy)
        delete = delete - write_total
        if source.real is not None:
            delete = delete.masked_fill(~source.real[:, None], 0.0)
        return _Acts(move - insert_total, copy - write_total, delete, insert_total, write_total)


class _Logits(NamedTuple):
    insert: Float[Tensor, "M n P V"]
    write: Float[Tensor, "M n P V"]
    move: Float[Tensor, "M n P 1"]
    copy: Float[Tensor, "M n P 1"]
    delete: Float[Tensor, "M n P 1"]


class _Acts(NamedTuple):
    move: Float[Tensor, "M n P"]
    copy: Float[Tensor, "M n P"]  # means nothing where nothing is copied
    delete: Float[Tensor, "M n P"]
    insert_total: Float[Tensor, "M n P"]  # log of the sum over all tokens, and moving on
    write_total: Float[Tensor, "M n P"]  # the same, with copying and deleting


class _Chosen(torch.autograd.Function):
    """The log of the sum over a row of logits, and one of them, whose slopes are made together."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        total = logits.logsumexp(-1)
        ctx.save_for_backward(logits, chosen, total)
        return total, logits.gather(-1, chosen).squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_total: Tensor, of_chosen: Tensor) -> tuple[Tensor, None]:
        logits, chosen, total = ctx.saved_tensors
        slope = (logits - total.unsqueeze(-1)).exp_().mul_(of_total.unsqueeze(-1))
        return slope.scatter_add_(-1, chosen, of_chosen.unsqueeze(-1)), None


def arrivals(
    at: Float[Tensor, "N P"], move: Float[Tensor, "N P"], gone: Float[Tensor, "N P"]
) -> Float[Tensor, "N P"]:
    """Log-probabilities of reaching positions 1, 2, ... and the end, from where the pass stands.

    r(j) = at(j - 1) move(j - 1) + r(j - 1) delete(j - 1). Divided by the product of all deletions
    before j, whose log is `gone`, it is a sum.
    """
    return (at + move - gone).logcumsumexp(-1) + gone
