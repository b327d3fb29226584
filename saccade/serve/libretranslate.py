"""LibreTranslate's routes, for translators: its clients work with this server as they are."""

from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from saccade.data.fields import Text as TextField
from saccade.serve.native import Text, answers
from saccade.serve.refusals import RequestError, problem_with
from saccade.serve.served import Served
from saccade.serve.service import Service

AUTO = "auto"
Language = Annotated[str, Field(max_length=40)]


class Given(BaseModel):
    model_config = ConfigDict(extra="ignore")

    api_key: str | None = None  # looked at before the body is


class TranslateBody(Given):
    q: Text | Annotated[list[Text], Field(min_length=1, max_length=256)]
    source: Language = AUTO
    target: Language
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=15)] = 0


class DetectBody(Given):
    q: Text | Annotated[list[Text], Field(min_length=1, max_length=256)]


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
            {"code": code, "name": code, "targets": sorted(set(found))}
            for code, found in sorted(targets.items())
        ]

    @routes.post("/translate", openapi_extra=SCHEMAS["TranslateBody"])
    async def translate(http: HttpRequest) -> dict[str, Any]:
        body = await body_of(http, TranslateBody)
        assert isinstance(body, TranslateBody)
        if body.format == "html":
            message = "tags would be translated with the text: send text"
            raise RequestError(422, "settings", message, "format")
        texts = [body.q] if isinstance(body.q, str) else body.q
        known = [(s, t, served) for s, t, served in pairs(service) if t == body.target]
        if body.source != AUTO:
            known = [one for one in known if one[0] == body.source]
        if not known:
            message = f"no run translates {body.source!r} to {body.target!r}: see /languages"
            raise RequestError(422, "language", message, "target")
        best = max(known, key=lambda one: share_known(one[2], texts))
        source, _, served = best if body.source == AUTO else known[0]
        # A model has learned lines: each line of a text is one input, an empty one stays so.
        lines = [line for text in texts for line in text.split("\n")]
        full = [line for line in lines if line.strip()]
        if not full:
            raise RequestError(422, "empty", "the text is empty: write something", "q")
        width = {"width": body.alternatives + 1} if body.alternatives else {}
        own = served.run.config.decode
        if width and own.kind == "beam" and own.width > body.alternatives:
            width = {}
        found = await answers(
            service, served, full, http, {"kind": "beam", **width} if width else {},
            nbest=body.alternatives + 1,
        )  # fmt: skip
        for _, one in found:
            if one.problem:
                raise problem_with(one.problem, "q")
        supply = iter([one for _, one in found])
        translated, others = [], []
        for text in texts:
            ranked = [
                [one.text, *(other for other, _ in one.others)]
                for line in text.split("\n")
                for one in ([next(supply)] if line.strip() else [])
            ]
            blank = [not line.strip() for line in text.split("\n")]
            versions = []
            for n in range(min((len(some) for some in ranked), default=0)):
                said = iter([some[n] for some in ranked])
                versions.append("\n".join("" if empty else next(said) for empty in blank))
            translated.append(versions[0] if versions else text)
            others.append(versions[1:])
        alone = isinstance(body.q, str)
        answer: dict[str, Any] = {"translatedText": translated[0] if alone else translated}
        if body.alternatives:
            answer["alternatives"] = others[0] if alone else others
        if body.source == AUTO:
            guess = {"language": source, "confidence": confidence(served, texts)}
            answer["detectedLanguage"] = guess if alone else [guess] * len(texts)
        return answer

    @routes.post("/detect", openapi_extra=SCHEMAS["DetectBody"])
    async def detect(http: HttpRequest) -> list[Any]:
        """The source languages of the runs, by how much of the text their vocabularies know.

        No model of languages is behind it: of the languages that are served it names those whose
        translators can read the text best.
        """
        body = await body_of(http, DetectBody)
        assert isinstance(body, DetectBody)
        texts = [body.q] if isinstance(body.q, str) else body.q
        each = [guesses(service, text) for text in texts]
        return each[0] if isinstance(body.q, str) else each

    return routes


def guesses(service: Service, text: str) -> list[dict[str, Any]]:
    best: dict[str, float] = {}
    for source, _, served in pairs(service):
        best[source] = max(best.get(source, 0.0), confidence(served, [text]))
    found = [{"language": code, "confidence": value} for code, value in best.items()]
    return sorted(found, key=lambda one: -float(str(one["confidence"])))


def confidence(served: Served, texts: list[str]) -> float:
    return round(100.0 * share_known(served, texts), 1)


def share_known(served: Served, texts: list[str]) -> float:
    """The share of the tokens of texts that a translator has in its source vocabulary."""
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
    """The languages of a run as its data names them: by columns, or by the suffixes of files."""
    data = served.run.config.data
    if data.source and isinstance(data.source[0], str) and isinstance(data.target, str):
        return data.source[0][:40], data.target[:40]
    names = [name.removesuffix(".gz").rpartition(".")[2] for name in data.train]
    if len(names) == 2 and all(2 <= len(name) <= 3 and name.isalpha() for name in names):
        return names[0], names[1]
    return "source", "target"


async def body_of(http: HttpRequest, model: type[Given]) -> Given:
    """The body of a request in JSON, or a form."""
    value = http.scope.get("saccade.body")
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/x-www-form-urlencoded":
        try:
            fields = parse_qs((await http.body()).decode(), max_num_fields=300, strict_parsing=True)
        except ValueError:
            raise RequestError(422, "malformed", "the body is not a form", "body") from None
        value = {name: some if len(some) > 1 else some[0] for name, some in fields.items()}
    elif kind == "multipart/form-data":
        raise RequestError(415, "malformed", "send JSON, or a form that is not multipart", "body")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))[:120]
        raise RequestError(422, "malformed", f"{place}: {first['msg']}"[:300], place) from None
