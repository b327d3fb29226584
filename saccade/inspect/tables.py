"""Views of a run itself: its positional encodings and its embeddings."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.data.fields import Text
from saccade.errors import ConfigError, DataError
from saccade.inspect.packing import matrix, number
from saccade.models.encoders import LateFusion
from saccade.nn.attention import SelfAttention
from saccade.nn.positions import Learned, Relative, Sinusoidal
from saccade.nn.stems import Embedding
from saccade.runs.run import Run
from saccade.text.tokenizers import Tokenizer

POSITIONS = 64  # shown
POINTS = 300  # tokens in a projection, the most frequent


# --- positions ------------------------------------------------------------------------------------


def positions(run: Run, length: int = POSITIONS, part: str = "") -> dict[str, Any]:
    """The view: the vectors of positions as a matrix, and their Gram matrix.

    For rotary positions the matrix holds sines and cosines of the angles; for relative ones the
    biases of each head, and the second matrix is the mean bias. `part` is a module of the network,
    such as "encoder" or "decoder".
    """
    if not 1 <= length <= 4096:
        raise ConfigError(f"length {length}: from 1 to 4,096")
    found = [entry for entry in encodings(run.network, length) if entry[0].startswith(part)]
    if not found:
        raise ConfigError(
            "this network has no positional encoding"
            + (f" in its {part}" if part else "")
            + ": there is nothing to draw"
        )
    path, name, table, gram = found[0]
    return {
        "kind": "positions",
        "module": path,
        "type": name,
        "parts": [entry[0] for entry in found],
        "matrix": matrix(table),
        "gram": matrix(gram),
    }


def encodings(network: nn.Module, length: int) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """Each positional encoding in a network: its path, name, matrix, and Gram matrix."""
    with torch.no_grad():
        for path, module in network.named_modules():
            match module:
                case Sinusoidal():
                    table = module.table(length).float().cpu()[:length]
                    yield path, "sinusoidal", table, table @ table.T
                case Learned():
                    table = module.table.weight[module.skipped :][:length].float().cpu()
                    yield path, "learned", table, table @ table.T
                case Relative():
                    like = torch.zeros((), device=module.table.weight.device)
                    bias = module.bias(length, length, like)[0].float().cpu()  # (H, T, S)
                    yield path, "relative", bias[:, length // 2], bias.mean(0)
                case SelfAttention(rotary=True):
                    speeds = module.rotary_frequencies.speeds(module.head_dim, None)
                    angle = torch.arange(length)[:, None] * speeds
                    waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
                    yield path, "rotary", waves, waves @ waves.T


# --- embeddings -----------------------------------------------------------------------------------


def embeddings(run: Run, word: str = "", n: int = 10, points: int = POINTS) -> dict[str, Any]:
    """The view: the nearest neighbours of a token by cosine, and frequent tokens in two dimensions.

    The dimensions are the first two principal components.
    """
    if not 1 <= n <= 1000:
        raise ConfigError(f"n {n}: from 1 to 1,000")
    tokenizer, table = table_of(run)
    special = [*tokenizer.specials.ids]
    with torch.no_grad():
        rows = table.float().cpu()
        frequent = [i for i in range(len(rows)) if i not in set(special)][: max(points, 3)]
        places, shares = projected(rows[frequent])
        found: dict[str, Any] = {
            "kind": "embeddings",
            "word": word,
            "neighbours": [],
            "explained": [number(share) for share in shares],
            "points": [
                {"text": name, "x": number(x), "y": number(y)}
                for name, (x, y) in zip(tokenizer.tokens(frequent), places.tolist(), strict=True)
            ],
        }
        if word:
            index = index_of(tokenizer, word)
            cosines = torch.nn.functional.cosine_similarity(rows, rows[index][None])
            cosines[[index, *special]] = -2.0
            best = cosines.topk(min(n, len(rows) - len(special) - 1))
            names = tokenizer.tokens(best.indices.tolist())
            found["neighbours"] = [
                {"text": name, "similarity": number(value)}
                for name, value in zip(names, best.values.tolist(), strict=True)
            ]
    return found


def table_of(run: Run) -> tuple[Tokenizer, Float[Tensor, "V D"]]:
    """The tokenizer and embeddings of a run's first source of text, or else of its target."""
    task, network = run.task, run.network
    encoder = getattr(network, "encoder", None)
    texts = [field for field in task.fields if isinstance(field, Text)]
    if isinstance(encoder, nn.Module) and texts and not isinstance(encoder, LateFusion):
        for module in encoder.modules():
            if isinstance(module, Embedding) and module.num_embeddings == texts[0].size:
                return texts[0].tokenizer, module.weight
    for module in network.modules():
        for field in texts:
            if isinstance(module, Embedding) and module.num_embeddings == field.size:
                return field.tokenizer, module.weight
    raise ConfigError(f"a run of {run.config.task.title} has no embeddings of tokens")


def index_of(tokenizer: Tokenizer, word: str) -> int:
    """The id of a token as it is shown, or of a word that is a single token."""
    names = tokenizer.tokens(range(len(tokenizer)))
    if word in names:
        return names.index(word)
    for ids in tokenizer.encode([word, word.lower()]):
        if len(ids) == 1 and ids[0] not in tokenizer.specials.ids:
            return ids[0]
    pieces = tokenizer.tokens(tokenizer.encode([word])[0])
    unknown = tokenizer.specials.unk in tokenizer.encode([word])[0]
    hint = "" if unknown else f"; the model reads it as {' '.join(pieces)}: ask for one of these"
    raise DataError(f"{word!r} is not in the vocabulary{hint}")


def projected(rows: Float[Tensor, "n D"]) -> tuple[Float[Tensor, "n 2"], list[float]]:
    """Vectors in their first two principal components, and the shares of variance of these."""
    centred = rows - rows.mean(0)
    left, sizes, _ = torch.linalg.svd(centred, full_matrices=False)
    places = left[:, :2] * sizes[:2]
    places = places * places.gather(0, places.abs().argmax(0)[None]).sign()  # a fixed sign
    shares = sizes.square() / sizes.square().sum().clamp(min=1e-30)
    return places, shares[:2].tolist()
