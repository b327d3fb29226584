"""Word vectors in and out of runs: export to word2vec's format, and pretrained embeddings."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from saccade.data.corpora import Array
from saccade.data.fields import Text
from saccade.data.vectors import read_vectors, write_vectors
from saccade.errors import ConfigError
from saccade.models.networks import Network
from saccade.models.vectors import WordVectors as VectorNetwork
from saccade.runs.failures import writing
from saccade.tasks.task import Task
from saccade.tasks.vectors import WordVectors
from saccade.text.tokenizers import Tokenizer


def export_vectors(task: WordVectors, network: VectorNetwork, path: Path) -> Path:
    """Write the vectors of a run in word2vec's format: binary where the name ends with .bin."""
    ids = task.words
    words = task.tokenizer.tokens(ids)
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_vectors(path, words, network.vectors.detach().cpu().numpy()[ids])
    return path


def vectors_in(path: str | os.PathLike[str]) -> tuple[list[str], Array]:
    """The words and vectors of a file, or of a run of word2vec's."""
    from saccade.runs.run import load

    if not Path(path).is_dir():
        if not Path(path).is_file():
            raise ConfigError(f"{path}: no such file, and no run, of word vectors")
        return read_vectors(path)
    run = load(path, "cpu")
    if not isinstance(run.task, WordVectors) or not isinstance(run.network, VectorNetwork):
        kind = run.config.task.kind
        raise ConfigError(
            f"{path}: a run of the task '{kind}', which has no vectors of words: name one that was "
            "trained with task.objective = 'skipgram' or 'cbow', or a file of vectors"
        )
    ids = run.task.words
    return run.task.tokenizer.tokens(ids), run.network.vectors.detach().numpy()[ids]


def initial_embeddings(
    task: Task, network: Network, path: str
) -> tuple[dict[str, Tensor], list[str]]:
    """The embedding tables initialised with known vectors, by their names, and a report."""
    words, vectors = vectors_in(path)
    known = {name: tuple(weight.shape) for name, weight in network.named_parameters()}
    torch.manual_seed(task.config.seed)
    tables: dict[str, Tensor] = {}
    report = []
    for name, tokenizer in embedding_tables(task):
        if name in known and known[name][1] == vectors.shape[1]:
            table = torch.randn(known[name]) * known[name][1] ** -0.5
            count = fill_table(table, tokenizer, words, vectors)
            tables[name] = table
            report.append(f"{name}: {count:,} of {len(table):,} vectors are from {path}")
    if not tables:
        wide = sorted({known[name][1] for name, _ in embedding_tables(task) if name in known})
        raise ConfigError(
            f"data.vectors: {path} has vectors of {vectors.shape[1]} numbers, and no table of "
            f"embeddings is as wide ({', '.join(map(str, wide)) or 'there is none'}): set dim = "
            f"{vectors.shape[1]}"
        )
    return tables, report


def embedding_tables(task: Task) -> Iterator[tuple[str, Tokenizer]]:
    """The possible names of the embedding tables of a network, with their tokenizers."""
    for i, source in enumerate(task.sources):
        if isinstance(source, Text):
            for name in ("stem", f"stems.{i}", f"encoders.{i}.stem"):
                yield f"encoder.{name}.embedding.weight", source.tokenizer
    if isinstance(task.target, Text):
        for name in ("decoder.embedding.weight", "encoder.stem.embedding.weight"):
            yield name, task.target.tokenizer


def fill_table(table: Tensor, tokenizer: Tokenizer, words: list[str], vectors: Array) -> int:
    """Put known vectors into the rows of an embedding table; their number.

    They are scaled to the mean square of the initial rows, which the network expects.
    """
    place = {word: i for i, word in enumerate(words)}
    lower = {word.lower(): i for i, word in reversed(list(enumerate(words)))}
    special = {*tokenizer.inventory.special}
    rows, word_rows = [], []
    for i, piece in enumerate(tokenizer.tokens(range(len(tokenizer)))):
        word = piece.removesuffix("</w>").removeprefix("▁")
        if i not in special and (row := place.get(word, lower.get(word.lower()))) is not None:
            rows.append(i)
            word_rows.append(row)
    if rows:
        known = torch.from_numpy(vectors[word_rows])
        size = table.square().mean().sqrt() / known.square().mean().sqrt().clamp(min=1e-12)
        table[torch.tensor(rows)] = known * size
    return len(rows)


def default_path(folder: Path) -> Path:
    """The default file for the vectors of a run."""
    return folder / "vectors.txt"
