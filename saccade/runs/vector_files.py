"""A file of word vectors, word2vec's or GloVe's, as a run like those that word2vec trains."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from saccade import config as c
from saccade.data.fields import Lines
from saccade.data.vectors import read_vectors
from saccade.errors import DataError
from saccade.runs.importing import Converted
from saccade.tasks.vectors import WordVectors
from saccade.text.tokenizers import MAX_PIECE_CHARACTERS, Counts, Tokenizer

SUFFIXES = (".txt", ".vec", ".bin", ".gz")


def is_vectors(path: Path) -> bool:
    """Whether this is a file that may hold word vectors."""
    beside = path.parent.glob("tok*.bin") if path.suffix == ".bin" else ()  # else llama2.c's
    return path.is_file() and path.suffix in SUFFIXES and not any(beside)


def converted_vectors(path: Path) -> Converted:
    """A file of word vectors as a run."""
    words, vectors = read_vectors(path)
    kept = [i for i, word in enumerate(words) if is_word(word)]
    if not kept:
        raise DataError(f"{path}: there is no word in it without a blank inside")
    tokenizer = tokenizer_of([words[i] for i in kept])
    dim = vectors.shape[1]
    train = c.Train(optimizer="sparse", rate=0.025, schedule="linear", warmup=0, processes=1)
    config = c.Config(
        task=c.Pretrain(tokenizer=tokenizer.config, objective=c.SkipGram()),
        data=c.Data(format="text"),
        encoder=c.NoBody(dim=dim, dropout=0.0),
        train=train.model_copy(update={"clip": 0.0, "weight_decay": 0.0}),
    )
    rows = np.zeros((len(tokenizer), dim), np.float32)
    ids = tokenizer.encode([words[i] for i in kept])
    rows[[row[0] for row in ids]] = vectors[kept]

    def weight(name: str, shape: tuple[int, ...]) -> Iterator[Tensor]:
        yield torch.from_numpy(rows) if name.startswith("encoder.") else torch.zeros(shape)

    notes = [f"{path}: {len(kept):,} words, vectors of {dim} numbers"]
    if len(kept) < len(words):
        notes.append(f"{len(words) - len(kept):,} words with a blank inside, or too long: left out")
    return Converted(WordVectors(config, Lines(tokenizer)), weight, notes)


def is_word(word: str) -> bool:
    """Whether a word tokenizer gives this as one token."""
    return word.split() == [word] and len(word) <= MAX_PIECE_CHARACTERS


def tokenizer_of(words: list[str]) -> Tokenizer:
    """A word tokenizer with these words, in this order."""
    counts = Counts(c.Tokenizer(kind="word", size=len(words) + 16))
    counts.units = Counter({word: len(words) - i for i, word in enumerate(words)})
    return Tokenizer.from_counts(counts)
