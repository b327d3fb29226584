"""Decoding speed against the peers, the same shapes and sentences for all, ratios in one run.

    python benchmarks/decode_speed.py [--peers PYTHON] [--only NAME ...] [--sentences N]

Each measurement is a process of its own, ours and the peer's by turns, so that a disturbance hits
both; figures are medians of the rounds, in output tokens a second. Ours goes from raw text to raw
text through `Run.stream`, as `saccade predict` does, but ends when as many as the beam is wide have
ended, as the peers do; the peers go from ids to ids. Every output takes 20 steps: the peers forbid
the end and stop there; ours say 19 words and the end, the Transformers by weights that end there by
themselves, the recurrent network by `decode.min_len` and `max_len`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from decode_peers import OUTPUT_LENGTH, SHAPES, sentences

HERE = Path(__file__).parent
# name: our shape, width, batch, settings; the peer and its arguments; the bar; of 1,000 how many
CASES: dict[str, tuple[str, int, int, dict[str, Any], str, list[str], float, float]] = {
    "auto fp32 / CTranslate2, small B64 k5": (
        "small", 5, 64, {}, "ctranslate2", [], 1.0, 1.0),
    "auto fp32 / CTranslate2, small B64 k1": (
        "small", 1, 64, {}, "ctranslate2", [], 1.0, 1.0),
    "auto int8 / CTranslate2, small B64 k5": (
        "small", 5, 64, {"int8": True}, "ctranslate2", ["--int8"], 1.0, 1.0),
    "auto int8 / CTranslate2, small B64 k1": (
        "small", 1, 64, {"int8": True}, "ctranslate2", ["--int8"], 1.0, 1.0),
    "auto fp32 / CTranslate2, small B1 k5": (
        "small", 5, 1, {}, "ctranslate2", [], 1.0, 0.2),
    "auto int8 / CTranslate2, small B1 k5": (
        "small", 5, 1, {"int8": True}, "ctranslate2", ["--int8"], 1.0, 0.2),
    "auto fp32 / CTranslate2, base B64 k5": (
        "base", 5, 64, {}, "ctranslate2", [], 1.0, 0.2),
    "auto int8 / CTranslate2, base B64 k5": (
        "base", 5, 64, {"int8": True}, "ctranslate2", ["--int8"], 1.0, 0.2),
    "auto int8 / HF generate, small B64 k5": (
        "small", 5, 64, {"int8": True}, "hf", [], 5.0, 1.0),
    "auto fp32 / HF generate, small B64 k5": (
        "small", 5, 64, {}, "hf", [], 5.0, 1.0),
    "torch fp32 / HF generate, small B64 k5": (
        "small", 5, 64, {"engine": "torch"}, "hf", [], 1.5, 1.0),
    "torch fp32 / HF generate, small B64 k1": (
        "small", 1, 64, {"engine": "torch"}, "hf", [], 1.5, 1.0),
    "torch fp32 / HF generate, small B1 k5": (
        "small", 5, 1, {"engine": "torch"}, "hf", [], 2.5, 0.1),
    "torch fp32 / HF generate, small B1 k1": (
        "small", 1, 1, {"engine": "torch"}, "hf", [], 2.5, 0.1),
    "torch fp32 / HF generate, base B64 k5": (
        "base", 5, 64, {"engine": "torch"}, "hf", [], 1.5, 0.128),
    "torch / OpenNMT-py, lstm B64 k5": (
        "lstm", 5, 64, {"engine": "torch"}, "onmt", [], 3.0, 1.0),
    "torch / JoeyNMT, lstm B64 k5": (
        "lstm", 5, 64, {"engine": "torch"}, "joeynmt", [], 3.0, 1.0),
    "torch / OpenNMT-py, lstm B64 k1": (
        "lstm", 1, 64, {"engine": "torch"}, "onmt", [], 3.0, 1.0),
    "torch int8 / OpenNMT-py, lstm B64 k5": (
        "lstm", 5, 64, {"engine": "torch", "int8": True}, "onmt", [], 3.0, 1.0),
    "torch int8 / JoeyNMT, lstm B64 k5": (
        "lstm", 5, 64, {"engine": "torch", "int8": True}, "joeynmt", [], 3.0, 1.0),
    "torch int8 / OpenNMT-py, lstm B64 k1": (
        "lstm", 1, 64, {"engine": "torch", "int8": True}, "onmt", [], 3.0, 1.0),
    "torch / OpenNMT-py, lstm B1 k5": (
        "lstm", 5, 1, {"engine": "torch"}, "onmt", [], 3.0, 0.1),
}  # fmt: skip


def our_run(shape: str, folder: Path) -> Any:
    """A run of this shape with random weights, whose outputs have 20 tokens with the end token."""
    import torch

    from saccade.config import Tokenizer as Settings
    from saccade.config import parse
    from saccade.data.fields import TargetText, Text
    from saccade.runs.machine import tune_malloc
    from saccade.runs.run import Run
    from saccade.tasks.translate import Translate
    from saccade.text.tokenizers import Tokenizer

    tune_malloc()
    sizes = SHAPES[shape]
    words = {"kind": "word", "size": sizes["vocab"]}
    raw: dict[str, Any] = {"task": {"kind": "translate", "source": words, "target": words}}
    if shape == "lstm":
        part = {"kind": "recurrent", "cell": "lstm", "dim": sizes["dim"]}
        raw |= {"encoder": part, "decoder": part | {"attention": "additive", "tied": False}}
        raw["decode"] = {"min_len": OUTPUT_LENGTH - 1, "max_len": OUTPUT_LENGTH - 1}
    else:
        part = {
            "kind": "transformer", "dim": sizes["dim"], "ff_dim": sizes["ff_dim"],
            "num_layers": sizes["layers"], "num_heads": sizes["heads"],
        }  # fmt: skip
        raw |= {"encoder": part, "decoder": part | {"positions": "learned"}}
        raw["task"]["joint"] = True
    config = parse(raw, "benchmark")
    text = " ".join(f"w{i}" for i in range(sizes["vocab"] - 5))
    tokenizer = Tokenizer.train(Settings(**words), [text])
    task = Translate(config, Text(tokenizer), TargetText(tokenizer))
    network: Any = task.build().eval()
    special = tokenizer.specials
    with torch.no_grad():
        network.decoder.output.bias[
            list(special.never_generated)
        ] = -40.0  # as one that was trained
        if shape != "lstm":  # the last token can only be the end, and no other can
            mark = torch.randn(sizes["dim"])
            mark -= mark.mean()
            network.decoder.stack.positions.table.weight[OUTPUT_LENGTH - 1] = 1e4 * mark
            network.decoder.output.weight[special.eos] = 8 * mark / mark.norm()
            network.decoder.output.bias[special.eos] = -40.0
    return Run(folder, config, task, network)


def ours(shape: str, width: int, batch: int, settings: dict[str, Any], count: int) -> float:
    """The seconds of our predictions, after a warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        run = our_run(shape, Path(folder))
        rows = sentences(count, SHAPES[shape]["vocab"] - 5)
        texts = [" ".join(f"w{i}" for i in row) for row in rows]
        settings = settings | {"width": width, "stop_after": width}
        if batch == 1:
            settings["batch_tokens"] = 1
        elif settings.get("engine") == "torch":  # else the engine's own choice is measured
            settings["batch_tokens"] = 16 * batch * width  # 14 tokens a sentence, and the beam
        request = run.request(settings=settings, scored=False)  # as the command line asks
        said = list(run.stream(texts[: 2 * batch], request))
        assert {len(one.text.split()) for one in said} == {OUTPUT_LENGTH - 1}
        began = perf_counter()
        for _ in run.stream(texts, request):
            pass
        return perf_counter() - began


def exported(shape: str, folder: Path) -> None:
    """Our model as CTranslate2 reads it, for whoever drives it by hand."""
    from saccade.engines.ctranslate2 import export

    run = our_run(shape, folder)
    export(run.task, run.network, folder)


def measured(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", default=str(HERE.parent / ".venv-peers/bin/python"))
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names hold one of these")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ours", help="one measurement, as JSON")
    parser.add_argument("--export", nargs=2, metavar=("SHAPE", "FOLDER"))
    chosen = parser.parse_args()
    if chosen.ours:
        print(json.dumps({"seconds": ours(*json.loads(chosen.ours))}))
        return
    if chosen.export:
        exported(chosen.export[0], Path(chosen.export[1]))
        return
    print(f"{'':42} {'ours':>8} {'peer':>8}  ratio  bar")
    missed = 0
    with tempfile.TemporaryDirectory() as temporary:
        for name, (shape, width, batch, settings, peer, flags, bar, share) in CASES.items():
            if chosen.only and not any(word in name for word in chosen.only):
                continue
            count = max(1, round(chosen.sentences * share))
            model = Path(temporary) / shape
            if peer == "ctranslate2":
                if not model.exists():
                    model.mkdir()
                    command = [sys.executable, __file__, "--export", shape, str(model)]
                    subprocess.run(command, check=True)
                flags = [*flags, "--model", str(model)]
            case = json.dumps([shape, width, batch, settings, count])
            theirs = [
                chosen.peers, str(HERE / "decode_peers.py"), peer, shape, "--rounds", "1",
                "--batch", str(batch), "--width", str(width), "--sentences", str(count), *flags,
            ]  # fmt: skip
            pairs = [
                (measured([sys.executable, __file__, "--ours", case]), measured(theirs))
                for _ in range(chosen.rounds)
            ]
            tokens = OUTPUT_LENGTH * count
            mine = tokens / median(a["seconds"] for a, _ in pairs)
            other = tokens / median(b["seconds"] for _, b in pairs)
            missed += mine < bar * other
            best = pairs[-1][1].get("setting", "")
            print(
                f"{name:42} {mine:8,.0f} {other:8,.0f}  {mine / other:5.2f}  {bar:.1f}  {best}",
                flush=True,
            )
    print(f"{missed} below their bar" if missed else "every bar is met")


if __name__ == "__main__":
    main()
