"""word2vec: words a second of ours and of gensim, one after the other, again and again.

    python benchmarks/word2vec_speed.py TEXT [--objective skipgram cbow] [--rounds 3] [--threads 2]

TEXT has a sentence on each line, words between blanks. Both learn vectors of 100 numbers with a
window of 5, 5 negatives, subsampling at 0.001 and words that come 5 times, with as many threads,
from the same text, for one epoch of it in each round. What is counted is all words of the text,
known or not, by the seconds of training alone: reading, vocabularies and evaluation are left out
for both, but not our checkpoint at the end. gensim has as many workers as threads, or one more
(another thread of it reads), whichever is faster. gensim is in .venv-peers, which
`make bench-word2vec` makes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import measuring

PEERS = Path(__file__).resolve().parent.parent / ".venv-peers" / "bin" / "python"
GENSIM = """
import json, sys
from time import perf_counter, process_time
from gensim.models import Word2Vec
from gensim.models.word2vec import LineSentence
text, sg, threads, epochs, out = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
lines = list(LineSentence(text))
model = Word2Vec(vector_size=100, window=5, negative=5, sample=1e-3, min_count=5, sg=sg,
                 workers=threads, alpha=0.025 if sg else 0.05, seed=1)
model.build_vocab(lines)
began, used = perf_counter(), process_time()
_, words = model.train(lines, total_examples=model.corpus_count, epochs=epochs)
print(json.dumps([words, perf_counter() - began, process_time() - used]))
if out:
    model.wv.save_word2vec_format(out)
"""


def theirs(text: Path, objective: str, threads: int, epochs: int, out: str = "") -> list[float]:
    """Words, seconds and processor seconds of gensim, with its better number of workers."""
    tried: list[list[float]] = []
    for workers in (threads, threads + 1) if threads > 1 else (1,):
        words = [text, int(objective == "skipgram"), workers, epochs, out]
        command = [str(PEERS), "-c", GENSIM, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        tried.append(json.loads(done.stdout))
    return min(tried, key=lambda found: found[1])


def ours(text: Path, objective: str, threads: int, epochs: int, folder: Path) -> list[float]:
    """The same of Saccade's own loop; the run is left in the folder."""
    import torch

    from saccade.setup.choose import fill_config, gather
    from saccade.setup.prepare import prepare
    from saccade.training.events import Event
    from saccade.training.loop import train
    from saccade.training.session import new_folder
    from saccade.training.trainer import Trainer

    torch.set_num_threads(threads)
    raw, where = gather(text, task="pretrain")
    raw["task"] |= {"objective": {"kind": objective}}
    raw["task"]["tokenizer"] = {
        "kind": "word", "min_count": 5, "size": 1_000_000, "lowercase": False,
        "split_punctuation": False,
    }  # fmt: skip
    raw["encoder"] = {"kind": "none", "dim": 100}
    raw["data"] |= {"dev_max": 10}
    raw["train"] = {"epochs": epochs}
    config, _ = fill_config(raw, where)
    ready = prepare(config, new_folder(config, folder))
    trainer = Trainer(ready.task, ready.task.build(), folder)
    column = ready.train.tokens
    words = epochs * (len(column.ids) - len(column))
    began, used, last = perf_counter(), process_time(), list[Event]()
    for event in train(trainer, ready.train, ready.dev, ready.dev_examples):
        last = [event]
    assert last
    return [words, perf_counter() - began, process_time() - used]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--objective", nargs="*", default=["skipgram", "cbow"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--epochs", type=int, default=1)
    chosen = parser.parse_args()
    machine = measuring.machine()
    print(f"{machine['model']}, {machine['cores']} cores, {machine['kind']}")
    for objective in chosen.objective:
        speeds: dict[str, list[tuple[float, float]]] = {"saccade": [], "gensim": []}
        for number in range(chosen.rounds):
            with tempfile.TemporaryDirectory() as folder:
                given = chosen.text, objective, chosen.threads, chosen.epochs
                own = [sys.executable, __file__, "--own", *map(str, given), f"{folder}/run"]
                done = subprocess.run(own, capture_output=True, text=True, check=True)
                found = {"saccade": json.loads(done.stdout), "gensim": theirs(*given)}
            for name, (words, seconds, used) in found.items():
                speeds[name].append((words / seconds, words / used))
                print(
                    f"{objective}, round {number + 1}: {name} {words / seconds:,.0f} words a "
                    f"second, {words / used:,.0f} a second of a processor",
                    flush=True,
                )
        ratios = [[a[i] / b[i] for a, b in zip(*speeds.values(), strict=True)] for i in (0, 1)]
        print(
            f"{objective}: {median(ratios[0]):.2f} times gensim's words a second, "
            f"{median(ratios[1]):.2f} times its words a second of a processor"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--own"]:
        text, objective, threads, epochs, folder = sys.argv[2:]
        print(json.dumps(ours(Path(text), objective, int(threads), int(epochs), Path(folder))))
    else:
        main()
