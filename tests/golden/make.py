"""Make the golden runs of the present format: `python -m tests.golden.make`.

Once for every release whose format is new, and for every kind of run that is new. What is there is
never made again: it is the proof that runs of every release are still read.
"""

import json
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

import saccade
from saccade.runs.files import FORMAT

HERE = Path(__file__).parent
SMALL = {"train.batch_tokens": 256, "train.evaluate_every": 50, "train.rate": 0.01, "train.keep": 1}
TRANSFORMER = {"kind": "transformer", "dim": 16, "num_layers": 1, "num_heads": 2, "ff_dim": 32}
RECURRENT = {"kind": "recurrent", "dim": 16, "num_layers": 1}
WORDS = {"task.tokenizer.kind": "word", "task.context": 24}
OF_PAIRS = WORDS | {"task.objective": {"kind": "masked", "next_sentence": True}}
OF_SPANS = WORDS | {"task.objective": {"kind": "spans"}}
OF_BOTH_WAYS = WORDS | {"task.objective": {"kind": "bidirectional"}}
TWO_WAYS = RECURRENT | {"num_layers": 2, "separate": True}
RUNS = {
    "transformer": ("translate", {"encoder": TRANSFORMER, "decoder": TRANSFORMER}),
    "attention": ("translate", {"encoder": RECURRENT, "decoder": RECURRENT}),
    "language-model": ("language", {"decoder": RECURRENT | {"attention": "off"}}),
    "classifier": ("classify", {"encoder": RECURRENT | {"kind": "convolution"}}),
    "tagger": ("tag", {"encoder": RECURRENT}),
    "masked": ("pretrain", {"encoder": TRANSFORMER} | OF_PAIRS),
    "spans": ("pretrain", {"encoder": TRANSFORMER, "decoder": TRANSFORMER} | OF_SPANS),
    "both-ways": ("pretrain", {"encoder": TWO_WAYS} | OF_BOTH_WAYS),
    "adapted": ("classify", {"start.run": "masked", "start.kind": "lora"}),
    "mixed": ("tag", {"start.run": "both-ways", "start.kind": "gradual"}),
}
INPUTS = {
    "translate": ["abc", "da", "bbad", "c"],
    "language": ["ab", "c d", "dd a"],
    "classify": ["abca x", "dab", "c c"],
    "tag": ["a b c", "dab c", "b"],
    "pretrain": ["a <mask> b", "aa ab <mask> c d", "<mask>"],
}


def corpus(task: str) -> Path:
    numbers = random.Random(1)
    words = ["".join(numbers.choices("abcd", k=numbers.randint(1, 4))) for _ in range(300)]
    match task:
        case "translate":
            lines = [f"{word}\t{word.upper()}" for word in words]
        case "classify":
            lines = [f"{word} x\t{word[0]}" for word in words]
        case "tag":
            lines = [line for w in words for line in (*(f"{c}\t{c.upper()}" for c in w), "")]
        case _:
            lines = [" ".join(sorted(words[i : i + 5])) for i in range(0, 300, 5)]
    path = Path(f"{task}{'.conll' if task == 'tag' else '.txt'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def main() -> None:
    torch.set_num_threads(1)
    target = HERE / str(FORMAT)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, (task, parts) in RUNS.items():
            if (target / name).exists():
                continue
            settings: dict[str, Any] = SMALL | parts | {"train.steps": 150}
            if base := settings.get("start.run"):
                shutil.copytree(target / base, base)
            run = saccade.train(corpus(task), task=task, out=name, settings=settings, quiet=True)
            found = run.predict(INPUTS[task])
            expected = [{"in": i, "out": p.text, "score": p.score}
                        for i, p in zip(INPUTS[task], found, strict=True)]  # fmt: skip
            Path(name, "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
            for left in (".lock", "metrics.jsonl", "tensorboard"):
                shutil.rmtree(Path(name, left), ignore_errors=True)
                Path(name, left).unlink(missing_ok=True)
            if name != "language-model":  # of one run all is kept, to be resumed
                shutil.rmtree(Path(name, "checkpoints"))
                shutil.rmtree(Path(name, "data"))
            shutil.move(name, target / name)


if __name__ == "__main__":
    main()
