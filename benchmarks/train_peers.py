"""Training speed of the peers: plain torch, HF, fairseq, OpenNMT-py, JoeyNMT and Yoyodyne.

    python train_peers.py PEER WORKLOAD BATCHES [--seconds 3] [--bf16]

Run it with the Python of the peers' own environment (peers.txt); it needs nothing of saccade.
BATCHES is a safetensors file of our loader's batches. It prints one line of JSON.

Every peer has its own network of the workload's sizes and its own forward pass. Around it stands
the fastest loop that torch has: fused AdamW, clipping, no reports; cross-entropy is torch's, which
is faster than what some of them bring along. With --bf16 the forward pass is under torch's
autocast. Nothing is done to the allocator, and nothing of theirs is patched; for modules that
training never uses, some get empty ones.
"""

import argparse
import dataclasses
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from measuring import measure
from torch import Tensor, nn
from workloads import PAD, WORKLOADS, Workload

Batch = dict[str, Tensor]  # target and, but for language models, source; with their lengths
Forward = Callable[[Batch], Tensor]  # the logits of all but the first target position
BOS, EOS = 2, 3
# Which workloads a peer has a network for, and whether it offers bf16 on a CPU itself.
PEERS: dict[str, tuple[tuple[str, ...], bool]] = {
    "torch": (tuple(WORKLOADS), True),
    "hf": (("tiny", "small", "gpt"), True),
    "fairseq": (("tiny", "small", "lstm", "lstm_lm"), False),
    "onmt": (("tiny", "small", "lstm"), False),
    "joeynmt": (("tiny", "small", "lstm", "g2p"), False),
    "yoyodyne": (("g2p",), False),
}


def read_batches(path: Path) -> list[Batch]:
    """The batches, the longest sources of each first: JoeyNMT needs it, and no other minds."""
    from safetensors.torch import load_file

    found: dict[int, Batch] = {}
    for name, tensor in load_file(path).items():
        number, _, part = name.partition(".")
        found.setdefault(int(number), {})[part] = tensor
    batches = [found[i] for i in sorted(found)]
    for batch in batches:
        if "source" in batch:
            order = batch["source_lengths"].argsort(descending=True, stable=True)
            batch.update({name: tensor[order] for name, tensor in batch.items()})
    return batches


def said(batch: Batch) -> Tensor:
    """What is to be said at each position."""
    return batch["target"][:, 1:]


def with_padding(tokens: Tensor, pad: int) -> Tensor:
    """Ids for those who pad with another one; ours for unknown words never occurs."""
    return tokens.masked_fill(tokens == PAD, pad)


def fast_torch(work: Workload) -> tuple[nn.Module, Forward]:
    from torch_networks import network_of

    network = network_of(work)
    if work.streams:
        return network, lambda batch: network(batch["target"][:, :-1])
    return network, lambda batch: network(
        batch["source"], batch["source_lengths"], batch["target"][:, :-1]
    )


# --- HF transformers ------------------------------------------------------------------------------


def hf(work: Workload) -> tuple[nn.Module, Forward]:
    """GPT-2 or Marian, with torch's fused attention."""
    from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

    ends = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    if work.kind == "gpt":
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop"), work.dropout)
        gpt = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=work.vocab,
                n_positions=work.context,
                n_embd=work.dim,
                n_layer=work.num_layers,
                n_head=work.num_heads,
                n_inner=work.ff_dim,
                attn_pdrop=0.0,
                attn_implementation="sdpa",
                **rates,
                **ends,
            )
        )
        return gpt, lambda batch: gpt(batch["target"][:, :-1], use_cache=False).logits
    sizes: dict[str, Any] = {}
    for part in ("encoder", "decoder"):
        sizes[f"{part}_layers"] = work.num_layers
        sizes[f"{part}_ffn_dim"] = work.ff_dim
        sizes[f"{part}_attention_heads"] = work.num_heads
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=work.vocab,
            d_model=work.dim,
            max_position_embeddings=128,
            activation_function="relu",
            dropout=work.dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            scale_embedding=True,
            decoder_start_token_id=BOS,
            attn_implementation="sdpa",
            **sizes,
            **ends,
        )
    )

    def forward(batch: Batch) -> Tensor:
        source = batch["source"]
        padded = int(batch["source_lengths"].min()) < source.size(1)
        return marian(
            input_ids=source,
            attention_mask=(source != PAD).long() if padded else None,
            decoder_input_ids=batch["target"][:, :-1],
            use_cache=False,
        ).logits

    return marian, forward


# --- fairseq --------------------------------------------------------------------------------------


def import_fairseq() -> None:
    """Import its last release, which was written for dataclasses as they were before Python 3.11.

    Since then no default may be unhashable, as its nested settings are, so they get a hash.
    """
    made = dataclasses.dataclass

    def hashable(cls: Any = None, /, **flags: Any) -> Any:
        if cls is None:
            return lambda cls: hashable(cls, **flags)
        return made(cls, **({"unsafe_hash": "__hash__" not in vars(cls)} | flags))

    logging.disable(logging.INFO)
    dataclasses.dataclass = hashable
    try:
        import fairseq  # noqa: F401
    finally:
        dataclasses.dataclass = made


def fairseq(work: Workload) -> tuple[nn.Module, Forward]:
    """Its Transformer, its LSTM with attention, or its LSTM language model."""
    import_fairseq()
    from fairseq.data import Dictionary
    from fairseq.models.lstm import LSTMDecoder, LSTMEncoder, LSTMModel
    from fairseq.models.transformer import TransformerModel

    words = Dictionary()
    for i in range(len(words), work.vocab):
        words.add_symbol(f"w{i}")
    dim, rate, pad = work.dim, work.dropout, words.pad()
    sizes: dict[str, Any] = {"dropout_in": rate, "dropout_out": rate, "num_layers": work.num_layers}
    network: Any
    match work.kind:
        case "lstm_lm":
            network = LSTMDecoder(
                words, dim, dim, dim, attention=False, encoder_output_units=0, **sizes
            )
            return network, lambda batch: network(with_padding(batch["target"][:, :-1], pad))[0]
        case "lstm":
            encoder = LSTMEncoder(words, dim, dim // 2, bidirectional=True, left_pad=False, **sizes)
            decoder = LSTMDecoder(
                words, dim, dim, dim, encoder_output_units=encoder.output_units,
                share_input_output_embed=True, **sizes,
            )  # fmt: skip
            network = LSTMModel(encoder, decoder)
        case _:
            settings: dict[str, Any] = {"share_all_embeddings": True, "dropout": rate}
            for part in ("encoder", "decoder"):
                settings[f"{part}_embed_dim"] = dim
                settings[f"{part}_ffn_embed_dim"] = work.ff_dim
                settings[f"{part}_layers"] = work.num_layers
                settings[f"{part}_attention_heads"] = work.num_heads
                settings[f"{part}_normalize_before"] = True
            task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
            network = TransformerModel.build_model(argparse.Namespace(**settings), task)

    def forward(batch: Batch) -> Tensor:
        source = with_padding(batch["source"], pad)
        tokens = with_padding(batch["target"][:, :-1], pad)
        return network(source, batch["source_lengths"], tokens)[0]

    return network, forward


# --- OpenNMT-py, JoeyNMT, Yoyodyne ----------------------------------------------------------------


def onmt(work: Workload) -> tuple[nn.Module, Forward]:
    """Its Transformer, or its biLSTM and LSTM with additive attention and input feeding."""
    from decode_peers import import_onmt

    import_onmt()
    from onmt.decoders.decoder import InputFeedRNNDecoder
    from onmt.decoders.transformer import TransformerDecoder
    from onmt.encoders.rnn_encoder import RNNEncoder
    from onmt.encoders.transformer import TransformerEncoder
    from onmt.models.model import NMTModel
    from onmt.modules import Embeddings

    dim, rate, layers = work.dim, work.dropout, work.num_layers
    transformer = work.kind == "transformer"

    def embedding(size: int) -> Any:
        return Embeddings(dim, size, PAD, position_encoding=transformer, dropout=rate)

    source, target = embedding(work.vocab), embedding(work.vocab)
    encoder: Any
    decoder: Any
    if transformer:
        source.word_lut.weight = target.word_lut.weight
        sizes = (layers, dim, work.num_heads, work.ff_dim)
        encoder = TransformerEncoder(*sizes, rate, 0.0, source, 0, 0)
        decoder = TransformerDecoder(
            *sizes, False, "scaled-dot-flash", rate, 0.0, target, 0, 0, False, False, None, 0
        )
    else:
        encoder = RNNEncoder("LSTM", True, layers, dim, dropout=rate, embeddings=source)
        decoder = InputFeedRNNDecoder(
            "LSTM", True, layers, dim, attn_type="mlp", dropout=rate, embeddings=target
        )
    network = NMTModel(encoder, decoder)
    network.generator = nn.Linear(dim, work.vocab)
    network.generator.weight = target.word_lut.weight
    for name, parameter in network.named_parameters():  # its layers leave this to its builder
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
        elif "norm" not in name:
            nn.init.zeros_(parameter)

    def forward(batch: Batch) -> Tensor:
        source, target = batch["source"].unsqueeze(-1), batch["target"].unsqueeze(-1)
        return network.generator(network(source, target, batch["source_lengths"])[0])

    return network, forward


def joeynmt(work: Workload) -> tuple[nn.Module, Forward]:
    """Its Transformer, or its biLSTM and LSTM with attention and input feeding."""
    from decode_peers import joeynmt_model
    from joeynmt.batch import Batch as JoeyBatch

    embeddings = {"embedding_dim": work.dim, "dropout": work.dropout}
    part: dict[str, Any] = {"embeddings": embeddings, "dropout": work.dropout}
    if work.kind == "transformer":
        part |= {
            "type": "transformer", "hidden_size": work.dim, "num_layers": work.num_layers,
            "num_heads": work.num_heads, "ff_size": work.ff_dim, "layer_norm": "pre",
        }  # fmt: skip
        part["embeddings"]["scale"] = True
        parts = {"encoder": part, "decoder": part, "tied_embeddings": True, "tied_softmax": True}
    else:
        part |= {"type": "recurrent", "rnn_type": "lstm"}
        half = {
            "hidden_size": work.dim // 2, "bidirectional": True, "num_layers": work.num_layers,
        }  # fmt: skip
        attention = {
            "hidden_size": work.dim, "num_layers": 1, "input_feeding": True,
            "attention": "luong" if work.kind == "g2p" else "bahdanau", "init_hidden": "bridge",
        }  # fmt: skip
        parts = {"encoder": part | half, "decoder": part | attention, "tied_softmax": True}
    ids = {"unk": PAD, "pad": 1, "bos": BOS, "eos": EOS}  # it wants them in this order
    network = joeynmt_model(parts, work.source_vocab or work.vocab, work.vocab, ids)

    def forward(batch: Batch) -> Tensor:
        theirs = JoeyBatch(
            src=with_padding(batch["source"], ids["pad"]),
            src_length=batch["source_lengths"],
            src_prompt_mask=None,
            trg=with_padding(batch["target"], ids["pad"]),
            trg_prompt_mask=None,
            indices=torch.arange(len(batch["source"])),
            device=torch.device("cpu"),
            pad_index=ids["pad"],
            eos_index=EOS,
        )
        return network._encode_decode(
            src=theirs.src,
            trg_input=theirs.trg_input,
            src_mask=theirs.src_mask,
            src_length=theirs.src_length,
            trg_mask=theirs.trg_mask,
        )[0]

    return network, forward


def yoyodyne(work: Workload) -> tuple[nn.Module, Forward]:
    """Its LSTM with attention, teacher forced."""
    sys.modules["wandb"] = ModuleType("wandb")  # logs to a server; nothing here does
    from yoyodyne.data import Batch as YoyodyneBatch
    from yoyodyne.data import PaddedTensor
    from yoyodyne.models import SoftAttentionLSTMModel
    from yoyodyne.models.modules import LSTMEncoder

    encoder = LSTMEncoder(
        dropout=work.dropout,
        embedding_size=work.dim,
        hidden_size=work.dim // 2,
        layers=work.num_layers,
        bidirectional=True,
    )
    # One vocabulary of symbols for both sides: source ids first, as it lays them out.
    network = SoftAttentionLSTMModel(
        source_encoder=encoder,
        embedding_size=work.dim,
        decoder_hidden_size=work.dim,
        decoder_layers=1,
        decoder_dropout=work.dropout,
        compute_accuracy=False,
        target_vocab_size=work.vocab,
        vocab_size=max(work.vocab, work.source_vocab),
    )

    def forward(batch: Batch) -> Tensor:
        source, target = (
            PaddedTensor.from_tensor(part.contiguous()) for part in (batch["source"], said(batch))
        )
        return network(YoyodyneBatch(source, target=target)).transpose(1, 2)

    return network, forward


# --- measuring ------------------------------------------------------------------------------------

BUILD = {
    "torch": fast_torch,
    "hf": hf,
    "fairseq": fairseq,
    "onmt": onmt,
    "joeynmt": joeynmt,
    "yoyodyne": yoyodyne,
}


def steps(
    network: nn.Module, forward: Forward, batches: list[Batch], bf16: bool
) -> Iterator[tuple[int, int]]:
    """One training step after another; yields 1 and its target tokens."""
    network.train()
    parameters = list(network.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.98), fused=True)
    first = None
    while True:
        for batch in batches:
            gold = said(batch)
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                logits = forward(batch)
                loss = F.cross_entropy(
                    logits.flatten(0, 1), gold.flatten(), ignore_index=PAD, reduction="mean"
                )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            if first is None:
                first = float(loss.detach())
                assert logits.shape[:2] == gold.shape, f"{logits.shape} for {gold.shape}"
                assert first < 100, f"the first loss is {first}"
            yield 1, int((gold != PAD).sum())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=BUILD)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("batches", type=Path)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--bf16", action="store_true")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    network, forward = BUILD[chosen.peer](WORKLOADS[chosen.workload])
    found = measure(
        steps(network, forward, read_batches(chosen.batches), chosen.bf16), chosen.seconds
    )
    count = sum(p.numel() for p in network.parameters())
    print(json.dumps(found | {"parameters": count, "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
