"""Which engine computes a prediction: the fastest that can serve the request."""

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from saccade import config as c
from saccade.data.parallel import cores
from saccade.engines.ctranslate2 import CTranslate2Engine
from saccade.engines.export import unsupported
from saccade.engines.local import Engine, LocalEngine, Pending
from saccade.engines.processes import ProcessEngine
from saccade.errors import ConfigError
from saccade.nn.packed import packed, quantised
from saccade.nn.watch import watched
from saccade.tasks.generate import GeneratingTask
from saccade.tasks.task import Query, Request, Task

MAX_WORKERS_PER_CORE = 4
MIN_QUERIES = 32  # at once, for which packed weights and other processes are worth their making


class Engines:
    """The engines of one model: created lazily, and kept until `close`."""

    def __init__(self, task: Task, network: torch.nn.Module, exported: Callable[[], Path | None]):
        """`exported` gives the checked export in CTranslate2's format, if there is one."""
        self.task, self.network, self.exported = task, network, exported
        self._engines: dict[tuple[object, ...], Engine] = {}
        self._packed: dict[bool, torch.nn.Module] = {}  # by int8
        self._unsupported: str | None = (
            None  # why CTranslate2 cannot run this model, once it is known
        )

    def submit(self, queries: Sequence[Query], request: Request) -> Pending:
        """Start predictions with the best engine for the request and the number of queries."""
        return self.choose(request, len(queries)).submit(queries, request)

    def choose(self, request: Request, queries: int = 1) -> Engine:
        """The fastest engine that can serve a request of `queries` queries.

        A watched model is not copied, as watchers see only this process's modules.
        """
        decode = request.decode
        models = [self.network, *(member.network for member in request.others)]
        models += [] if request.model is None else [request.model.network]
        seen, on_cpu = watched(*models), _on_cpu(models)
        if decode.engine != "torch":
            reason = self._why_not_ctranslate2(request, seen, on_cpu)
            if not reason:
                return self._ctranslate2(decode.int8, _workers(decode))
            if decode.engine == "ctranslate2":
                raise ConfigError(f"decode.engine = 'ctranslate2': {reason}")
        if decode.int8 and watched(self.network):
            raise ConfigError(
                "decode.int8: attention is being recorded (saccade.watch), which 8-bit weights "
                "cannot do: leave one of the two out"
            )
        many = queries >= MIN_QUERIES
        pack = decode.int8 or (many and not seen)
        network = self.packed(decode.int8) if pack else self.network
        count = _workers(decode) or (cores() if many and sys.platform == "linux" else 1)
        if count > 1 and not seen and can_fork(*models):
            key: tuple[object, ...] = ("processes", decode.int8, pack, count)
            if key not in self._engines:
                self._engines[key] = ProcessEngine(self.task, network, count)
        else:
            key = ("local", decode.int8, pack)
            if key not in self._engines:
                self._engines[key] = LocalEngine(self.task, network)
        return self._engines[key]

    def packed(self, int8: bool) -> Any:
        """The network for inference alone, with weights packed for a CPU, or of 8 bits."""
        if int8 not in self._packed:
            if int8 and not _on_cpu([self.network]):
                device = next(self.network.parameters()).device.type
                raise ConfigError(
                    f"decode.int8: 8-bit weights are for a CPU, and the model is on {device!r}: "
                    "load it with device='cpu'"
                )
            self._packed[int8] = quantised(self.network) if int8 else packed(self.network)
        return self._packed[int8]

    def close(self) -> None:
        """End the processes and threads of the engines."""
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()

    def _why_not_ctranslate2(self, request: Request, seen: bool, on_cpu: bool) -> str:
        """Why CTranslate2 cannot serve a request; empty if it can."""
        if self._unsupported is None:
            self._unsupported = unsupported_task(self.task)
        if self._unsupported:
            return self._unsupported
        if seen:
            return "attention is being recorded (saccade.watch), which CTranslate2 cannot do"
        return unsupported_request(request, self.task) if on_cpu else "the model is not on a CPU"

    def _ctranslate2(self, int8: bool, workers: int) -> Engine:
        key = ("ctranslate2", int8, workers)
        if key not in self._engines:
            self._engines[key] = CTranslate2Engine(
                self.task, self.network, self.exported(), int8=int8, workers=workers or cores()
            )
        return self._engines[key]


def unsupported_task(task: Task) -> str:
    """Why CTranslate2 cannot run the model of a task; empty if it can."""
    if not isinstance(task, GeneratingTask):
        return f"the task '{task.config.task.kind}' does not search"
    if reason := unsupported(task.config):
        return reason
    try:
        import ctranslate2  # noqa: F401
    except ImportError:
        return "ctranslate2 is not installed: pip install 'saccade[fast]'"
    return ""


def unsupported_request(request: Request, task: Task) -> str:
    """Why CTranslate2 does not support a request; empty if it does."""
    decode = request.decode
    if decode.ctc or (decode.ctc is None and task.config.train.ctc):
        return "CTranslate2 does not support decode.ctc"
    if not isinstance(decode, c.Beam):
        return f"CTranslate2 does not support decode.kind = '{decode.kind}'"
    if request.details or request.others or request.model is not None:
        return "CTranslate2 does not support details, ensembles or decode.model"
    for key, field in c.Beam.model_fields.items():
        if key in c.PlainBeam.model_fields or key == "ctc":
            continue
        if getattr(decode, key) != field.default:
            return f"CTranslate2 does not support decode.{key}"
    if decode.length == "gnmt" and decode.alpha:
        return "CTranslate2 does not support decode.length = 'gnmt'"
    return ""


def _workers(decode: c.Decode | c.Exact) -> int:
    """The number of processes or threads in the settings, at most a few for each core."""
    return min(decode.workers, MAX_WORKERS_PER_CORE * cores()) if decode.workers else 0


def _on_cpu(models: Sequence[torch.nn.Module]) -> bool:
    return all(next(model.parameters()).device.type == "cpu" for model in models)


def can_fork(*models: torch.nn.Module) -> bool:
    """Whether forked processes can compute with these models."""
    return "fork" in multiprocessing.get_all_start_methods() and _on_cpu(models)
