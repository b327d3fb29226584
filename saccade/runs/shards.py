"""Tensors that are in parts in several processes, on disk: every process writes and reads its own.

By torch.distributed.checkpoint, as safetensors with where each part belongs: what was written by
four processes is read by two, or by one. Never pickle. torch's module is imported where it is
used: it takes half a second.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from saccade.errors import CheckpointError

FOLDER = "shards"  # in a checkpoint


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the parts of tensors into a checkpoint's folder; for all processes at once."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(path / FOLDER), save_distributed=True)
    with _quietly():
        save(dict(tensors), storage_writer=writer)


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
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with _quietly():
            load(into, storage_reader=_reader(path), no_dist=True)
    except Exception as error:
        raise CheckpointError(f"{path / FOLDER}: cannot be read: {error}") from None


def _reader(path: Path) -> Any:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    return HuggingFaceStorageReader(str(path / FOLDER))


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
