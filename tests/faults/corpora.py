"""Small clean corpora for every task and format, in which faults are planted."""

import gzip
import json
import random
from itertools import chain
from pathlib import Path

WHO = [
    ("der alte Mann", "the old man"), ("eine junge Frau", "a young woman"),
    ("mein kleiner Bruder", "my little brother"),
    ("die freundliche Lehrerin", "the friendly teacher"), ("unser Nachbar", "our neighbour"),
    ("das müde Kind", "the tired child"),
    ("ein berühmter Schriftsteller aus Wien", "a famous writer from Vienna"),
    ("die Köchin", "the cook"),
]  # fmt: skip
DOES = [
    ("liest jeden Morgen", "reads every morning"),
    ("sucht seit gestern", "has been looking since yesterday for"), ("verkauft", "sells"),
    ("findet plötzlich", "suddenly finds"),
    ("zeichnet mit großer Geduld", "draws with great patience"), ("vergisst", "forgets"),
]  # fmt: skip
WHAT = [
    ("die Zeitung", "the newspaper"), ("einen roten Schlüssel", "a red key"),
    ("das schöne Bild an der Wand", "the beautiful picture on the wall"),
    ("zwei grüne Äpfel", "two green apples"), ("den langen Brief", "the long letter"),
    ("ein Buch über die Geschichte der Stadt", "a book about the history of the town"),
    ("seinen Hut", "the hat"),
]  # fmt: skip
WHERE = [
    ("im Garten", "in the garden"), ("vor dem Haus", "in front of the house"),
    ("auf dem großen Marktplatz", "on the big market square"), ("im Zug", "on the train"),
    ("hinter der alten Kirche am Fluss", "behind the old church by the river"),
    ("in der Küche", "in the kitchen"),
]  # fmt: skip
TAGS = {
    "the": "DET", "a": "DET", "my": "DET", "our": "DET", "two": "NUM", "in": "ADP", "on": "ADP",
    "of": "ADP", "by": "ADP", "from": "ADP", "with": "ADP", "about": "ADP", "behind": "ADP",
    "for": "ADP", "since": "ADP", "reads": "VERB", "sells": "VERB", "finds": "VERB",
    "draws": "VERB", "forgets": "VERB", "has": "AUX", "been": "AUX", "looking": "VERB",
    "old": "ADJ", "young": "ADJ", "little": "ADJ", "friendly": "ADJ", "tired": "ADJ",
    "famous": "ADJ", "red": "ADJ", "beautiful": "ADJ", "green": "ADJ", "long": "ADJ",
    "big": "ADJ", "great": "ADJ", "every": "DET", "suddenly": "ADV", "Vienna": "PROPN",
}  # fmt: skip
GOOD = ["a wonderful film", "a lovely story", "one of the best plays", "a very fine book"]
BAD = ["a terrible film", "a boring story", "one of the worst plays", "a very weak book"]

Files = dict[str, list[str]]


def pairs(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """So many different sentences in German and English."""
    everything = [(a, b, c, d) for a in WHO for b in DOES for c in WHAT for d in WHERE]
    chosen = random.Random(seed).sample(everything, count)
    return [(" ".join(p[0] for p in four), " ".join(p[1] for p in four)) for four in chosen]


def lines(train: int = 300, dev: int = 40) -> Files:
    german, english = zip(*pairs(train + dev), strict=True)
    return {
        "train.de": [*german[:train]], "train.en": [*english[:train]],
        "dev.de": [*german[train:]], "dev.en": [*english[train:]],
    }  # fmt: skip


def tsv() -> Files:
    rows = ["\t".join(pair) for pair in pairs(340)]
    return {"train.tsv": rows[:300], "dev.tsv": rows[300:]}


def labelled() -> Files:
    rows = []
    for i, (_, b) in enumerate(pairs(340, seed=2)):
        label, praise = ("good", GOOD) if i % 2 else ("bad", BAD)
        rows.append(f"{b} and says it is {random.Random(i).choice(praise)}\t{label}")
    return {"train.tsv": rows[:300], "dev.tsv": rows[300:]}


def objects() -> Files:
    def made(row: str) -> str:
        text, label = row.split("\t")
        return json.dumps({"text": text, "label": label}, ensure_ascii=False)

    return {name.replace("tsv", "jsonl"): [*map(made, rows)] for name, rows in labelled().items()}


def tagged() -> list[list[tuple[str, str]]]:
    return [[(w, TAGS.get(w, "NOUN")) for w in b.split()] for _, b in pairs(340, seed=3)]


def conllu() -> Files:
    def block(words: list[tuple[str, str]]) -> list[str]:
        rows = [f"{i}\t{w}\t{w}\t{t}" + "\t_" * 6 for i, (w, t) in enumerate(words, 1)]
        return [f"# text = {' '.join(w for w, _ in words)}", *rows, ""]

    made = [block(words) for words in tagged()]
    return {"train.conllu": list(chain(*made[:300])), "dev.conllu": list(chain(*made[300:]))}


def columns() -> Files:
    made = [[*(f"{w} {t}" for w, t in words), ""] for words in tagged()]
    return {"train.conll": list(chain(*made[:300])), "dev.conll": list(chain(*made[300:]))}


def text() -> Files:
    sentences = [b.capitalize() + "." for _, b in pairs(680, seed=4)]
    made = [" ".join(sentences[i : i + 2]) for i in range(0, 680, 2)]
    return {"train.txt": made[:300], "dev.txt": made[300:]}


CORPORA = {make.__name__: make for make in (lines, tsv, labelled, objects, conllu, columns, text)}


def write(files: Files, folder: Path, packed: bool = False) -> tuple[list[str], list[str]]:
    """The files on disk; a line may hold bytes as \\udcxx, and \\udc00 for NUL."""
    for name, rows in files.items():
        data = "".join(f"{row}\n" for row in rows).encode("utf-8", "surrogateescape")
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(data) if packed else data)
    paths = [str(folder / (f"{name}.gz" if packed else name)) for name in files]
    train = [path for path in paths if Path(path).name.startswith("train")]
    return train, [path for path in paths if path not in train]
