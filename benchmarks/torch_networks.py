"""What a fast user of plain torch would write for each workload: the peers to beat.

Queries, keys and values in one product, torch's fused attention, masks only where there is padding,
one large output layer, and in the recurrent networks everything outside the loop that can be.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from workloads import PAD, Workload

MAX_POSITIONS = 512


def network_of(work: Workload) -> nn.Module:
    """(source, source lengths, tokens) -> logits, or tokens -> logits in a language model."""
    match work.kind:
        case "transformer":
            return Translator(work)
        case "gpt":
            return GPT(work)
        case "lstm":
            return AdditiveAttention(work)
        case "g2p":
            return DotAttention(work)
        case "lstm_lm":
            return LanguageModel(work)


class Attention(nn.Module):
    """Multi-head attention to itself or to a memory."""

    def __init__(self, work: Workload, cross: bool = False):
        super().__init__()
        self.heads = work.num_heads
        self.query = nn.Linear(work.dim, work.dim) if cross else None
        self.project = nn.Linear(work.dim, (2 if cross else 3) * work.dim)
        self.output = nn.Linear(work.dim, work.dim)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, keep: Tensor | None = None, causal: Any = 0
    ) -> Tensor:
        if self.query is None:
            q, k, v = self.project(x).chunk(3, -1)
        else:
            q, (k, v) = self.query(x), self.project(memory).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, keep, is_causal=bool(causal))
        return self.output(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A pre-norm layer: attention to itself, to a memory if it has one, and two linear layers."""

    def __init__(self, work: Workload, causal: bool, cross: bool, activation: nn.Module):
        super().__init__()
        self.causal = causal
        self.itself, self.norm = Attention(work), nn.LayerNorm(work.dim)
        self.cross = Attention(work, cross=True) if cross else None
        self.cross_norm = nn.LayerNorm(work.dim) if cross else None
        self.feed_norm = nn.LayerNorm(work.dim)
        self.feed = nn.Sequential(
            nn.Linear(work.dim, work.ff_dim), activation, nn.Linear(work.ff_dim, work.dim)
        )
        self.drop = nn.Dropout(work.dropout)

    def forward(
        self, x: Tensor, keep: Tensor | None = None, memory: Tensor | None = None
    ) -> Tensor:
        own = None if self.causal else keep  # what is after the end is in nobody's past
        x = x + self.drop(self.itself(self.norm(x), keep=own, causal=self.causal))
        if self.cross is not None and self.cross_norm is not None:
            x = x + self.drop(self.cross(self.cross_norm(x), memory, keep))
        return x + self.drop(self.feed(self.feed_norm(x)))


class Embedding(nn.Module):
    """Words and learned positions."""

    def __init__(self, work: Workload):
        super().__init__()
        self.words = nn.Embedding(work.vocab, work.dim)
        self.positions = nn.Embedding(MAX_POSITIONS, work.dim)
        self.drop = nn.Dropout(work.dropout)
        nn.init.normal_(self.words.weight, std=work.dim**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.drop(self.words(tokens) + self.positions.weight[: tokens.size(1)])


class Translator(nn.Module):
    """Encoder and decoder with one embedding table for both and for the output."""

    def __init__(self, work: Workload):
        super().__init__()
        count = range(work.num_layers)
        self.embed = Embedding(work)
        self.encoder = nn.ModuleList(Block(work, False, False, nn.ReLU()) for _ in count)
        self.decoder = nn.ModuleList(Block(work, True, True, nn.ReLU()) for _ in count)
        self.encoder_norm, self.norm = nn.LayerNorm(work.dim), nn.LayerNorm(work.dim)
        self.output = nn.Linear(work.dim, work.vocab)
        self.output.weight = self.embed.words.weight

    def forward(self, source: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
        keep = keep_of(source, lengths)
        keep = None if keep is None else keep[:, None, None]  # (B, 1, 1, S)
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory, keep)
        memory, x = self.encoder_norm(memory), self.embed(tokens)
        for layer in self.decoder:
            x = layer(x, keep, memory)
        return self.output(self.norm(x))


def keep_of(source: Tensor, lengths: Tensor) -> Tensor | None:
    """Which positions are real; None if all are, as in most batches of like lengths."""
    return None if int(lengths.min()) == source.size(1) else source != PAD


class GPT(nn.Module):
    """A decoder alone, in the manner of nanoGPT; the output layer is the embedding table."""

    def __init__(self, work: Workload):
        super().__init__()
        self.embed = Embedding(work)
        self.layers = nn.ModuleList(
            Block(work, True, False, nn.GELU()) for _ in range(work.num_layers)
        )
        self.norm = nn.LayerNorm(work.dim)
        self.output = nn.Linear(work.dim, work.vocab, bias=False)
        self.output.weight = self.embed.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


class RecurrentEncoder(nn.Module):
    """A biLSTM, each direction with half the width."""

    def __init__(self, vocab: int, work: Workload, num_layers: int):
        super().__init__()
        self.embed = nn.Embedding(vocab, work.dim)
        self.drop = nn.Dropout(work.dropout)
        self.body = nn.LSTM(
            work.dim,
            work.dim // 2,
            num_layers,
            batch_first=True,
            bidirectional=True,
            dropout=work.dropout if num_layers > 1 else 0.0,
        )

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        x = self.drop(self.embed(source))
        if keep_of(source, lengths) is None:  # packed sequences take the slower kernels
            return self.body(x)[0]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.body(packed)[0], batch_first=True)[0]


class AdditiveAttention(nn.Module):
    """biLSTM encoder, LSTM decoder with additive attention whose context enters the cell."""

    def __init__(self, work: Workload):
        super().__init__()
        dim = work.dim
        self.encoder = RecurrentEncoder(work.vocab, work, work.num_layers)
        self.target = nn.Embedding(work.vocab, dim)
        nn.init.normal_(self.target.weight, std=dim**-0.5)
        self.word_gates = nn.Linear(dim, 4 * dim)
        self.gates = nn.Linear(2 * dim, 4 * dim, bias=False)
        self.query, self.key = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim)
        self.score, self.readout = nn.Linear(dim, 1, bias=False), nn.Linear(3 * dim, dim)
        self.output = nn.Linear(dim, work.vocab)
        self.output.weight = self.target.weight
        self.drop = nn.Dropout(work.dropout)

    def forward(self, source: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
        memory, keep = self.encoder(source, lengths), keep_of(source, lengths)
        keys, embedded = self.key(memory), self.drop(self.target(tokens))
        from_words = self.word_gates(embedded).unbind(1)  # of all steps at once
        h = c = memory.new_zeros(memory.size(0), memory.size(2))
        states, contexts = [], []
        for gates in from_words:
            scores = self.score(torch.tanh(self.query(h).unsqueeze(1) + keys)).squeeze(-1)
            if keep is not None:
                scores = scores.masked_fill(~keep, float("-inf"))
            context = torch.bmm(scores.softmax(-1).to(memory.dtype).unsqueeze(1), memory).squeeze(1)
            i, f, g, o = (gates + self.gates(torch.cat([context, h], -1))).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
            contexts.append(context)
        read = torch.cat([torch.stack(states, 1), torch.stack(contexts, 1), embedded], -1)
        return self.output(self.drop(torch.tanh(self.readout(read))))


class DotAttention(nn.Module):
    """biLSTM encoder, LSTM decoder over all steps at once, and dot attention after it."""

    def __init__(self, work: Workload):
        super().__init__()
        dim = work.dim
        self.encoder = RecurrentEncoder(work.source_vocab, work, work.num_layers)
        self.target = nn.Embedding(work.vocab, dim)
        self.decoder = nn.LSTM(dim, dim, batch_first=True)
        self.readout, self.output = nn.Linear(2 * dim, dim), nn.Linear(dim, work.vocab)
        self.drop = nn.Dropout(work.dropout)

    def forward(self, source: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
        memory, keep = self.encoder(source, lengths), keep_of(source, lengths)
        states, _ = self.decoder(self.drop(self.target(tokens)))
        scores = states @ memory.mT
        if keep is not None:
            scores = scores.masked_fill(~keep.unsqueeze(1), float("-inf"))
        both = torch.cat([states, scores.softmax(-1) @ memory], -1)
        return self.output(self.drop(torch.tanh(self.readout(both))))


class LanguageModel(nn.Module):
    """Layers of LSTM whose state is carried from one batch to the next."""

    def __init__(self, work: Workload):
        super().__init__()
        dim = work.dim
        self.embed, self.output = nn.Embedding(work.vocab, dim), nn.Linear(dim, work.vocab)
        self.body = nn.LSTM(dim, dim, work.num_layers, batch_first=True, dropout=work.dropout)
        self.drop = nn.Dropout(work.dropout)
        self.state: Any = None

    def forward(self, tokens: Tensor) -> Tensor:
        if self.state is not None and self.state[0].size(1) != tokens.size(0):
            self.state = None  # a batch of fewer rows, at the end of the text
        x, state = self.body(self.drop(self.embed(tokens)), self.state)
        self.state = tuple(part.detach() for part in state)
        return self.output(self.drop(x))
