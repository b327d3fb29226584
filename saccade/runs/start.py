"""Transfer learning: which weights of another run a new network starts from.

Parts fit by name and shape; embeddings and output layers only if the vocabulary is the same. The
transferred weights are kept in the new run (`start.safetensors`), so it does not need the other.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from saccade import config as c
from saccade.data.corpora import Column, Corpus
from saccade.data.digest import digest
from saccade.data.kinds import Vocabularies
from saccade.errors import CheckpointError, ConfigError
from saccade.models.build import materialize
from saccade.models.networks import Network
from saccade.nn.lora import ADAPTERS
from saccade.runs import files
from saccade.runs.folder import read_config
from saccade.runs.guard import read_header, require_shapes
from saccade.runs.run import Run, load
from saccade.setup.start import origins
from saccade.tasks.task import Task

START_WEIGHTS = "start.safetensors"
MAX_NAMES = 8  # of parts, in a message
MAX_UNKNOWN = 0.02  # of the tokens, without a warning
# An encoder's names by the number of its sources, and those of a decoder that becomes an encoder.
ONE_SOURCE = (
    (r"^encoder\.stems\.\d+\.", "encoder.stem."),
    (r"^encoder\.encoders\.\d+\.", "encoder."),
)
SEVERAL = ((r"^encoder\.stem\.", "encoder.stems.0."), (r"^encoder\.", "encoder.encoders.0."))
FROM_DECODER = (
    (r"^encoder\.stem\.embedding\.", "decoder.embedding."),
    (r"^encoder\.body\.layers\.", "decoder.layers."),
    (r"^encoder\.body\.", "decoder.stack."),
)


def pretrained_config(raw: Mapping[str, Any], where: str) -> c.Config | None:
    """The settings of the run that these settings start from, if they start from one."""
    start = raw.get("start")
    if start is None:
        return None
    if not isinstance(start, dict) or not isinstance(start.get("run"), str):
        raise ConfigError(f"{where}: start: needs a key 'run', the folder of the run to start from")
    try:
        return read_config(Path(start["run"]))
    except CheckpointError as error:
        raise ConfigError(f"{where}: start.run: {error}") from None


def pretrained_run(start: c.Start) -> tuple[Run, str]:
    """The run to start from, checked as any other, and the digest of its weights."""
    folder = Path(start.run)
    try:
        run = load(folder, "cpu", ensemble=False)
        found = digest(folder / "model.safetensors")
    except CheckpointError as error:
        raise ConfigError(f"start.run: {error}") from None
    if start.digest not in ("", found):
        raise ConfigError(
            f"start.digest: the weights of {folder} are {found[:12]}..., and not "
            f"{start.digest[:12]}...: name the run that is meant, or remove the key"
        )
    return run, found


class TransferredWeights(NamedTuple):
    """The weights that a new network starts from, by their names in it, and a report."""

    weights: dict[str, Tensor]
    report: list[str]


def transfer_weights(
    config: c.Config, run: Run, given: Vocabularies, network: Network
) -> TransferredWeights:
    """The weights of a run that fit a new network, which may be on the meta device."""
    assert config.start is not None
    part_of = origins(config.task.parts, run.config)
    if isinstance(config.head, c.PerToken) and isinstance(run.config.head, c.PerToken):
        part_of |= {"head": "head"}  # any other is new: its labels mean something else
    old_weights = dict(run.network.named_parameters(remove_duplicate=False))
    transferred: dict[str, Tensor] = {}
    taken_ids: set[int] = set()
    names: dict[int, list[str]] = {}  # of each weight: one that is shared has several
    parameters = dict(network.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), []).append(name)
    for shared_names in names.values():
        for old in (old for name in shared_names for old in candidate_names(name, part_of, given)):
            if old in old_weights and old_weights[old].shape == parameters[shared_names[0]].shape:
                transferred[shared_names[0]] = old_weights[old].detach()
                taken_ids.add(id(old_weights[old]))
                break
    first = {shared_names[0] for shared_names in names.values()}
    new = {name for name in first - transferred.keys() if name.rpartition(".")[2] not in ADAPTERS}
    where = config.start.run
    if not transferred:
        raise ConfigError(f"start.run: no weight of {where} fits the new network")
    if not new and isinstance(config.start, c.Frozen):
        raise ConfigError(
            f"start.kind: all of the network is in {where}, so that nothing would learn: use "
            "whole, gradual or lora"
        )
    stored = dict(run.network.named_parameters())
    unused = {name for name, parameter in stored.items() if id(parameter) not in taken_ids}
    taken = {name for name, parameter in stored.items() if id(parameter) in taken_ids}
    vocabulary = given.target or next(filter(None, given.sources), None)
    read = "" if vocabulary is None else f"a vocabulary of {len(vocabulary):,}, "
    report = [f"taken from {where}: {read}{summary_of(taken, unused, stored)}"]
    report += [f"new: {summary_of(new, transferred, parameters)}"] if new else []
    report += [f"left in {where}: {summary_of(unused, taken, stored)}"] if unused else []
    return TransferredWeights(transferred, report)


def unknown(task: Task, given: Vocabularies, corpus: Corpus, run: str) -> list[str]:
    """A warning for each column with many tokens unknown to the vocabulary it was given."""
    columns = [*zip(task.sources, corpus.sources, given.sources, strict=False)]
    columns += [(task.target, corpus.target, given.target)]
    lines = []
    for field, column, vocabulary in columns:
        if vocabulary is not None and isinstance(column, Column) and len(column.ids):
            share = float((column.ids == field.inventory.unk).mean())
            if share > MAX_UNKNOWN:
                lines.append(
                    f"{share:.0%} of the tokens are unknown to the vocabulary of {run}: start from "
                    "a run whose vocabulary is of pieces or bytes, or of like text"
                )
    return lines


def candidate_names(name: str, part_of: Mapping[str, str], given: Vocabularies) -> Iterator[str]:
    """The possible names in the run of a weight of the new network, the likeliest first."""
    part = name.partition(".")[0]
    if part not in part_of or not _same_vocabulary(name, given):
        return
    if part_of[part] == part:
        yield name
        if part == "encoder":
            yield _renamed(name, ONE_SOURCE)
            yield from (re.sub(old, new, name) for old, new in SEVERAL)
        return
    yield _renamed(_renamed(name, ONE_SOURCE), FROM_DECODER)


def _renamed(name: str, rules: Collection[tuple[str, str]]) -> str:
    for old, new in rules:
        if re.search(old, name):
            return re.sub(old, new, name)
    return name


def _same_vocabulary(name: str, given: Vocabularies) -> bool:
    """Whether a weight does not depend on the vocabulary, or both networks have the same."""
    if read := re.match(r"encoder\.(?:stems\.|encoders\.)?(\d*)\.?(?:stem\.)?embedding\.", name):
        return given.of_source(int(read[1] or 0)) is not None
    of_target = name.startswith(("decoder.embedding.", "decoder.output.", "head.output."))
    return not of_target or given.target is not None


def summary_of(some: Collection[str], others: Collection[str], all_of: Mapping[str, Tensor]) -> str:
    """Names of weights as the largest parts without any of `others`, and the number of weights."""
    numbers = sum(all_of[name].numel() for name in some)
    parts: list[str] = []
    for name in sorted(some):
        if not any(name == part or name.startswith(f"{part}.") for part in parts):
            parts.append(next(p for p in prefixes(name) if _is_disjoint(p, others)))
    more = f" and {len(parts) - MAX_NAMES} more" if len(parts) > MAX_NAMES else ""
    return f"{', '.join(parts[:MAX_NAMES])}{more} ({numbers:,} weights)"


def prefixes(name: str) -> Iterator[str]:
    """A name's parts, from the largest to itself."""
    words = name.split(".")
    return (".".join(words[:n]) for n in range(1, len(words) + 1))


def _is_disjoint(part: str, others: Collection[str]) -> bool:
    return not any(name == part or name.startswith(f"{part}.") for name in others)


# --- in the new run -------------------------------------------------------------------------------


def save_transferred(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Write the transferred weights into the new run."""
    files.save_weights(folder / START_WEIGHTS, weights)


def transferred_names(config: c.Config, folder: Path) -> frozenset[str]:
    """The names of the weights that a run started from."""
    if config.start is None and not config.data.vectors:
        return frozenset()
    return frozenset(read_header(folder / START_WEIGHTS).tensors)


def first_weights(network: Network, config: c.Config, folder: Path) -> Network:
    """A run's network, moved from the meta device, with its initial weights."""
    network = materialize(network, config.seed)
    names = transferred_names(config, folder)
    if names:
        own = {name: weight for name, weight in files.weights_of(network).items() if name in names}
        header = read_header(folder / START_WEIGHTS)
        shapes = {name: entry["shape"] for name, entry in header.tensors.items()}
        require_shapes(shapes, own, folder / START_WEIGHTS)
        files.load_into(folder / START_WEIGHTS, own)
    return network
