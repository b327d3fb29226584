"""OpenAI's routes, for language models: /v1/models and /v1/completions."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from saccade.serve.engine import Stream
from saccade.serve.native import Text, event, event_stream, stream_work
from saccade.serve.refusals import RequestError, problem_with
from saccade.serve.served import Served, finite
from saccade.serve.service import Service, disconnected
from saccade.tasks.generate import GeneratingTask
from saccade.tasks.pieces import NO_WAY_ON, Piece

DONE = "data: [DONE]\n\n"
Penalty = Annotated[FiniteFloat, Field(ge=-2.0, le=2.0)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class CompletionBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(max_length=255)]
    prompt: Text | Annotated[list[Text], Field(min_length=1, max_length=16)]
    max_tokens: Annotated[int, Field(ge=1)] | None = 16
    temperature: Annotated[FiniteFloat, Field(ge=0.0, le=2.0)] | None = 1.0
    top_p: Annotated[FiniteFloat, Field(ge=0.0, le=1.0)] | None = 1.0
    n: Annotated[int, Field(ge=1, le=16)] | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = False
    stop: Text | Annotated[list[Text], Field(max_length=4)] | None = None
    seed: int | None = None
    user: Annotated[str, Field(max_length=1000)] | None = None
    # taken where they change nothing, and refused where they would
    best_of: Annotated[int, Field(ge=1, le=16)] | None = None
    presence_penalty: Penalty | None = 0.0
    frequency_penalty: Penalty | None = 0.0
    logit_bias: dict[str, FiniteFloat] | None = None
    suffix: Annotated[str, Field(max_length=1000)] | None = None


@dataclass(slots=True)
class Choice:
    """One text on its way: what was said, and what a client may already see of it."""

    index: int
    echo: str = ""  # the prompt, until it is shown before the first piece
    shown: str = ""  # what the client has
    held: str = ""  # that may be the beginning of a stop sequence
    tokens: int = 0
    reason: str | None = None
    ids: list[int] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)  # of tokens not yet shown


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["OpenAI"])
    began = int(time.time())

    def record(served: Served) -> dict[str, Any]:
        return {"id": served.name, "object": "model", "created": began, "owned_by": "saccade"}

    @routes.get("/models")
    async def models() -> dict[str, Any]:
        found = [record(one) for one in service.served.values() if one.completes_text]
        return {"object": "list", "data": found}

    @routes.get("/models/{name}")
    async def model(name: Annotated[str, Field(max_length=255)]) -> dict[str, Any]:
        return record(service.run(name))

    @routes.post("/completions")
    async def completions(body: CompletionBody, http: HttpRequest) -> Any:
        served = service.run(body.model)
        if not served.completes_text:
            message = f"{served.name}: is no language model; ask /api/v1/predict"
            raise RequestError(422, "settings", message, "model")
        completion = Completion(service, served, body)
        if body.stream:
            return await event_stream(completion.events())
        return await completion.whole(http)

    return routes


class Completion:
    """The answer to one request: `n` texts for each prompt."""

    def __init__(self, service: Service, served: Served, body: CompletionBody):
        refuse_unserved(body)
        self.service, self.served, self.body = service, served, body
        self.id, self.created = f"cmpl-{secrets.token_hex(12)}", int(time.time())
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        self.stop = [text for text in stop if text]
        self.count = body.n or 1
        settings = settings_of(body)
        self.works: list[Stream] = []
        self.choices: list[list[Choice]] = []
        for i, prompt in enumerate(prompts):
            where = "prompt" if isinstance(body.prompt, str) else f"prompt.{i}"
            work = stream_work(
                service, served, prompt, settings, count=self.count,
                alternatives=body.logprobs or 0, where=where,
            )  # fmt: skip
            self.works.append(work)
            first = i * self.count
            self.choices.append([Choice(first + n) for n in range(self.count)])
            if body.echo:
                for choice in self.choices[-1]:
                    choice.echo = prompt

    async def whole(self, http: HttpRequest) -> dict[str, Any]:
        """The answer in one piece."""
        texts: dict[int, str] = {}
        logs: dict[int, list[dict[str, Any]]] = {}
        gone = asyncio.create_task(disconnected(http))
        steps = self._steps()
        try:
            while True:
                step = asyncio.ensure_future(anext(steps, None))
                await asyncio.wait({step, gone}, return_when="FIRST_COMPLETED")
                if not step.done():
                    step.cancel()
                    raise RequestError(499, "gone", "the client has gone")
                if (found := step.result()) is None:
                    break
                choice, text, some = found
                texts[choice.index] = texts.get(choice.index, "") + text
                logs.setdefault(choice.index, []).extend(some)
        finally:
            gone.cancel()
            for work in self.works:
                work.abandon()
            await steps.aclose()  # type: ignore[attr-defined]
        flat = [choice for some in self.choices for choice in some]
        said = [
            self._choice(choice, texts.get(choice.index, ""), logs.get(choice.index, []))
            for choice in flat
        ]
        return self._envelope(said) | {"usage": self._usage()}

    async def events(self) -> AsyncIterator[str]:
        """The answer as server-sent events."""
        steps = self._steps()
        try:
            async for choice, text, logs in steps:
                yield event(self._envelope([self._choice(choice, text, logs)]))
        finally:
            for work in self.works:
                work.abandon()
            await steps.aclose()  # type: ignore[attr-defined]
        if self.body.stream_options and self.body.stream_options.include_usage:
            yield event(self._envelope([]) | {"usage": self._usage()})
        yield DONE

    async def _steps(self) -> AsyncIterator[tuple[Choice, str, list[dict[str, Any]]]]:
        """What may be shown more of each choice, as it comes: text, and its tokens."""
        queue: asyncio.Queue[tuple[int, list[Piece]] | Exception | int] = asyncio.Queue()

        async def follow(number: int) -> None:
            try:
                async for some in self.service.stream(self.works[number]):
                    queue.put_nowait((number, some))
                queue.put_nowait(number)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.create_task(follow(number)) for number in range(len(self.works))]
        try:
            left = len(tasks)
            while left:
                got = await queue.get()
                if isinstance(got, Exception):
                    raise got
                if isinstance(got, int):
                    left -= 1
                    continue
                number, some = got
                for piece in some:
                    choice = self.choices[number][piece.number]
                    if choice.reason is None:
                        text = self._take(choice, piece, self.works[number])
                        if text or choice.reason:
                            logs, choice.logs = choice.logs, []
                            yield choice, text, logs
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, choice: Choice, piece: Piece, work: Stream) -> str:
        """The text that may be shown after this piece; what may become a stop is held back."""
        if piece.end == "no way on":
            raise problem_with(NO_WAY_ON, "prompt")
        if not piece.end:
            choice.tokens += 1
            if self.body.logprobs is not None:
                choice.logs.append(self._logs(choice, piece))
            choice.ids.append(piece.token)
        choice.held += piece.text
        cuts = [choice.held.find(text) for text in self.stop if text in choice.held]
        if cuts:
            choice.reason = "stop"
            work.ended.add(piece.number)
            text, choice.held = choice.held[: min(cuts)], ""
        elif piece.end:
            choice.reason = "length" if piece.end == "limit" else "stop"
            text, choice.held = choice.held, ""
        else:
            keep = max((overlap(choice.held, stop) for stop in self.stop), default=0)
            text = choice.held[: len(choice.held) - keep]
            choice.held = choice.held[len(text) :]
        text, choice.echo = choice.echo + text, ""
        choice.shown += text
        return text

    def _logs(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        task = self.served.task
        assert isinstance(task, GeneratingTask)
        ids = [i for i, _ in piece.top]
        before, *texts = task.output.decode([choice.ids, *([*choice.ids, i] for i in ids)])
        special = task.output.specials.ids
        names = [
            task.output.tokens([i])[0] if i in special else text.removeprefix(before)
            for i, text in zip(ids, texts, strict=True)
        ]
        top = {name: finite(log_p) for name, (_, log_p) in zip(names, piece.top, strict=True)}
        offset = len(choice.echo) + len(choice.shown) + len(choice.held)
        return {"token": piece.text, "log_p": finite(piece.log_p), "top": top, "offset": offset}

    def _choice(self, choice: Choice, text: str, logs: list[dict[str, Any]]) -> dict[str, Any]:
        found = None
        if self.body.logprobs is not None:
            found = {
                "tokens": [one["token"] for one in logs],
                "token_logprobs": [one["log_p"] for one in logs],
                "top_logprobs": [one["top"] for one in logs] if self.body.logprobs else None,
                "text_offset": [one["offset"] for one in logs],
            }
        reason = choice.reason
        return {"index": choice.index, "text": text, "logprobs": found, "finish_reason": reason}

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.served.name,
            "choices": choices,
        }

    def _usage(self) -> dict[str, int]:
        read = sum(work.size for work in self.works)
        written = sum(choice.tokens for some in self.choices for choice in some)
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }


def settings_of(body: CompletionBody) -> dict[str, Any]:
    """The keys of decode that say the same."""
    found: dict[str, Any] = {"max_len": 16 if body.max_tokens is None else body.max_tokens}
    temperature = 1.0 if body.temperature is None else body.temperature
    top_p = 1.0 if body.top_p is None else body.top_p
    if temperature == 0.0 or top_p == 0.0:
        return found | {"kind": "beam", "width": 1}
    seed = secrets.randbits(62) if body.seed is None else body.seed % 2**63
    return found | {"kind": "sample", "temperature": temperature, "top_p": top_p, "seed": seed}


def refuse_unserved(body: CompletionBody) -> None:
    """RequestError for what this server does not do, rather than to leave it undone."""
    several = body.best_of is not None and body.best_of != (body.n or 1)
    unserved = {
        "best_of": several,
        "presence_penalty": bool(body.presence_penalty),
        "frequency_penalty": bool(body.frequency_penalty),
        "logit_bias": bool(body.logit_bias),
        "suffix": bool(body.suffix),
        "echo": bool(body.echo) and body.logprobs is not None,
    }
    for name, asked in unserved.items():
        if asked:
            what = "with logprobs is" if name == "echo" else "is"
            raise RequestError(422, "settings", f"{name} {what} not served: leave it out", name)


def overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text are the beginning of a stop sequence."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
