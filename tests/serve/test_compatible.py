"""Clients of LibreTranslate and OpenAI work as they are."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from starlette.testclient import TestClient

from saccade.runs.run import Run
from saccade.serve.http import application
from saccade.serve.openai import overlap
from saccade.serve.service import Service
from saccade.serve.settings import ServeSettings
from tests.serve.conftest import BASE
from tests.small_runs import TORCH

# --- LibreTranslate -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def translators(runs: dict[str, Run]) -> Iterator[TestClient]:
    service = Service(ServeSettings())
    for name in ("translator", "recurrent"):
        service.add(name, runs[name])
    service.languages = {"translator": ("de", "en"), "recurrent": ("de", "fr")}
    service.state = "ready"
    with TestClient(application(service), base_url=BASE) as client:
        yield client


def test_languages_are_those_of_the_translators(translators: TestClient) -> None:
    found = translators.get("/languages").json()
    assert found == [{"code": "de", "name": "de", "targets": ["en", "fr"]}]


@pytest.mark.parametrize("way", ["json", "data"])
def test_a_text_is_translated_by_the_run_of_its_languages(
    translators: TestClient, runs: dict[str, Run], way: str
) -> None:
    for target, name in (("en", "translator"), ("fr", "recurrent")):
        body: Any = {"q": "abc", "source": "de", "target": target, "format": "text", "api_key": ""}
        found = translators.post("/translate", **{way: body}).json()
        assert found == {"translatedText": runs[name].predict("abc", settings=TORCH).text}


def test_lines_are_translated_one_by_one_and_empty_ones_stay(
    translators: TestClient, runs: dict[str, Run]
) -> None:
    body = {"q": ["abc\n\nd", "ab"], "source": "auto", "target": "en", "alternatives": 2}
    found = translators.post("/translate", json=body).json()
    own = runs["translator"].predict(["abc", "d", "ab"], 5, 3, settings=TORCH)
    assert found["translatedText"] == [f"{own[0].text}\n\n{own[1].text}", own[2].text]
    assert found["alternatives"][1] == [text for text, _ in own[2].others]
    assert found["detectedLanguage"][0]["language"] == "de"


def test_lines_may_end_as_in_windows(translators: TestClient) -> None:
    body = {"source": "de", "target": "en"}
    plain = translators.post("/translate", json=body | {"q": "abc\n\nd"}).json()
    for text in ("abc\r\n\r\nd", "abc\r\rd", "abc\r\n\nd"):
        assert translators.post("/translate", json=body | {"q": text}).json() == plain
        assert translators.post("/translate", data=body | {"q": text}).json() == plain
    both = translators.post("/translate", json=body | {"q": ["abc\r\n\r\nd", "ab"]}).json()
    assert both["translatedText"][0] == plain["translatedText"]


def test_detect_says_how_much_of_a_text_a_vocabulary_knows(translators: TestClient) -> None:
    assert translators.post("/detect", json={"q": "abcd"}).json() == [
        {"language": "de", "confidence": 100.0}
    ]
    (found,) = translators.post("/detect", data={"q": "abжж"}).json()
    assert found["confidence"] == 50.0


def test_a_form_has_as_many_fields_as_a_text_needs_and_not_more(translators: TestClient) -> None:
    body = {"source": "de", "target": "en"}
    many = translators.post("/translate", data=body | {"q": ["d"] * 200})
    assert len(many.json()["translatedText"]) == 200
    for route in ("/translate", "/detect"):
        found = translators.post(route, data=body | {"q": ["d"] * 400})
        assert found.status_code == 422
        assert found.json()["error"]["code"] == "malformed"
        assert "300 fields" in found.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"q": "abc", "source": "de", "target": "xx"}, "language"),
        ({"q": "abc", "source": "xx", "target": "en"}, "language"),
        ({"q": "", "source": "de", "target": "en"}, "empty"),
        ({"q": " \n ", "source": "de", "target": "en"}, "empty"),
        ({"q": "abc", "source": "de", "target": "en", "format": "html"}, "settings"),
        ({"source": "de", "target": "en"}, "malformed"),
        ({"q": {"a": 1}, "source": "de", "target": "en"}, "malformed"),
    ],
)
def test_what_cannot_be_translated_is_422(
    translators: TestClient, body: dict[str, Any], code: str
) -> None:
    answer = translators.post("/translate", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == code


# --- OpenAI ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def official(client: TestClient) -> openai.OpenAI:
    """OpenAI's own client, whose requests go to our application."""

    def ask(request: httpx.Request) -> httpx.Response:
        answer = client.request(
            request.method, str(request.url), content=request.content, headers=request.headers
        )
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    transport = httpx.Client(transport=httpx.MockTransport(ask))
    return openai.OpenAI(
        base_url=f"{BASE}/v1", api_key="unused", http_client=transport, max_retries=0
    )


def test_the_language_models_are_listed(official: openai.OpenAI) -> None:
    assert sorted(model.id for model in official.models.list()) == ["carried", "language"]
    assert official.models.retrieve("language").owned_by == "saccade"


@pytest.mark.parametrize("name", ["language", "carried"])
def test_a_completion_is_what_the_run_completes(
    official: openai.OpenAI, runs: dict[str, Run], name: str
) -> None:
    found = official.completions.create(model=name, prompt="abc", max_tokens=7, temperature=0)
    own = runs[name].predict("abc", settings={"width": 1, "max_len": 7} | TORCH).text
    assert found.choices[0].text == own.removeprefix("abc")
    assert found.choices[0].finish_reason in ("length", "stop")
    assert found.usage is not None
    assert found.usage.completion_tokens <= 7


def test_a_seed_gives_the_same_and_the_n_differ(
    official: openai.OpenAI, runs: dict[str, Run]
) -> None:
    more: Any = {"model": "language", "prompt": "abc", "max_tokens": 12, "temperature": 1.5}
    first = official.completions.create(**more, n=4, seed=7)
    again = official.completions.create(**more, n=4, seed=7)
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in again.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    assert len(set(texts)) > 1
    settings = {"kind": "sample", "max_len": 12, "temperature": 1.5, "seed": 7} | TORCH
    own = runs["language"].predict(["abc"] * 4, settings=settings)
    assert texts == [one.text.removeprefix("abc") for one in own]
    assert official.completions.create(**more, n=1, seed=8).choices[0].text != texts[0]


def test_a_stream_is_the_same_text(official: openai.OpenAI) -> None:
    more: Any = {"model": "language", "prompt": ["abc", "d"], "max_tokens": 9, "seed": 3, "n": 2}
    whole = official.completions.create(**more)
    texts = {0: "", 1: "", 2: "", 3: ""}
    reasons: dict[int, Any] = {}
    usage = None
    for chunk in official.completions.create(
        **more, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert usage == whole.usage


def test_logprobs_are_those_of_the_model(official: openai.OpenAI, runs: dict[str, Run]) -> None:
    found = official.completions.create(
        model="language", prompt="abc", max_tokens=5, temperature=0, logprobs=3
    )
    logs = found.choices[0].logprobs
    assert logs is not None
    assert logs.tokens is not None
    assert logs.token_logprobs is not None
    assert logs.top_logprobs is not None
    assert "".join(logs.tokens) == found.choices[0].text
    settings = {"width": 1, "max_len": 5} | TORCH
    own = runs["language"].predict(["abc"], settings=settings, details=True)[0]
    right = [token.log_p for token in own.tokens][: len(logs.tokens)]
    assert logs.token_logprobs == pytest.approx(right, abs=1e-4)
    assert all(len(top) == 3 for top in logs.top_logprobs)
    assert logs.text_offset == list(range(len(logs.tokens)))  # of characters


def test_a_text_ends_before_a_stop_sequence(official: openai.OpenAI) -> None:
    more: Any = {"model": "language", "prompt": "abc", "max_tokens": 20, "temperature": 0}
    whole = official.completions.create(**more).choices[0].text
    stop = whole[3:6]
    cut = official.completions.create(**more, stop=[stop, "never"])
    assert cut.choices[0].text == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    chunks = official.completions.create(**more, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == cut.choices[0].text


def test_the_beginning_of_a_stop_sequence_is_held_back() -> None:
    assert overlap("abcd", "cde") == 2
    assert overlap("abcd", "d") == 0  # it would have been found
    assert overlap("ab", "abc") == 2
    assert overlap("x", "abc") == 0


def test_echo_gives_the_prompt_back(official: openai.OpenAI) -> None:
    more: Any = {"model": "language", "prompt": "abc", "max_tokens": 4, "temperature": 0}
    plain = official.completions.create(**more).choices[0].text
    assert official.completions.create(**more, echo=True).choices[0].text == "abc" + plain
    cut = official.completions.create(**more, echo=True, stop=["b"]).choices[0].text
    assert cut == "abc" + plain.partition("b")[0]  # a stop is looked for in what is generated


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"model": "nothing"}, "no run"),
        ({"model": "translator"}, "no language model"),
        ({"prompt": ""}, "empty"),
        ({"best_of": 3}, "best_of"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"max_tokens": 100_000}, "at most"),
        ({"n": 99}, "n"),
    ],
)
def test_what_is_not_served_is_refused_in_words(
    official: openai.OpenAI, more: dict[str, Any], word: str
) -> None:
    body: Any = {"model": "language", "prompt": "abc"} | more
    with pytest.raises(openai.APIStatusError) as caught:
        official.completions.create(**body)
    assert caught.value.status_code in (404, 422)
    assert word in caught.value.message
