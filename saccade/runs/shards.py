"""Tensors that are in parts in several processes, on disk: every process writes and reads its own.

By torch.distributed.checkpoint, as safetensors with where each part belongs: what was written by
four processes is read by two, or by one. Never pickle.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import Tensor

from saccade.errors import CheckpointError

FOLDER = "shards"  # in a checkpoint


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the parts of tensors into a checkpoint's folder; for all processes at once."""
    writer = dcp.HuggingFaceStorageWriter(str(path / FOLDER), save_distributed=True)
    with _quietly():
        dcp.save(dict(tensors), storage_writer=writer)


def shapes(path: Path) -> dict[str, Any]:
    """The whole shape and number format of each tensor whose parts are there."""
    if not (path / FOLDER).is_dir():
        return {}
    try:
        found = _reader(path).read_metadata().state_dict_metadata
    except Exception as error:  # whatever safetensors and torch make of a damaged file
        raise CheckpointError(f"{path / FOLDER}: cannot be read: {error}") from None
    return {name: (tuple(one.size), one.properties.dtype) for name, one in found.items()}


def read(path: Path, into: dict[str, Tensor]) -> None:
    """Read tensors, or the parts of them that are this process's."""
    try:
        with _quietly():
            dcp.load(into, storage_reader=_reader(path), no_dist=True)
    except Exception as error:
        raise CheckpointError(f"{path / FOLDER}: cannot be read: {error}") from None


def _reader(path: Path) -> Any:
    return dcp.HuggingFaceStorageReader(str(path / FOLDER))


@contextmanager
def _quietly() -> Iterator[None]:
    """Inside, torch does not say that it is saving without other processes, as it should."""
    logger = logging.getLogger("torch.distributed.checkpoint")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
