"""The server's own routes, /api/v1: runs, predictions, scores and views."""

import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from functools import partial
from math import exp
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi import Request as HttpRequest
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from starlette.responses import StreamingResponse

from saccade.data.detect import is_media
from saccade.inspect.case import TooLargeError, at_most
from saccade.inspect.maps import AttentionMaps, attention_maps
from saccade.inspect.opening import open_case
from saccade.inspect.view import WITHOUT_INPUT, evaluating, sorted_options, view
from saccade.runs.run import Run
from saccade.serve.engine import Predict, Stream
from saccade.serve.refusals import RequestError, problem_with
from saccade.serve.served import Item, Served, finite
from saccade.serve.service import Service
from saccade.tasks.generate import GeneratingTask
from saccade.tasks.pieces import NO_CONTINUATION
from saccade.tasks.task import Prediction
from saccade.tasks.task import Query as TaskQuery

SELECTORS = ("layer", "head")  # options that choose from cached attention maps

Setting = bool | int | FiniteFloat | str | list[str] | None
Text = Annotated[str, Field(max_length=2_000_000)]
Input = Text | Annotated[list[Text], Field(min_length=1, max_length=4096)]
RunName = Annotated[str, Field(max_length=255)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PredictBody(Body):
    run: RunName | None = None
    inputs: Annotated[list[Input], Field(min_length=1)]
    settings: Annotated[dict[str, Setting], Field(max_length=64)] = {}
    nbest: Annotated[int, Field(ge=1, le=1000)] = 1
    prefixes: Text | list[Text] | None = None
    details: bool = False


class StreamBody(Body):
    run: RunName | None = None
    input: Input
    settings: Annotated[dict[str, Setting], Field(max_length=64)] = {}
    prefix: Text = ""


class ScoreBody(Body):
    run: RunName | None = None
    pairs: Annotated[list[Annotated[list[Text], Field(min_length=1)]], Field(min_length=1)]


class ViewOptions(BaseModel):
    """Options of views; any others are settings of the search."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, Setting]

    target: Text = ""
    prefix: Text = ""
    layer: int | None = None
    head: int | None = None
    ablate: bool = False
    thumbs: bool = True
    method: Annotated[str, Field(max_length=40)] = "gradient"
    position: int | None = None
    complete: bool = True
    alternatives: Annotated[int, Field(ge=0, le=50)] = 5
    word: Annotated[str, Field(max_length=200)] = ""
    n: Annotated[int, Field(ge=1, le=1000)] = 10


class InspectBody(Body):
    run: RunName | None = None
    kind: Annotated[str, Field(max_length=40)]
    input: Input = ""
    options: ViewOptions = ViewOptions()


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/api/v1")

    @routes.get("/runs")
    async def runs() -> dict[str, Any]:
        return {"runs": [served.describe() for served in service.served.values()]}

    @routes.post("/predict")
    async def predict(body: PredictBody, http: HttpRequest) -> dict[str, Any]:
        served = service.run(body.run)
        prefixes = body.prefixes if isinstance(body.prefixes, list) else None
        if prefixes is not None and len(prefixes) != len(body.inputs):
            message = f"{len(prefixes)} prefixes for {len(body.inputs)} inputs: give one for each"
            raise RequestError(422, "input", message, "prefixes")
        shared = body.prefixes if isinstance(body.prefixes, str) else ""
        prefixes = prefixes or [shared] * len(body.inputs)
        results = await answers(
            service, served, body.inputs, http, body.settings, body.nbest, body.details, prefixes
        )
        return {
            "predictions": [
                served.prediction(query, prediction, body.nbest) for query, prediction in results
            ]
        }

    @routes.post("/stream")
    async def stream(body: StreamBody, http: HttpRequest) -> StreamingResponse:
        served = service.run(body.run)
        stack = ExitStack()
        try:
            item = stack.enter_context(served.opened(body.input, "input"))
            job = stream_job(service, served, item, body.settings, prefix=body.prefix)
        except BaseException:
            stack.close()
            raise

        async def events() -> AsyncIterator[str]:
            text = prompt_of(served, body.input)
            with stack:
                async for pieces in service.stream(job):
                    for piece in pieces:
                        text += piece.text
                        if piece.end == "no continuation":
                            raise problem_with(NO_CONTINUATION, "settings")
                        if piece.text or not piece.end:
                            yield event({"token": piece.text, "log_p": finite(piece.log_p)})
                yield event({"done": True, "text": text})

        return await event_stream(events())

    @routes.post("/score")
    async def score(body: ScoreBody, http: HttpRequest) -> dict[str, Any]:
        served = service.run(body.run)
        rows, tokens = scored_rows(served, body.pairs)
        scores = await service.call(lambda: list(served.run.score(rows)), http, tokens)
        return {
            "scores": [
                {
                    "log_p": finite(log_p),
                    "tokens": count,
                    "perplexity": exp(min(-log_p / max(count, 1), 700.0)),
                }
                for log_p, count in scores
            ]
        }

    @routes.post("/inspect")
    async def inspect(body: InspectBody, http: HttpRequest) -> dict[str, Any]:
        served = service.run(body.run)
        served.check_settings(body.options.model_extra or {})
        with served.opened(body.input, "input") as item:
            if body.kind not in WITHOUT_INPUT:
                _, size = served.query(item, "input")
                if size > service.settings.max_view_tokens:
                    most = service.settings.max_view_tokens
                    message = f"{size:,} tokens: views are of {most:,} at most; shorten the input"
                    raise RequestError(413, "too_large", message, "input")
            return await service.call(partial(view_of, service, served, item, body), http, 64)

    @routes.get("/runs/{name}/curves")
    async def curves(name: RunName, http: HttpRequest) -> dict[str, Any]:
        served = service.run(name)
        from saccade.inspect.curves import METRICS, curves

        if not (served.run.folder / METRICS).is_file():
            message = "this run has no record of its training: there are no curves to draw"
            raise RequestError(422, "input", message, "run")
        return await service.call(lambda: curves([served.run]), http, 1)

    @routes.get("/runs/{name}/worst")
    async def worst(
        name: RunName, http: HttpRequest, n: Annotated[int, Query(ge=1, le=100)] = 20
    ) -> dict[str, Any]:
        served = service.run(name)
        from saccade.inspect.examples import worst

        return await service.call(lambda: worst(served.run, n), http, 1)

    @routes.get("/neighbours")
    async def neighbours(
        http: HttpRequest,
        word: Annotated[str, Query(max_length=200)],
        run: RunName | None = None,
        n: Annotated[int, Query(ge=1, le=100)] = 10,
    ) -> dict[str, Any]:
        served = service.run(run)
        return {"words": await service.call(lambda: served.vectors([word], n), http, 1)}

    @routes.get("/analogy")
    async def analogy(
        http: HttpRequest,
        a: Annotated[str, Query(max_length=200)],
        b: Annotated[str, Query(max_length=200)],
        c: Annotated[str, Query(max_length=200)],
        run: RunName | None = None,
        n: Annotated[int, Query(ge=1, le=100)] = 10,
    ) -> dict[str, Any]:
        served = service.run(run)
        return {"words": await service.call(lambda: served.vectors([a, b, c], n), http, 1)}

    return routes


async def answers(
    service: Service,
    served: Served,
    inputs: list[Any],
    http: HttpRequest,
    settings: dict[str, Any],
    nbest: int = 1,
    details: bool = False,
    prefixes: list[str] | None = None,
) -> list[tuple[TaskQuery, Prediction]]:
    """Each input as a query, with its prediction.

    An input that cannot be answered has a prediction with its problem; RequestError if none can.
    """
    if len(inputs) > service.settings.max_inputs:
        message = f"{len(inputs)} inputs: {service.settings.max_inputs} at once are the most"
        raise RequestError(413, "too_large", message, "inputs")
    request, seed = served.request(settings, nbest, details)
    job = Predict(
        model=served, key=(served.name, id(request)), queries=[], sizes=[], request=request,
        tokens=0, seconds=service.settings.seconds,
    )  # fmt: skip
    results: list[tuple[TaskQuery, Prediction]] = []
    answerable, refusals = [], []
    with ExitStack() as files:
        for i, item in enumerate(inputs):
            where = f"inputs.{i}"
            prefix = prefixes[i] if prefixes else ""
            try:
                opened = files.enter_context(served.opened(item, where))
                query, size = served.query(
                    opened, where, number=i, prefix=prefix, seed=seed, stopped=job.cancelled
                )
            except RequestError as refusal:
                refusals.append(refusal)
                problem = Prediction("", 0.0, problem=refusal.message)
                results.append((TaskQuery(("",)), problem))
                continue
            results.append((query, Prediction("", 0.0)))
            answerable.append(i)
            job.queries.append(query)
            job.sizes.append(size)
            job.tokens += size
        predictions = await service.predict(job, http) if job.queries else []
    for i, query, prediction in zip(answerable, job.queries, predictions, strict=True):
        results[i] = query, prediction
        if prediction.problem:
            refusals.append(problem_with(prediction.problem, f"inputs.{i}"))
    if len(refusals) == len(inputs):
        raise refusals[0]
    return results


def stream_job(
    service: Service,
    served: Served,
    item: Item,
    settings: dict[str, Any],
    *,
    prefix: str = "",
    count: int = 1,
    alternatives: int = 0,
    where: str = "input",
) -> Stream:
    """A job that streams one or more texts; RequestError for a run that cannot stream."""
    if not isinstance(served.task, GeneratingTask):
        kind = served.run.config.task.kind
        raise RequestError(
            422, "settings", f"a run of '{kind}' does not write piece by piece", "run"
        )
    settings = {"kind": "beam", "width": 1} | settings if "kind" not in settings else settings
    request, seed = served.request(settings)
    job = Stream(
        model=served, key=(served.name, id(request), alternatives), queries=[], size=0,
        request=request, alternatives=alternatives, emit=lambda _: None,
        seconds=service.settings.seconds,
    )  # fmt: skip
    for number in range(count):
        query, job.size = served.query(
            item, where, number=number, prefix=prefix, seed=seed,
            stopped=partial(job.stopped, number),
        )  # fmt: skip
        job.queries.append(query)
    job.tokens = job.size * count
    return job


def scored_rows(served: Served, pairs: list[list[str]]) -> tuple[list[tuple[str, ...]], int]:
    """Rows of sources and a target, and their number of tokens; RequestError for a file's name."""
    if len(pairs) > served.settings.max_inputs:
        message = f"{len(pairs)} pairs: {served.settings.max_inputs} at once are the most"
        raise RequestError(413, "too_large", message, "pairs")
    tokens, rows = 0, []
    for i, pair in enumerate(pairs):
        where = f"pairs.{i}"
        if served.task.reads_media and any(is_media(text) for text in pair):
            raise RequestError(422, "input", "files are not read: send numbers", where)
        _, size = served.query(pair[:-1] or pair, where)
        if len(pair) > 1:
            size += served.target_size(pair[-1], where)
        tokens += size
        rows.append(tuple(pair))
    return rows, tokens


def prompt_of(served: Served, item: Item) -> str:
    """What an answer begins with: the input, where a language model continues it."""
    return item if served.completes_text and isinstance(item, str) else ""


def view_of(service: Service, served: Served, item: Item, body: InspectBody) -> dict[str, Any]:
    """A view of an input; called by the worker. RequestError if its output is too large."""
    try:
        with at_most(service.settings.max_view_tokens):
            return _view_of(service, served, item, body)
    except TooLargeError as error:
        raise RequestError(413, "too_large", str(error), "options") from None


def _view_of(service: Service, served: Served, item: Item, body: InspectBody) -> dict[str, Any]:
    settings = body.options.model_extra or {}
    options = body.options.model_dump(exclude_unset=True, exclude=set(settings))
    if body.kind != "attention":
        return view(served.run, item, body.kind, settings=settings, **options)
    options, settings = sorted_options(served.run, body.kind, settings | options)
    thumbs = options.pop("thumbs", True)
    selected = {name: options.pop(name) for name in SELECTORS if name in options}
    key = json.dumps([served.name, body.input, options, settings], sort_keys=True)
    maps = service.cached_view(key, lambda: maps_of(served.run, item, settings, **options))
    shown: dict[str, Any] = maps.view(**selected)
    return shown if thumbs else {name: shown[name] for name in shown if name != "modules"}


def maps_of(
    run: Run,
    item: Item,
    settings: dict[str, Any],
    target: str = "",
    prefix: str = "",
    ablate: bool = False,
) -> AttentionMaps:
    """The attention of an input, in all layers and heads."""
    with evaluating(run.network):
        return attention_maps(open_case(run, item, target, settings, prefix), ablate)


def event(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


async def event_stream(events: AsyncIterator[str]) -> StreamingResponse:
    """Server-sent events; an error before the first is an HTTP status, a later one an event."""
    try:
        first = await anext(events, "")
    except BaseException:
        await events.aclose()  # type: ignore[attr-defined]
        raise

    async def rest() -> AsyncIterator[str]:
        yield first
        try:
            async for item in events:
                yield item
        except RequestError as refusal:
            yield event(refusal.body)
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    return StreamingResponse(rest(), media_type="text/event-stream")
