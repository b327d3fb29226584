"""LibreTranslate's routes, for translators: its clients work with this server as they are."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qs

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from saccade.data.fields import Text as TextField
from saccade.serve.native import Text, answers
from saccade.serve.refusals import RequestError, problem_with
from saccade.serve.served import Served
from saccade.serve.service import Service
from saccade.serve.settings import MAX_FIELDS
from saccade.tasks.task import Prediction

AUTO = "auto"
Texts = TypeVar("Texts", str, list[str])
Language = Annotated[str, Field(max_length=40)]


class LibreTranslateBody(BaseModel):
    model_config = ConfigDict(extra="ignore")

    api_key: str | None = None  # checked by the middleware


def with_newlines(texts: Texts) -> Texts:
    """The same with \\n at the end of each line: no vocabulary has \\r."""
    if isinstance(texts, str):
        return texts.replace("\r\n", "\n").replace("\r", "\n")
    return [with_newlines(text) for text in texts]


Queries = Annotated[
    Text | Annotated[list[Text], Field(min_length=1, max_length=256)], AfterValidator(with_newlines)
]


class TranslateBody(LibreTranslateBody):
    q: Queries
    source: Language = AUTO
    target: Language
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=15)] = 0


class DetectBody(LibreTranslateBody):
    q: Queries


SCHEMAS = {
    model.__name__: {
        "requestBody": {
            "required": True,
            "content": {
                kind: {"schema": model.model_json_schema()}
                for kind in ("application/json", "application/x-www-form-urlencoded")
            },
        }
    }
    for model in (TranslateBody, DetectBody)
}


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["LibreTranslate"])

    @routes.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        targets: dict[str, list[str]] = {}
        for source, target, _ in pairs(service):
            targets.setdefault(source, []).append(target)
        return [
            {"code": source, "name": source, "targets": sorted(set(codes))}
            for source, codes in sorted(targets.items())
        ]

    @routes.post("/translate", openapi_extra=SCHEMAS["TranslateBody"])
    async def translate(http: HttpRequest) -> dict[str, Any]:
        body = await body_of(http, TranslateBody)
        assert isinstance(body, TranslateBody)
        if body.format == "html":
            message = "tags would be translated with the text: send text"
            raise RequestError(422, "settings", message, "format")
        texts = [body.q] if isinstance(body.q, str) else body.q
        candidates = [
            (source, served)
            for source, target, served in pairs(service)
            if target == body.target and body.source in (AUTO, source)
        ]
        if not candidates:
            message = f"no run translates {body.source!r} to {body.target!r}: see /languages"
            raise RequestError(422, "language", message, "target")
        source, served = candidates[0]
        if body.source == AUTO:
            source, served = max(candidates, key=lambda pair: share_known(pair[1], texts))
        # Models are trained on lines: each line of a text is an input, blank ones stay empty.
        lines = [line for text in texts for line in text.split("\n") if line.strip()]
        if not lines:
            raise RequestError(422, "empty", "the text is empty: write something", "q")
        width = {"width": body.alternatives + 1} if body.alternatives else {}
        own = served.run.config.decode
        if width and own.kind == "beam" and own.width > body.alternatives:
            width = {}
        results = await answers(
            service, served, lines, http, {"kind": "beam", **width} if width else {},
            nbest=body.alternatives + 1,
        )  # fmt: skip
        for _, prediction in results:
            if prediction.problem:
                raise problem_with(prediction.problem, "q")
        predictions = (prediction for _, prediction in results)
        translated, alternatives = [], []
        for text in texts:
            versions = versions_of(text, predictions)
            translated.append(versions[0] if versions else text)
            alternatives.append(versions[1:])
        single = isinstance(body.q, str)
        answer: dict[str, Any] = {"translatedText": translated[0] if single else translated}
        if body.alternatives:
            answer["alternatives"] = alternatives[0] if single else alternatives
        if body.source == AUTO:
            detected = {"language": source, "confidence": confidence(served, texts)}
            answer["detectedLanguage"] = detected if single else [detected] * len(texts)
        return answer

    @routes.post("/detect", openapi_extra=SCHEMAS["DetectBody"])
    async def detect(http: HttpRequest) -> list[Any]:
        """The source languages of the runs, by how much of the text is in their vocabularies.

        There is no language identification model behind it.
        """
        body = await body_of(http, DetectBody)
        assert isinstance(body, DetectBody)
        texts = [body.q] if isinstance(body.q, str) else body.q
        detected = [detect_language(service, text) for text in texts]
        return detected[0] if isinstance(body.q, str) else detected

    return routes


def versions_of(text: str, predictions: Iterator[Prediction]) -> list[str]:
    """The translations of a text, best first, from the next predictions: one for each full line."""
    blank = [not line.strip() for line in text.split("\n")]
    ranked = []
    for prediction in islice(predictions, blank.count(False)):
        ranked.append([prediction.text, *(other for other, _ in prediction.others)])
    versions = []
    for lines in zip(*ranked, strict=False):  # as many as every line has
        rest = iter(lines)
        versions.append("\n".join("" if is_blank else next(rest) for is_blank in blank))
    return versions


def detect_language(service: Service, text: str) -> list[dict[str, Any]]:
    best: dict[str, float] = {}
    for source, _, served in pairs(service):
        best[source] = max(best.get(source, 0.0), confidence(served, [text]))
    ranked = sorted(best.items(), key=lambda pair: -pair[1])
    return [{"language": code, "confidence": value} for code, value in ranked]


def confidence(served: Served, texts: list[str]) -> float:
    return round(100.0 * share_known(served, texts), 1)


def share_known(served: Served, texts: list[str]) -> float:
    """The share of the tokens of texts that are in a translator's source vocabulary."""
    (field,) = served.task.sources
    assert isinstance(field, TextField)
    ids = [i for row in field.tokenizer.encode(texts) for i in row]
    return sum(i != field.tokenizer.specials.unk for i in ids) / len(ids) if ids else 0.0


def pairs(service: Service) -> list[tuple[str, str, Served]]:
    """Source language, target language and run of each translator."""
    return [
        (*(service.languages.get(name) or languages_of(served)), served)
        for name, served in service.served.items()
        if served.translates_text
    ]


def languages_of(served: Served) -> tuple[str, str]:
    """The languages of a run, from the names of its columns or the suffixes of its files."""
    data = served.run.config.data
    if data.source and isinstance(data.source[0], str) and isinstance(data.target, str):
        return data.source[0][:40], data.target[:40]
    names = [name.removesuffix(".gz").rpartition(".")[2] for name in data.train]
    if len(names) == 2 and all(2 <= len(name) <= 3 and name.isalpha() for name in names):
        return names[0], names[1]
    return "source", "target"


async def body_of(http: HttpRequest, model: type[LibreTranslateBody]) -> LibreTranslateBody:
    """The body of a request in JSON, or a form."""
    value = http.scope.get("saccade.body")
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/x-www-form-urlencoded":
        try:
            form = (await http.body()).decode()
            fields = parse_qs(form, max_num_fields=MAX_FIELDS, strict_parsing=True)
        except ValueError:
            raise RequestError(422, "malformed", "the body is not a form", "body") from None
        value = {name: values if len(values) > 1 else values[0] for name, values in fields.items()}
    elif kind == "multipart/form-data":
        raise RequestError(415, "malformed", "send JSON, or a form that is not multipart", "body")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))[:120]
        raise RequestError(422, "malformed", f"{place}: {first['msg']}"[:300], place) from None
