"""OpenAI's routes, for language models: /v1/models and /v1/completions."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from saccade.serve.engine import Stream
from saccade.serve.native import Text, event, event_stream, stream_job
from saccade.serve.refusals import RequestError, client_gone, problem_with
from saccade.serve.served import Served, finite
from saccade.serve.service import Service, disconnected
from saccade.tasks.generate import GeneratingTask
from saccade.tasks.pieces import NO_CONTINUATION, Piece

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
    # accepted where they have no effect; else refused
    best_of: Annotated[int, Field(ge=1, le=16)] | None = None
    presence_penalty: Penalty | None = 0.0
    frequency_penalty: Penalty | None = 0.0
    logit_bias: dict[str, FiniteFloat] | None = None
    suffix: Annotated[str, Field(max_length=1000)] | None = None


@dataclass(slots=True)
class Choice:
    """A text being generated, and what of it has been sent."""

    index: int
    echo: str = ""  # the prompt, until it is sent before the first piece
    sent: str = ""
    held: str = ""  # text that may be the beginning of a stop sequence
    tokens: int = 0
    reason: str | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)  # of tokens not yet sent


Steps: TypeAlias = AsyncGenerator[tuple[Choice, str, list[dict[str, Any]]], None]


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["OpenAI"])
    created = int(time.time())

    def record(served: Served) -> dict[str, Any]:
        return {"id": served.name, "object": "model", "created": created, "owned_by": "saccade"}

    @routes.get("/models")
    async def models() -> dict[str, Any]:
        data = [record(served) for served in service.served.values() if served.completes_text]
        return {"object": "list", "data": data}

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
        return await completion.answer(http)

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
        self.jobs: list[Stream] = []  # one for each prompt
        self.choices: list[list[Choice]] = []
        for i, prompt in enumerate(prompts):
            where = "prompt" if isinstance(body.prompt, str) else f"prompt.{i}"
            job = stream_job(
                service, served, prompt, settings, count=self.count,
                alternatives=body.logprobs or 0, where=where,
            )  # fmt: skip
            self.jobs.append(job)
            first = i * self.count
            self.choices.append([Choice(first + n) for n in range(self.count)])
            if body.echo:
                for choice in self.choices[-1]:
                    choice.echo = prompt

    async def answer(self, http: HttpRequest) -> dict[str, Any]:
        """The answer as one JSON body."""
        texts: dict[int, str] = {}
        logprobs: dict[int, list[dict[str, Any]]] = {}
        disconnect = asyncio.create_task(disconnected(http))
        steps = self._steps()
        try:
            while True:
                step = asyncio.ensure_future(anext(steps, None))
                await asyncio.wait({step, disconnect}, return_when="FIRST_COMPLETED")
                if not step.done():
                    step.cancel()
                    raise client_gone()
                if (result := step.result()) is None:
                    break
                choice, text, tokens = result
                texts[choice.index] = texts.get(choice.index, "") + text
                logprobs.setdefault(choice.index, []).extend(tokens)
        finally:
            disconnect.cancel()
            await self._cancel(steps)
        choices = [
            self._choice(choice, texts.get(choice.index, ""), logprobs.get(choice.index, []))
            for of_prompt in self.choices
            for choice in of_prompt
        ]
        return self._envelope(choices) | {"usage": self._usage()}

    async def events(self) -> AsyncIterator[str]:
        """The answer as server-sent events."""
        steps = self._steps()
        try:
            async for choice, text, logprobs in steps:
                yield event(self._envelope([self._choice(choice, text, logprobs)]))
        finally:
            await self._cancel(steps)
        if self.body.stream_options and self.body.stream_options.include_usage:
            yield event(self._envelope([]) | {"usage": self._usage()})
        yield DONE

    async def _cancel(self, steps: Steps) -> None:
        for job in self.jobs:
            job.cancel()
        await steps.aclose()

    async def _steps(self) -> Steps:
        """What can be sent of each choice, as it comes: text, and the logprobs of its tokens."""
        queue: asyncio.Queue[tuple[int, list[Piece]] | Exception | int] = asyncio.Queue()

        async def follow(number: int) -> None:
            try:
                async for pieces in self.service.stream(self.jobs[number]):
                    queue.put_nowait((number, pieces))
                queue.put_nowait(number)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.create_task(follow(number)) for number in range(len(self.jobs))]
        try:
            running = len(tasks)
            while running:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, int):
                    running -= 1
                    continue
                number, pieces = item
                for piece in pieces:
                    choice = self.choices[number][piece.number]
                    if choice.reason is None:
                        text = self._take(choice, piece, self.jobs[number])
                        if text or choice.reason:
                            logprobs, choice.logprobs = choice.logprobs, []
                            yield choice, text, logprobs
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, choice: Choice, piece: Piece, job: Stream) -> str:
        """The text to send after this piece; a possible beginning of a stop sequence is held."""
        if piece.end == "no continuation":
            raise problem_with(NO_CONTINUATION, "prompt")
        if not piece.end:
            choice.tokens += 1
            if self.body.logprobs is not None:
                choice.logprobs.append(self._logprobs(choice, piece))
            choice.ids.append(piece.token)
        choice.held += piece.text
        cuts = [choice.held.find(text) for text in self.stop if text in choice.held]
        if cuts:
            choice.reason = "stop"
            job.ended.add(piece.number)
            text, choice.held = choice.held[: min(cuts)], ""
        elif piece.end:
            choice.reason = "length" if piece.end == "limit" else "stop"
            text, choice.held = choice.held, ""
        else:
            keep = max((overlap(choice.held, stop) for stop in self.stop), default=0)
            text = choice.held[: len(choice.held) - keep]
            choice.held = choice.held[len(text) :]
        text, choice.echo = choice.echo + text, ""
        choice.sent += text
        return text

    def _logprobs(self, choice: Choice, piece: Piece) -> dict[str, Any]:
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
        offset = len(choice.echo) + len(choice.sent) + len(choice.held)
        return {"token": piece.text, "log_p": finite(piece.log_p), "top": top, "offset": offset}

    def _choice(self, choice: Choice, text: str, tokens: list[dict[str, Any]]) -> dict[str, Any]:
        logprobs = None
        if self.body.logprobs is not None:
            logprobs = {
                "tokens": [token["token"] for token in tokens],
                "token_logprobs": [token["log_p"] for token in tokens],
                "top_logprobs": [token["top"] for token in tokens] if self.body.logprobs else None,
                "text_offset": [token["offset"] for token in tokens],
            }
        reason = choice.reason
        return {"index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.served.name,
            "choices": choices,
        }

    def _usage(self) -> dict[str, int]:
        read = sum(job.size for job in self.jobs)
        written = sum(choice.tokens for of_prompt in self.choices for choice in of_prompt)
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }


def settings_of(body: CompletionBody) -> dict[str, Any]:
    """The equivalent settings of the table [decode]."""
    settings: dict[str, Any] = {"max_len": 16 if body.max_tokens is None else body.max_tokens}
    temperature = 1.0 if body.temperature is None else body.temperature
    top_p = 1.0 if body.top_p is None else body.top_p
    if temperature == 0.0 or top_p == 0.0:
        return settings | {"kind": "beam", "width": 1}
    seed = secrets.randbits(62) if body.seed is None else body.seed % 2**63
    return settings | {"kind": "sample", "temperature": temperature, "top_p": top_p, "seed": seed}


def refuse_unserved(body: CompletionBody) -> None:
    """RequestError for options that this server does not have, rather than ignoring them."""
    unserved = {
        "best_of": body.best_of is not None and body.best_of != (body.n or 1),
        "presence_penalty": bool(body.presence_penalty),
        "frequency_penalty": bool(body.frequency_penalty),
        "logit_bias": bool(body.logit_bias),
        "suffix": bool(body.suffix),
        "echo": bool(body.echo) and body.logprobs is not None,
    }
    for name, given in unserved.items():
        if given:
            where = " with logprobs" if name == "echo" else ""
            raise RequestError(422, "settings", f"{name}{where} is not served: leave it out", name)


def overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text are the beginning of a stop sequence."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
