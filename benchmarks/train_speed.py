"""Training speed against plain torch, the same batches for both, ratios in one run.

    python benchmarks/train_speed.py [tiny small lstm gpt lstm_lm g2p] [--seconds 10] [--rounds 3]

Each measurement is a process of its own, ours and plain torch's by turns, so that a disturbance
hits both and allocator settings do not leak from one to the other. Figures are medians, in target
tokens a second.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[int], int]  # does step i, returns its target tokens
SHAPES = ("tiny", "small", "lstm", "gpt", "lstm_lm", "g2p")
TRANSFORMER = {
    "tiny": {"dim": 128, "ff_dim": 256, "num_layers": 4, "num_heads": 4},
    "small": {"dim": 256, "ff_dim": 1024, "num_layers": 3, "num_heads": 4},
}
VOCAB = 10_000


def pairs(shape: str) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Batches of like lengths: source ids and lengths, target ids (BOS ... EOS) and lengths."""
    from saccade.data.batches import epoch_of
    from saccade.data.corpora import Column, Corpus

    numbers = torch.Generator().manual_seed(1)

    def rows(count: int, low: int, high: int, mean: float, size: int) -> list[list[int]]:
        share = (mean - low) / (high - low)
        spread = torch.rand(count, generator=numbers) ** (1 / share - 1)
        lengths = (low + (high - low) * spread).round().int().tolist()
        return [torch.randint(5, size, (n,), generator=numbers).tolist() for n in lengths]

    if shape == "g2p":
        source = rows(20_000, 3, 20, 8, 32)
        target = [row[:-1] if len(row) > 3 else row for row in rows(20_000, 3, 20, 8, 44)]
        target = [t[: len(s)] or [5] for s, t in zip(source, target, strict=True)]
        budget = 4096
    else:
        source = rows(10_000, 4, 40, 14, VOCAB)
        target = [row[::-1] for row in source]
        budget = 2 * 4096
    full = [[2, *row, 3] for row in target]
    corpus = Corpus((Column.of([[*row, 3] for row in source]),), Column.of(full))
    batches = []
    for batch in epoch_of(corpus, budget, 1, 0):
        (ours,), target = batch.sources, batch.target
        batches.append((ours.values, ours.lengths, target.values, target.lengths))
    return batches


# --- ours -----------------------------------------------------------------------------------------


def ours(shape: str) -> Step:
    from saccade.config import parse
    from saccade.data.batches import Batch
    from saccade.models.build import build
    from saccade.nn.padded import Padded
    from saccade.runs.machine import tune_malloc
    from saccade.text.vocab import Inventory
    from saccade.training.optim import build_optimizer, scale_gradients

    tune_malloc()
    raw: dict[str, Any] = {"task": {"kind": "translate"}}
    sizes = (VOCAB, VOCAB)
    lstm = {"kind": "recurrent", "cell": "lstm", "dim": 256, "dropout": 0.1}
    match shape:
        case "tiny" | "small":
            parts = {"kind": "transformer", "dropout": 0.1} | TRANSFORMER[shape]
            raw |= {"encoder": parts, "decoder": parts}
            raw["task"]["joint"] = True
        case "lstm":
            raw |= {"encoder": lstm, "decoder": lstm | {"attention": "additive"}}
        case "g2p":
            narrow = lstm | {"dim": 192}
            raw["encoder"] = narrow | {"num_layers": 2}
            raw["decoder"] = narrow | {"attention": "dot", "context": "output"}
            sizes = (32, 44)
        case "gpt":
            raw = {"task": {"kind": "language", "context": 256}}
            raw["decoder"] = {
                "kind": "transformer", "dim": 256, "num_layers": 4, "num_heads": 4,
                "ff_dim": 1024, "dropout": 0.1, "activation": "gelu", "positions": "learned",
            }  # fmt: skip
            sizes = (0, 100)
        case "lstm_lm":
            raw = {"task": {"kind": "language", "context": 35}}
            raw["decoder"] = lstm | {
                "dim": 200, "num_layers": 2, "attention": "off", "dropout": 0.2, "tied": False,
            }  # fmt: skip
    config = parse(raw, "benchmark")
    network = build(config, [Inventory(sizes[0])], Inventory(sizes[1])).train()
    optimizer = build_optimizer(network, config.train)
    parameters = list(network.parameters())

    def update(loss: Any) -> int:
        loss.sum.backward()
        scale_gradients(parameters, loss.count, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return int(loss.count)

    if shape in ("gpt", "lstm_lm"):
        stream = streams(shape)
        state: Any = None

        def language(i: int) -> int:
            nonlocal state
            tokens, said = stream(i)
            row = torch.cat([tokens, said[:, -1:]], 1)
            batch = Batch((), Padded(row, torch.full((row.size(0),), row.size(1))))
            loss, state = network(batch, state)
            return update(loss)

        return language
    batches = pairs(shape)

    def translate(i: int) -> int:
        source, source_lengths, target, target_lengths = batches[i % len(batches)]
        batch = Batch((Padded(source, source_lengths),), Padded(target, target_lengths))
        return update(network(batch)[0])

    return translate


def streams(shape: str) -> Callable[[int], tuple[Tensor, Tensor]]:
    rows, columns, size = (32, 256, 100) if shape == "gpt" else (20, 35, VOCAB)
    ids = torch.randint(
        5, size, (rows, 50 * columns + 1), generator=torch.Generator().manual_seed(1)
    )

    def chunk(i: int) -> tuple[Tensor, Tensor]:
        start = i % 50 * columns
        return ids[:, start : start + columns], ids[:, start + 1 : start + columns + 1]

    return chunk


# --- plain torch ----------------------------------------------------------------------------------


def plain(shape: str) -> Step:
    match shape:
        case "tiny" | "small":
            network: nn.Module = PlainTransformer(**TRANSFORMER[shape])
        case "lstm":
            network = PlainAttention(VOCAB, VOCAB, 256)
        case "g2p":
            network = PlainLuong(32, 44, 192)
        case "gpt":
            network = PlainGPT()
        case _:
            network = PlainLM()
    network.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)

    def update(logits: Tensor, said: Tensor) -> int:
        loss = F.cross_entropy(logits.flatten(0, 1), said.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        return int((said != 0).sum())

    if shape in ("gpt", "lstm_lm"):
        stream = streams(shape)

        def language(i: int) -> int:
            tokens, said = stream(i)
            return update(network(tokens), said)

        return language
    batches = pairs(shape)

    def translate(i: int) -> int:
        source, lengths, target, _ = batches[i % len(batches)]
        return update(network(source, lengths, target[:, :-1]), target[:, 1:])

    return translate


class PlainTransformer(nn.Module):
    def __init__(self, dim: int, ff_dim: int, num_layers: int, num_heads: int):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, dim)
        self.positions = nn.Embedding(64, dim)
        self.drop = nn.Dropout(0.1)
        self.body = nn.Transformer(
            dim, num_heads, num_layers, num_layers, ff_dim, 0.1, batch_first=True, norm_first=True
        )
        self.output = nn.Linear(dim, VOCAB)
        self.output.weight = self.embedding.weight

    def forward(self, source: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
        def embed(ids: Tensor) -> Tensor:
            return self.drop(self.embedding(ids) + self.positions(torch.arange(ids.size(1))))

        causal = torch.triu(torch.ones(tokens.size(1), tokens.size(1), dtype=torch.bool), 1)
        hidden = self.body(
            embed(source),
            embed(tokens),
            tgt_mask=causal,
            src_key_padding_mask=source == 0,
            tgt_key_padding_mask=tokens == 0,
            memory_key_padding_mask=source == 0,
            tgt_is_causal=True,
        )
        return self.output(hidden)


class PlainAttention(nn.Module):
    """biLSTM encoder, LSTM decoder with additive attention whose context enters the cell."""

    def __init__(self, source_size: int, target_size: int, dim: int):
        super().__init__()
        self.source = nn.Embedding(source_size, dim)
        self.target = nn.Embedding(target_size, dim)
        self.encoder = nn.LSTM(dim, dim // 2, batch_first=True, bidirectional=True)
        self.cell = nn.LSTMCell(2 * dim, dim)
        self.query, self.key = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim)
        self.score, self.readout = nn.Linear(dim, 1, bias=False), nn.Linear(3 * dim, dim)
        self.output = nn.Linear(dim, target_size)
        self.output.weight = self.target.weight
        self.drop = nn.Dropout(0.1)

    def forward(self, source: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.drop(self.source(source)), lengths, batch_first=True, enforce_sorted=False
        )
        memory, _ = nn.utils.rnn.pad_packed_sequence(self.encoder(packed)[0], batch_first=True)
        keys, padding = self.key(memory), (source == 0)
        embedded = self.drop(self.target(tokens))
        h = c = memory.new_zeros(memory.size(0), memory.size(2))
        outputs = []
        for t in range(tokens.size(1)):
            scores = self.score(torch.tanh(self.query(h).unsqueeze(1) + keys)).squeeze(-1)
            weights = scores.masked_fill(padding, float("-inf")).softmax(-1)
            context = (weights.unsqueeze(1) @ memory).squeeze(1)
            h, c = self.cell(torch.cat([embedded[:, t], context], -1), (h, c))
            outputs.append(torch.tanh(self.readout(torch.cat([h, context, embedded[:, t]], -1))))
        return self.output(self.drop(torch.stack(outputs, 1)))


class PlainLuong(nn.Module):
    """2-layer biLSTM encoder, LSTM decoder, dot attention after it."""

    def __init__(self, source_size: int, target_size: int, dim: int):
        super().__init__()
        self.source = nn.Embedding(source_size, dim)
        self.target = nn.Embedding(target_size, dim)
        self.encoder = nn.LSTM(
            dim, dim // 2, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1
        )
        self.decoder = nn.LSTM(dim, dim, batch_first=True)
        self.readout, self.output = nn.Linear(2 * dim, dim), nn.Linear(dim, target_size)
        self.drop = nn.Dropout(0.1)

    def forward(self, source: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.drop(self.source(source)), lengths, batch_first=True, enforce_sorted=False
        )
        memory, _ = nn.utils.rnn.pad_packed_sequence(self.encoder(packed)[0], batch_first=True)
        states, _ = self.decoder(self.drop(self.target(tokens)))
        scores = (states @ memory.mT).masked_fill((source == 0).unsqueeze(1), float("-inf"))
        both = torch.cat([states, scores.softmax(-1) @ memory], -1)
        return self.output(self.drop(torch.tanh(self.readout(both))))


class PlainGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(100, 256), nn.Embedding(256, 256)
        layer = nn.TransformerEncoderLayer(
            256, 4, 1024, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 4, nn.LayerNorm(256), enable_nested_tensor=False)
        self.output = nn.Linear(256, 100)

    def forward(self, tokens: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.size(1))
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.size(1)))
        return self.output(self.body(x, causal, is_causal=True))


class PlainLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(VOCAB, 200), nn.Linear(200, VOCAB)
        self.body = nn.LSTM(200, 200, num_layers=2, batch_first=True, dropout=0.2)
        self.drop = nn.Dropout(0.2)
        self.state: Any = None

    def forward(self, tokens: Tensor) -> Tensor:
        x, state = self.body(self.drop(self.embedding(tokens)), self.state)
        self.state = tuple(part.detach() for part in state)
        return self.output(self.drop(x))


# --- measuring ------------------------------------------------------------------------------------


def speed(step: Step, seconds: float) -> float:
    """Tokens a second, the median over steps, after a few to warm up."""
    for i in range(3):
        step(i)
    rates, i, end = [], 3, perf_counter() + seconds
    while perf_counter() < end:
        began = perf_counter()
        tokens = step(i)
        rates.append((tokens, perf_counter() - began))
        i += 1
    middle = sorted(time / tokens for tokens, time in rates)
    return 1 / median(middle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", choices=["ours", "plain"])
    chosen = parser.parse_args()
    if chosen.worker:
        build_step = {"ours": ours, "plain": plain}[chosen.worker]
        torch.manual_seed(1)
        print(speed(build_step(chosen.shapes[0]), chosen.seconds))
        return
    print(f"{'shape':10}{'saccade':>12}{'plain torch':>14}{'ratio':>8}")
    for shape in chosen.shapes:
        found: dict[str, list[float]] = {"ours": [], "plain": []}
        for _ in range(chosen.rounds):
            for who in found:
                command = [sys.executable, __file__, shape, "--worker", who]
                command += ["--seconds", str(chosen.seconds)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[who].append(float(done.stdout))
        one, other = median(found["ours"]), median(found["plain"])
        print(f"{shape:10}{one:12,.0f}{other:14,.0f}{one / other:8.2f}", flush=True)


if __name__ == "__main__":
    main()
