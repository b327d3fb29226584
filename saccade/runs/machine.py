"""The machine under a run: its device, its number format, and its memory allocator."""

import ctypes
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from saccade import config as c
from saccade.errors import ConfigError
from saccade.tasks.generate import GeneratingTask, hypotheses_of
from saccade.tasks.task import Request

PRIMITIVES_KEPT = 32  # by oneDNN, instead of 1024


@cache
def tune_malloc() -> bool:
    """Tell glibc to keep freed memory; else every step pays the page faults of all its big tensors.

    Worth 1.3 to 1.8 times the speed of training on a CPU. It holds for the whole process, so only
    training and the command line ask for it. Elsewhere than on glibc nothing happens.

    Then nothing small that lives long may be allocated between the big tensors: the heap would
    fragment, and grow with every step. oneDNN keeps a primitive for every shape that an LSTM has
    seen, so it is told to keep few; making one anew takes a quarter of a millisecond.
    """
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return False
    # read when the first primitive is made
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(PRIMITIVES_KEPT))
    mallopt = ctypes.CDLL(None).mallopt
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
    done = [
        mallopt(m_mmap_max, 0),
        mallopt(m_trim_threshold, 2**31 - 1),
        mallopt(m_top_pad, 1 << 26),
    ]
    return all(done)


Device = Literal["auto", "cpu", "cuda", "mps"]


def choose_device(wanted: Device) -> torch.device:
    """The device asked for, or the best there is."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    match wanted:
        case "cuda" if not cuda:
            raise ConfigError("device: no CUDA device is available; use 'auto' or 'cpu'")
        case "mps" if not mps:
            raise ConfigError("device: no MPS device is available; use 'auto' or 'cpu'")
        case "auto":
            return torch.device("cuda" if cuda else "mps" if mps else "cpu")
        case name:
            return torch.device(name)


def memory_of(device: torch.device) -> int | None:
    """The bytes of memory of a device, or as many as this process is allowed; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = []
    with suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of a container
        with suppress(OSError, ValueError):  # "max" is not a number
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(limits, default=None)


def require_memory(network: nn.Module, config: c.Config, device: torch.device) -> None:
    """ConfigError if the memory is too small to train a network; it may be on the meta device."""
    count, train = sum(parameter.numel() for parameter in network.parameters()), config.train
    copies = 2 + train.moments + bool(train.average)  # the weights, their gradients, ...
    if isinstance(config.start, c.Frozen | c.LowRank):  # few parameters are trained
        copies = 1
    needed, memory = 4 * count * copies, memory_of(device)
    if memory is not None and needed > memory:
        raise ConfigError(
            f"the network has {count:,} parameters: to train them takes {needed / 1e9:,.1f} GB "
            f"(weights, gradients and what {train.optimizer} keeps), and there are "
            f"{memory / 1e9:,.1f} GB of memory: lower dim, num_layers or ff_dim, or the size of "
            "the vocabulary"
        )


def require_search_memory(task: GeneratingTask, request: Request, device: torch.device) -> None:
    """ConfigError if the memory is too small for the search of one input, at its longest."""
    decode, count, decoder = request.decode, hypotheses_of(request), task.config.decoder
    numbers = 4 * len(task.output)  # the scores of the next token, and copies of them
    if isinstance(decoder, c.Transformer):  # the KV cache
        numbers += 2 * decoder.num_layers * decoder.dim * min(decode.max_len, task.target_positions)
    elif decoder is not None:
        numbers += 8 * decoder.num_layers * decoder.dim
    needed, memory = 4 * count * numbers, memory_of(device)
    if memory is not None and needed > memory:
        raise ConfigError(
            f"{count:,} hypotheses of up to {decode.max_len:,} tokens take {needed / 1e9:,.1f} GB, "
            f"and there are {memory / 1e9:,.1f} GB of memory: lower decode.width, "
            "decode.candidates or decode.max_len"
        )


def choose_precision(train: c.Train, device: torch.device) -> torch.dtype:
    """The number format of the configuration; "auto" is half precision where it is faster."""
    match train.precision:
        case "fp32":
            return torch.float32
        case "bf16":
            return torch.bfloat16
        case "fp16":
            if device.type == "cpu":
                raise ConfigError(
                    "train.precision: fp16 is not supported on CPU; use 'auto' or 'fp32'"
                )
            return torch.float16
        case "auto":
            fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
            return torch.bfloat16 if fast else torch.float32


LONG_ENOUGH_SECONDS = 120.0  # of training, from which on a search for the fastest way pays
# The speed-up that several processes, and half precision, need to be chosen.
PROCESSES_GAIN, HALF_GAIN = 1.05, 1.15
BUSY_SLOWDOWN = 1.12  # of a core while the others work, too
EXCHANGE_NANOSECONDS = 0.6  # for each weight, of one core, measured
MESSAGES_SECONDS = 0.001  # for the control messages of processes in a step


def exchange_seconds(weights: int) -> float:
    """The seconds that the processes of one machine take to exchange the gradients of a step."""
    return 1e-9 * EXCHANGE_NANOSECONDS * weights + MESSAGES_SECONDS


def has_half_products() -> bool:
    """Whether the processor multiplies in bf16 faster than in fp32 (AVX512-BF16, AMX)."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def precisions(train: c.Train) -> list[str]:
    """The possible number formats: the configured one, or those that the processor supports."""
    if train.precision != "auto":
        return [train.precision]
    single = train.optimizer == "sparse" or not has_half_products()  # word vectors are fp32
    return ["fp32"] if single else ["fp32", "bf16"]


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocator has failed; on a CPU torch raises a plain RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    message = str(error).lower()
    return any(words in message for words in ("allocate memory", "out of memory", "enough memory"))
