"""What the routes share: the runs, the worker, the server's state, and waiting for results."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, TypeVar

from fastapi import Request as HttpRequest

from saccade.runs.run import Run
from saccade.serve.engine import Call, Engine, Job, Predict, Stream
from saccade.serve.metrics import Metrics
from saccade.serve.refusals import RequestError, client_gone
from saccade.serve.served import Served
from saccade.serve.settings import ServeSettings
from saccade.tasks.pieces import Piece
from saccade.tasks.task import Prediction

State = Literal["loading", "ready", "draining"]
Result = TypeVar("Result")
CACHED_VIEWS = 8  # attention maps of the last inputs inspected


class Service:
    """The server without HTTP."""

    def __init__(self, settings: ServeSettings):
        self.settings = settings
        self.state: State = "loading"
        self.served: dict[str, Served] = {}
        self.languages: dict[str, tuple[str, str]] = {}  # of translators: source and target
        self.engine = Engine(settings.max_waiting, settings.max_waiting_tokens)
        self.metrics = Metrics(self.engine)
        self.response_turn = asyncio.Lock()
        self.active = 0  # requests accepted and not yet answered
        self.view_cache: OrderedDict[object, Any] = OrderedDict()

    def add(self, name: str, run: Run) -> None:
        """Serve a run."""
        self.served[name] = Served(name, run, self.settings)

    def run(self, name: str | None) -> Served:
        """The run of this name; the only run needs no name."""
        if name is None and len(self.served) == 1:
            return next(iter(self.served.values()))
        if name is not None and name in self.served:
            return self.served[name]
        names = ", ".join(sorted(self.served))
        problem = "which run is missing" if name is None else f"there is no run {name[:80]!r}"
        raise RequestError(404, "unknown_run", f"{problem}; served: {names}", "run")

    def close(self) -> None:
        self.engine.close()
        for served in self.served.values():
            served.close()

    # --- waiting for results ---

    async def predict(self, job: Predict, http: HttpRequest) -> list[Prediction]:
        """The predictions; RequestError past the deadline, or if the client disconnects."""
        self.engine.submit(job)
        return await self._result(job, asyncio.wrap_future(job.future), http)

    async def call(self, function: Callable[[], Result], http: HttpRequest, tokens: int) -> Result:
        """The result of a function that uses a model, called by the worker."""
        job = Call(function=function, tokens=tokens, seconds=self.settings.seconds)
        self.engine.submit(job)
        return await self._result(job, asyncio.wrap_future(job.future), http)

    async def _result(
        self, job: Job, future: "asyncio.Future[Result]", http: HttpRequest
    ) -> Result:
        disconnect = asyncio.create_task(disconnected(http))
        try:
            timeout = max(job.deadline - asyncio.get_running_loop().time(), 0.001)
            both: set[asyncio.Future[Any]] = {future, disconnect}
            await asyncio.wait(both, timeout=timeout, return_when="FIRST_COMPLETED")
            if future.done():
                # Results of a batch come all at once: between any two the loop reads new requests.
                async with self.response_turn:
                    await asyncio.sleep(0)
                return future.result()
            if disconnect.done():
                raise client_gone()
            raise job.deadline_error()
        finally:
            job.cancel()
            disconnect.cancel()
            # A late error is retrieved here, or asyncio would log it.
            future.add_done_callback(lambda late: late.cancelled() or late.exception())

    async def stream(self, job: Stream) -> AsyncIterator[list[Piece]]:
        """The pieces of a stream as they come; leaving the loop cancels it."""
        queue: asyncio.Queue[list[Piece] | Exception | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        job.emit = lambda item: _call_in(loop, queue.put_nowait, item)
        self.engine.submit(job)
        try:
            while True:
                try:
                    timeout = max(job.deadline - loop.time(), 0.0)
                    item = await asyncio.wait_for(queue.get(), timeout)
                except TimeoutError:
                    raise job.deadline_error() from None
                if item is None:
                    return
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            job.cancel()

    def cached_view(self, key: object, make: Callable[[], Any]) -> Any:
        """The view made for this key, now or before; for the worker's thread alone."""
        if key not in self.view_cache:
            self.view_cache[key] = make()
        self.view_cache.move_to_end(key)
        while len(self.view_cache) > CACHED_VIEWS:
            self.view_cache.popitem(last=False)
        return self.view_cache[key]


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[Any], None], value: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, value)


async def disconnected(http: HttpRequest) -> None:
    """Returns when the client has disconnected."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
