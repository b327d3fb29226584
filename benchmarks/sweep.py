"""Settings tried on many data sets, from which the defaults for small data are chosen.

    python benchmarks/sweep.py run words-800 --try "" --try "encoder.dropout=0.5 train.rate=1e-3"
    python benchmarks/sweep.py table

`run` trains the defaults with each set of changes on each data set of a group, a process a core,
and adds a line for each to results/sweep.jsonl; what stands there already is not trained again.
`table` prints for each group the mean of every candidate, and what leaving one out says: the
candidate that is best on all other sets of the group, beside the best on the set itself.

The sets are looked for in $SACCADE_DATA.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from statistics import mean
from time import perf_counter
from typing import Any

from measuring import machine

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "sweep.jsonl"


@dataclass(frozen=True)
class DataSet:
    """Files below $SACCADE_DATA, and what `train` has to be told of them."""

    name: str
    train: str
    dev: str
    metric: str = "sequence_error"  # in %; what is an accuracy is turned into an error
    settings: tuple[str, ...] = ()


def _sigmorphon(size: str, languages: str) -> list[DataSet]:
    folder = f"sigmorphon2021_g2p/{size}"
    return [
        DataSet(name, f"{folder}/{name}_train.tsv", f"{folder}/{name}_dev.tsv")
        for name in languages.split()
    ]


def _inflection(size: str) -> list[DataSet]:
    columns = ("data.source=[1,3]", "data.target=2")  # the lemma and its tags; the form
    return [
        DataSet(
            f"{name} {size}",
            f"conll2018_inflection/{name}.train-{size}.tsv",
            f"conll2018_inflection/{name}.dev.tsv",
            settings=columns,
        )
        for name in ("english", "finnish", "german", "spanish", "turkish")
    ]


def _history(names: str) -> list[DataSet]:
    return [
        DataSet(name, f"histnorm/{name}.train.tsv", f"histnorm/{name}.dev.tsv")
        for name in names.split()
    ]


GROUPS: dict[str, list[DataSet]] = {
    "words-100": _inflection("low"),
    "words-800": _sigmorphon("low", "ady gre ice wel_sw"),
    "words-1000": _inflection("medium"),
    "words-8000": _sigmorphon("medium", "dut fre hun jpn_hira kor"),
    "words-10000": _inflection("high"),
    "words-30000": [
        *_sigmorphon("high", "eng_us"),
        DataSet("birkbeck", "spelling/birkbeck.train.tsv", "spelling/birkbeck.dev.tsv"),
    ],
    "words-50000": _history(
        "german-anselm german-ridges icelandic-icepahc slovene-goo300k-bohoric"
    ),
    "tags": [
        DataSet(
            "snips",
            "slots/snips.train.conll",
            "slots/snips.dev.conll",
            metric="f1",
        ),
        DataSet(
            "ewt",
            "ud_english_ewt/en_ewt-ud-train.conllu.gz",
            "ud_english_ewt/en_ewt-ud-dev.conllu.gz",
            metric="accuracy",
        ),
    ],
    "labels": [
        DataSet("sst2", "sst2/train.tsv.gz", "sst2/dev.tsv", metric="accuracy"),
        DataSet("imdb", "imdb/train.tsv.gz", "imdb/dev.tsv.gz", metric="accuracy"),
    ],
}


def run_one(group: str, data: DataSet, changes: str, seed: int, core: int) -> dict[str, Any]:
    """Train a candidate on a data set, and measure it on all of the dev set."""
    folder = Path(os.environ["SACCADE_DATA"])
    with tempfile.TemporaryDirectory() as temporary:
        run = str(Path(temporary) / "run")
        words = ["train", str(folder / data.train), "--dev", str(folder / data.dev), "--out", run]
        for setting in (f"seed={seed}", "train.processes=1", *data.settings, *changes.split()):
            words += ["--set", setting]
        began = perf_counter()
        call(words, core)
        seconds = perf_counter() - began
        scores = json.loads(call(["evaluate", run, "--json"], core))
    value = scores[data.metric]
    return {
        "group": group,
        "set": data.name,
        "changes": changes,
        "seed": seed,
        "error": round(value if data.metric.endswith("error") else 100 - value, 3),
        "seconds": round(seconds),
        "machine": machine()["kind"],
    }


def call(words: Sequence[str], core: int) -> str:
    """What a command of saccade prints, on one core."""
    command = [sys.executable, "-m", "saccade", *words]
    done = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-800:]}")
    return done.stdout


def run_all(groups: Sequence[str], candidates: Sequence[str], seeds: int, sets: str) -> None:
    """Every candidate on every set of the groups, two cores at a time."""
    done = {(one["set"], one["changes"], one["seed"]) for one in records()}
    cores: Queue[int] = Queue()
    for core in os.sched_getaffinity(0):
        cores.put(core)

    def work(job: tuple[str, DataSet, str, int]) -> None:
        core = cores.get()
        try:
            found = run_one(*job, core)
        except RuntimeError as error:  # the others go on
            print(error, file=sys.stderr, flush=True)
            return
        finally:
            cores.put(core)
        with RECORDS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        print(json.dumps(found), flush=True)

    jobs = [
        (group, data, changes, seed)
        for seed in range(1, seeds + 1)
        for changes in candidates
        for group in groups
        for data in GROUPS[group]
        if (not sets or data.name in sets.split(",")) and (data.name, changes, seed) not in done
    ]
    with ThreadPoolExecutor(cores.qsize()) as pool:
        list(pool.map(work, jobs))


def records() -> list[dict[str, Any]]:
    """All that was ever tried."""
    if not RECORDS.exists():
        return []
    return [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]


def table(found: Sequence[dict[str, Any]]) -> str:
    """For each group the candidates' means, and what leaving one set out says, as Markdown."""
    parts = []
    for group in dict.fromkeys(one["group"] for one in found):
        errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for one in found:
            if one["group"] == group:
                errors[one["changes"]][one["set"]].append(one["error"])
        sets = list(dict.fromkeys(one["set"] for one in found if one["group"] == group))
        means = {
            changes: {name: mean(each) for name, each in by_set.items()}
            for changes, by_set in errors.items()
        }
        lines = [
            f"| {group} | " + " | ".join([*sets, "mean"]) + " |",
            "|---" * (len(sets) + 2) + "|",
        ]
        for changes, by_set in means.items():
            cells = [f"{by_set[name]:.1f}" if name in by_set else "" for name in sets]
            whole = f"{mean(by_set.values()):.2f}" if len(by_set) == len(sets) else ""
            lines.append(f"| {changes or 'defaults'} | " + " | ".join([*cells, whole]) + " |")
        whole_ones = {changes: one for changes, one in means.items() if len(one) == len(sets)}
        if len(whole_ones) > 1 and len(sets) > 1:
            lines.append(
                "| chosen on the others | " + " | ".join(left_out(whole_ones, sets)) + " |"
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def left_out(means: dict[str, dict[str, float]], sets: Sequence[str]) -> list[str]:
    """For each set the error of the candidate that is best on all others, and their mean."""
    found = []
    for name in sets:
        others = [other for other in sets if other != name]
        chosen = min(means, key=lambda changes: mean(means[changes][other] for other in others))
        found.append(means[chosen][name])
    return [*(f"{error:.1f}" for error in found), f"{mean(found):.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("groups", nargs="+", choices=GROUPS)
    run.add_argument("--try", dest="candidates", action="append", help='as in "train.rdrop=1"')
    run.add_argument("--seeds", type=int, default=1)
    run.add_argument("--sets", default="", help="Of the groups, these alone, as in ice,gre.")
    verbs.add_parser("table")
    options = parser.parse_args()
    if options.verb == "run":
        run_all(options.groups, options.candidates or [""], options.seeds, options.sets)
    else:
        print(table(records()), end="")


if __name__ == "__main__":
    main()
