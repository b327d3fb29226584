"""Sharded tensors on disk: every process writes and reads its own parts.

By torch.distributed.checkpoint, as safetensors with the place of each part: what four processes
wrote is read by two, or by one. Never pickle. torch's module is imported where it is used: it
takes half a second.
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
    """The full shape and the dtype of each tensor that is there."""
    if not (path / FOLDER).is_dir():
        return {}
    try:
        found = _reader(path).read_metadata().state_dict_metadata
    except Exception as error:  # safetensors and torch have no one class for a damaged file
        raise CheckpointError(f"{path / FOLDER}: cannot be read: {error}") from None
    return {name: (tuple(one.size), one.properties.dtype) for name, one in found.items()}


def read(path: Path, into: dict[str, Tensor]) -> None:
    """Read tensors, or this process's parts of them."""
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
    """Inside, torch does not warn about saving without other processes, which is intended."""
    logger = logging.getLogger("torch.distributed.checkpoint")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
