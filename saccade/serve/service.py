"""What the routes share: the runs, the worker, the state of the server, and waiting for answers."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, TypeVar

from fastapi import Request as HttpRequest

from saccade.runs.run import Run
from saccade.serve.engine import Call, Engine, Predict, Stream, Work
from saccade.serve.metrics import Metrics
from saccade.serve.refusals import RequestError
from saccade.serve.served import Served
from saccade.serve.settings import ServeSettings
from saccade.tasks.pieces import Piece
from saccade.tasks.task import Prediction

State = Literal["loading", "ready", "draining"]
Result = TypeVar("Result")
VIEWS_KEPT = 8  # attention maps of the last inputs that were looked at


class Service:
    """The server without HTTP."""

    def __init__(self, settings: ServeSettings):
        self.settings = settings
        self.state: State = "loading"
        self.served: dict[str, Served] = {}
        self.languages: dict[str, tuple[str, str]] = {}  # of translators: source and target
        self.engine = Engine(settings.max_waiting, settings.max_waiting_tokens)
        self.metrics = Metrics(self.engine)
        self.turn = asyncio.Lock()
        self.active = 0  # requests that are accepted and not yet answered
        self.maps: OrderedDict[object, Any] = OrderedDict()

    def add(self, name: str, run: Run) -> None:
        """Serve a run."""
        self.served[name] = Served(name, run, self.settings)

    def run(self, name: str | None) -> Served:
        """The run of this name; of a server with one run it need not be named."""
        if name is None and len(self.served) == 1:
            return next(iter(self.served.values()))
        if name is not None and name in self.served:
            return self.served[name]
        known = ", ".join(sorted(self.served))
        problem = "which run is missing" if name is None else f"there is no run {name[:80]!r}"
        raise RequestError(404, "unknown_run", f"{problem}; served: {known}", "run")

    def close(self) -> None:
        self.engine.close()
        for served in self.served.values():
            served.close()

    # --- waiting ---

    async def predict(self, work: Predict, http: HttpRequest) -> list[Prediction]:
        """The predictions of work, unless it takes too long or the client goes away."""
        self.engine.submit(work)
        return await self._answer(work, asyncio.wrap_future(work.future), http)

    async def call(self, function: Callable[[], Result], http: HttpRequest, tokens: int) -> Result:
        """What a function returns that uses a model: the worker calls it."""
        work = Call(function=function, tokens=tokens, seconds=self.settings.seconds)
        self.engine.submit(work)
        return await self._answer(work, asyncio.wrap_future(work.future), http)

    async def _answer(
        self, work: Work, future: "asyncio.Future[Result]", http: HttpRequest
    ) -> Result:
        gone = asyncio.create_task(disconnected(http))
        try:
            left = max(work.deadline - asyncio.get_running_loop().time(), 0.001)
            both: set[asyncio.Future[Any]] = {future, gone}
            await asyncio.wait(both, timeout=left, return_when="FIRST_COMPLETED")
            if future.done():
                async with self.turn:  # one after the other, and others are read between them
                    await asyncio.sleep(0)
                return future.result()
            work.abandon()
            if gone.done():
                raise RequestError(499, "gone", "the client has gone")
            raise work.too_late()
        finally:
            work.abandon()
            gone.cancel()
            if future.done() and not future.cancelled():
                future.exception()  # seen
            else:
                future.add_done_callback(lambda late: late.cancelled() or late.exception())

    async def stream(self, work: Stream) -> AsyncIterator[list[Piece]]:
        """What comes, as it comes. Who leaves the loop abandons the work."""
        queue: asyncio.Queue[list[Piece] | Exception | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        work.emit = lambda some: _call_in(loop, queue.put_nowait, some)
        self.engine.submit(work)
        try:
            while True:
                try:
                    left = max(work.deadline - loop.time(), 0.0)
                    some = await asyncio.wait_for(queue.get(), left)
                except TimeoutError:
                    raise work.too_late() from None
                if some is None:
                    return
                if isinstance(some, Exception):
                    raise some
                yield some
        finally:
            work.abandon()

    def kept(self, key: object, make: Callable[[], Any]) -> Any:
        """What was made for this key, now or before: for the worker's thread alone."""
        if key not in self.maps:
            self.maps[key] = make()
        self.maps.move_to_end(key)
        while len(self.maps) > VIEWS_KEPT:
            self.maps.popitem(last=False)
        return self.maps[key]


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[Any], None], value: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, value)


async def disconnected(http: HttpRequest) -> None:
    """Returns when the client has gone."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
