"""Decoding speed of the peers: HF transformers, CTranslate2, JoeyNMT and OpenNMT-py.

    python decode_peers.py PEER SHAPE [--batch 64] [--width 5] [--sentences 1000] [--int8]
                           [--model DIR]

Run it with the Python of the peers' own environment (peers.txt); it needs nothing of saccade.
PEER is hf, ctranslate2, joeynmt or onmt; SHAPE is small, base or lstm. It prints one line of JSON.

Every peer gets the same sentences as ids, sorted by length into batches, and must say exactly 20
tokens for each: the end is forbidden until then. Weights are random and seeded. The clock runs from
lists of ids to the peer's own output, after a warm-up; `seconds` is the median of the rounds.
A batch of 1 means requests one after another, in the order given.

The peers run as they install, through their own decoding functions, with no allocator tuning.
CTranslate2 is tried at several settings, the seconds of each are in `settings`; `setting` names the
best, which is then measured again. It decodes `--model DIR`, or without it hf's model, converted by
its own converter. JoeyNMT and OpenNMT-py run the recurrent shape, `lstm`. peers.txt leaves out what
only their other parts need; for two such modules OpenNMT-py gets empty ones. Nothing of theirs is
patched.
"""

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import Any

Rows = list[list[int]]
Decode = Callable[[Rows], Sequence[Any]]  # rows of source ids -> an output for each

OUTPUT_LENGTH = 20
FIRST_WORD = 5  # ids below are left for the peers' special tokens
SHAPES: dict[str, dict[str, int]] = {
    "small": {"layers": 3, "dim": 256, "ff_dim": 1024, "heads": 4, "vocab": 10_000},
    "base": {"layers": 6, "dim": 512, "ff_dim": 2048, "heads": 8, "vocab": 32_000},
    "lstm": {"layers": 1, "dim": 256, "vocab": 10_000},
}


def sentences(count: int, vocab: int) -> Rows:
    """`count` rows of word ids, 4 to 40 long and 14 on average, without special tokens."""
    numbers = random.Random(1)
    low, high, mean = 4, 40, 14
    skew = (high - low) / (mean - low) - 1
    lengths = [round(low + (high - low) * numbers.random() ** skew) for _ in range(count)]
    return [[numbers.randrange(FIRST_WORD, vocab - 1) for _ in range(n)] for n in lengths]


def batches(rows: Rows, size: int) -> list[Rows]:
    """Rows of like lengths together, the longest first; single rows in the order given."""
    if size > 1:
        rows = sorted(rows, key=len, reverse=True)
    return [rows[i : i + size] for i in range(0, len(rows), size)]


# --- HF transformers ------------------------------------------------------------------------------


def marian(shape: str) -> Any:
    """A Marian network of this shape. Its padding is the last id, as its converters expect."""
    from transformers import MarianConfig, MarianMTModel

    sizes = SHAPES[shape]
    config = MarianConfig(
        vocab_size=sizes["vocab"],
        d_model=sizes["dim"],
        encoder_layers=sizes["layers"],
        decoder_layers=sizes["layers"],
        encoder_ffn_dim=sizes["ff_dim"],
        decoder_ffn_dim=sizes["ff_dim"],
        encoder_attention_heads=sizes["heads"],
        decoder_attention_heads=sizes["heads"],
        max_position_embeddings=128,
        activation_function="relu",
        scale_embedding=True,
        init_std=0.1,  # with the usual 0.02 it repeats one word
        pad_token_id=sizes["vocab"] - 1,
        decoder_start_token_id=sizes["vocab"] - 1,
        eos_token_id=0,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config).eval()


def hf(shape: str, width: int) -> Decode:
    import torch
    from transformers import GenerationConfig

    network = marian(shape)
    pad, end = network.config.pad_token_id, network.config.eos_token_id
    how = GenerationConfig(
        min_new_tokens=OUTPUT_LENGTH,
        max_new_tokens=OUTPUT_LENGTH,
        num_beams=width,
        do_sample=False,
        use_cache=True,
        pad_token_id=pad,
        eos_token_id=end,
        decoder_start_token_id=pad,
    )

    def decode(rows: Rows) -> Sequence[Any]:
        source = padded([[*row, end] for row in rows], pad)
        with torch.inference_mode():
            said = network.generate(
                input_ids=source, attention_mask=(source != pad).long(), generation_config=how
            )
        return said[:, 1:].tolist()

    return decode


def padded(rows: Rows, pad: int) -> Any:
    import torch

    longest = max(map(len, rows))
    return torch.tensor([row + [pad] * (longest - len(row)) for row in rows])


# --- CTranslate2 ----------------------------------------------------------------------------------


def converted(shape: str, folder: Path) -> Path:
    """A folder with hf's network, as CTranslate2's own converter writes it."""
    from ctranslate2.converters.transformers import MarianMTLoader

    words = [f"w{i}" for i in range(SHAPES[shape]["vocab"] - 1)]  # the converter drops padding
    words[:2] = ["</s>", "<unk>"]
    loader = MarianMTLoader()
    spec = loader.get_model_spec(marian(shape))
    loader.set_config(spec.config, None, SimpleNamespace(eos_token="</s>", unk_token="<unk>"))
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.validate()
    spec.optimize()
    target = folder / shape
    target.mkdir()
    spec.save(str(target))
    return target


def ctranslate2(
    folder: Path, rows: Rows, width: int, batch: int, int8: bool, threads: int, rounds: int
) -> dict[str, Any]:
    """The best setting, workers x threads each and how the batches are cut, and its seconds.

    They are measured anew: the least of several noisy figures is too low.
    """
    from ctranslate2 import Translator

    config = json.loads((folder / "config.json").read_text())
    name = "shared" if (folder / "shared_vocabulary.json").exists() else "source"
    vocabulary = json.loads((folder / f"{name}_vocabulary.json").read_text())
    end = [] if config.get("add_source_eos") else [config["eos_token"]]
    words = [[*(vocabulary[i] for i in row), *end] for row in rows]
    lengths = {
        "min_decoding_length": OUTPUT_LENGTH,
        "max_decoding_length": OUTPUT_LENGTH,
        "beam_size": width,
    }
    workers = {(1, threads), (1, 1)} if batch == 1 else {(1, threads), (threads, 1)}
    # CTranslate2 itself sorts by length, and cuts at this many sentences or tokens.
    cuts = {"single": ("examples", 1)}
    if batch > 1:
        cuts = {
            f"{batch} sentences": ("examples", batch),
            f"{2 * batch} sentences": ("examples", 2 * batch),
            f"{16 * batch} tokens": ("tokens", 16 * batch),
        }
    found, ways = {}, {}
    for inter, intra in sorted(workers):
        translator = Translator(
            str(folder),
            compute_type="int8" if int8 else "float32",
            inter_threads=inter,
            intra_threads=intra,
        )
        for name, (kind, size) in cuts.items():

            def decode(
                words: list[list[str]],
                translator: Any = translator,
                kind: str = kind,
                size: int = size,
            ) -> list[Any]:
                if batch == 1:
                    results = [translator.translate_batch([row], **lengths)[0] for row in words]
                else:
                    results = translator.translate_batch(
                        words, max_batch_size=size, batch_type=kind, **lengths
                    )
                return [result.hypotheses[0] for result in results]

            check(decode(words[: 2 * batch]))
            setting = f"{inter}x{intra}, {name}"
            found[setting] = median(timed(lambda d=decode: d(words)) for _ in range(rounds))
            ways[setting] = decode
    best = min(found, key=found.__getitem__)
    seconds = median(timed(lambda: ways[best](words)) for _ in range(rounds))
    return {"seconds": seconds, "int8": int8, "setting": best, "settings": found}


# --- JoeyNMT --------------------------------------------------------------------------------------


def joeynmt_model(parts: dict[str, Any], source: int, target: int, ids: dict[str, int]) -> Any:
    """Its network for vocabularies of these sizes; `ids` are those of its special tokens."""
    logging.disable(logging.INFO)
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    symbols: dict[str, Any] = {f"{name}_token": f"<{name}>" for name in ids}
    symbols |= {f"{name}_id": i for name, i in ids.items()}
    special = SimpleNamespace(**symbols, sep_token=None, lang_tags=[])

    def vocabulary(size: int) -> Any:
        return Vocabulary([f"w{i}" for i in range(len(ids), size)], special)

    first = vocabulary(source)
    return build_model(parts, first, first if source == target else vocabulary(target))


def joeynmt(shape: str, width: int) -> Decode:
    """biLSTM encoder, LSTM decoder with additive attention and input feeding."""
    import torch
    from joeynmt.batch import Batch
    from joeynmt.search import search

    dim, size = SHAPES[shape]["dim"], SHAPES[shape]["vocab"]
    specials = {"unk": 0, "pad": 1, "bos": 2, "eos": 3}
    part = {"type": "recurrent", "rnn_type": "lstm", "embeddings": {"embedding_dim": dim}}
    parts = {
        "encoder": part | {"hidden_size": dim // 2, "bidirectional": True},
        "decoder": part
        | {
            "hidden_size": dim,
            "attention": "bahdanau",
            "input_feeding": True,
            "init_hidden": "bridge",
        },
    }
    network = joeynmt_model(parts, size, size, specials).eval()
    pad, end = specials["pad"], specials["eos"]

    def decode(rows: Rows) -> Sequence[Any]:
        source = padded([[*row, end] for row in rows], pad)
        batch = Batch(
            src=source,
            src_length=torch.tensor([len(row) + 1 for row in rows]),
            src_prompt_mask=None,
            trg=None,
            trg_prompt_mask=None,
            indices=torch.arange(len(rows)),
            device=torch.device("cpu"),
            pad_index=pad,
            eos_index=end,
            is_train=False,
        )
        said, _, _ = search(
            network,
            batch,
            max_output_length=OUTPUT_LENGTH,
            beam_size=width,
            beam_alpha=1.0,
            min_output_length=OUTPUT_LENGTH,
        )
        return said.tolist()

    return decode


# --- OpenNMT-py -----------------------------------------------------------------------------------


def import_onmt() -> None:
    """Make it importable without what only its text preparation needs."""
    warnings.simplefilter("ignore")  # about parts that are not used here
    for name in ("spacy", "fasttext"):  # imported there; nothing calls them
        sys.modules[name] = ModuleType(name)


def onmt(shape: str, width: int) -> Decode:
    """The same network as JoeyNMT's, but without a bridge: its sizes need none."""
    import_onmt()
    import pyonmttok
    import torch
    from onmt.constants import DefaultTokens
    from onmt.decoders.decoder import InputFeedRNNDecoder
    from onmt.encoders.rnn_encoder import RNNEncoder
    from onmt.models.model import NMTModel
    from onmt.modules import Embeddings
    from onmt.translate import GNMTGlobalScorer, Translator

    dim, size = SHAPES[shape]["dim"], SHAPES[shape]["vocab"]
    specials = [DefaultTokens.UNK, DefaultTokens.PAD, DefaultTokens.BOS, DefaultTokens.EOS]
    words = [f"w{i}" for i in range(len(specials), size)]
    vocabulary = pyonmttok.build_vocab_from_tokens(words, special_tokens=specials)
    vocabulary.default_id = 0
    pad, end = vocabulary[DefaultTokens.PAD], vocabulary[DefaultTokens.EOS]
    network = NMTModel(
        RNNEncoder("LSTM", True, 1, dim, embeddings=Embeddings(dim, size, pad)),
        InputFeedRNNDecoder(
            "LSTM", True, 1, dim, attn_type="mlp", embeddings=Embeddings(dim, size, pad)
        ),
    )
    network.generator = torch.nn.Linear(dim, size)
    network.eval()
    vocabularies = {
        "src": vocabulary,
        "tgt": vocabulary,
        "decoder_start_token": DefaultTokens.BOS,
    }
    translator = Translator(
        network,
        vocabularies,
        min_length=OUTPUT_LENGTH,
        max_length=OUTPUT_LENGTH,
        max_length_ratio=0,
        beam_size=width,
        random_sampling_topk=1 if width == 1 else 0,  # this is its greedy search
        dump_beam="",
        global_scorer=GNMTGlobalScorer(0.0, 0.0, "none", "none"),
    )

    def decode(rows: Rows) -> Sequence[Any]:
        batch = {
            "src": padded([[*row, end] for row in rows], pad).unsqueeze(-1),
            "srclen": torch.tensor([len(row) + 1 for row in rows]),
            "ind_in_bucket": torch.arange(len(rows)),
        }
        said = translator.translate_batch(batch, attn_debug=False)["predictions"]
        return [best[0] for best in said]

    return decode


# --- measuring ------------------------------------------------------------------------------------


def check(said: Sequence[Any]) -> None:
    wrong = {len(row) for row in said} - {OUTPUT_LENGTH}
    assert not wrong, f"outputs must have {OUTPUT_LENGTH} tokens, some have {wrong}"


def timed(work: Callable[[], Any]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=["hf", "ctranslate2", "joeynmt", "onmt"])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--int8", action="store_true", help="ctranslate2 only; else float32")
    parser.add_argument("--model", type=Path, help="ctranslate2 only: a folder with its model")
    chosen = parser.parse_args()
    recurrent = chosen.peer in ("joeynmt", "onmt")
    if recurrent != (chosen.shape == "lstm"):
        parser.error("the shape lstm is for joeynmt and onmt, small and base are for the others")
    if (chosen.int8 or chosen.model) and chosen.peer != "ctranslate2":
        parser.error("--int8 and --model are for ctranslate2 only")

    import torch

    torch.set_num_threads(chosen.threads)
    torch.manual_seed(1)
    rows = sentences(chosen.sentences, SHAPES[chosen.shape]["vocab"])
    report: dict[str, Any] = {
        "peer": chosen.peer,
        "shape": chosen.shape,
        "batch": chosen.batch,
        "width": chosen.width,
        "tokens": OUTPUT_LENGTH * chosen.sentences,
    }
    if chosen.peer == "ctranslate2":
        with tempfile.TemporaryDirectory() as folder:
            report |= ctranslate2(
                chosen.model or converted(chosen.shape, Path(folder)),
                rows,
                chosen.width,
                chosen.batch,
                chosen.int8,
                chosen.threads,
                chosen.rounds,
            )
    else:
        build = {"hf": hf, "joeynmt": joeynmt, "onmt": onmt}[chosen.peer]
        decode = build(chosen.shape, chosen.width)
        parts = batches(rows, chosen.batch)
        for part in (parts[0], parts[-1]):
            check(decode(part))
        report["seconds"] = median(
            timed(lambda: [decode(part) for part in parts]) for _ in range(chosen.rounds)
        )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
