"""The server's own routes give what a run gives, and say what is wrong in one shape."""

import json
import shutil
from math import exp
from typing import Any

import pytest
from starlette.testclient import TestClient

from saccade.runs.run import Run, load
from saccade.serve.http import create_app
from saccade.serve.settings import ServeSettings
from saccade.setup.choose import fill_config, gather
from saccade.setup.prepare import prepare
from tests.helpers import GOLDEN, corpus
from tests.serve.conftest import BASE
from tests.small_runs import TORCH, small_run

TEXTS = ["abc", "d", "abcdab", "ab", "cc"]


def ask(client: TestClient, path: str, status: int = 200, **body: Any) -> Any:
    answer = client.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def refused(client: TestClient, path: str, status: int, code: str, **body: Any) -> dict[str, str]:
    """The error of a request that has to be refused; all have one shape."""
    found = ask(client, path, status, **body)
    assert found.keys() == {"error"}
    error: dict[str, str] = found["error"]
    assert error.keys() == {"code", "message", "where"}
    assert error["code"] == code
    assert error["message"]
    return error


@pytest.mark.parametrize("name", ["translator", "recurrent", "language", "carried"])
@pytest.mark.parametrize(
    "settings", [{}, {"width": 3}, {"width": 1}, {"kind": "sample", "seed": 5, "top_k": 3}]
)
def test_predictions_are_those_of_the_run(
    client: TestClient, runs: dict[str, Run], name: str, settings: dict[str, Any]
) -> None:
    found = ask(client, "predict", run=name, inputs=TEXTS, settings=settings)["predictions"]
    own = runs[name].predict(TEXTS, settings=settings | TORCH)
    assert [one["text"] for one in found] == [one.text for one in own]
    scores = [one["score"] for one in found]
    assert scores == pytest.approx([one.score for one in own], abs=1e-4)


def test_the_best_come_first_and_others_follow(client: TestClient, runs: dict[str, Run]) -> None:
    body = {"run": "translator", "inputs": ["abc"], "nbest": 3, "settings": {"width": 4}}
    (found,) = ask(client, "predict", **body)["predictions"]
    (own,) = runs["translator"].predict(["abc"], 4, 3, settings=TORCH)
    assert [one["text"] for one in found["others"]] == [text for text, _ in own.others]


def test_details_are_tokens_with_the_prefix_that_forces_them(client: TestClient) -> None:
    body = {"run": "translator", "inputs": ["abc"], "details": True}
    (found,) = ask(client, "predict", **body)["predictions"]
    assert found["tree"][0].keys() == {"parent", "token", "score", "fate"}
    assert found["tokens"][-1]["prefix"] is None  # the end
    assert found["tokens"][-2]["prefix"] == found["text"]
    total = sum(token["log_p"] for token in found["tokens"])
    assert total == pytest.approx(found["score"], abs=1e-4)
    other = next(one["prefix"] for one in found["tokens"][0]["alternatives"][1:] if one["prefix"])
    (forced,) = ask(client, "predict", run="translator", inputs=["abc"], prefixes=other)[
        "predictions"
    ]
    assert forced["text"].startswith(other)


def test_the_prefix_of_a_language_models_token_follows_the_prompt(tmp_path: Any) -> None:
    words = {"kind": "language", "tokenizer": {"kind": "word"}}
    run = small_run(tmp_path / "run", "transformer", kind="language", task=words)
    with TestClient(create_app({"run": run}), base_url=BASE) as client:
        body: dict[str, Any] = {"inputs": ["abc"], "settings": {"max_len": 3}, "details": True}
        (found,) = ask(client, "predict", **body)["predictions"]
        assert found["tokens"][0]["prefix"].startswith(" ")
        assert found["text"] == "abc" + found["tokens"][2]["prefix"]
        other = next(one for one in found["tokens"][1]["alternatives"] if one["prefix"])
        body["inputs"] = ["abc" + other["prefix"]]
        (forced,) = ask(client, "predict", **body)["predictions"]
    assert forced["text"].startswith("abc" + other["prefix"])


def test_what_the_model_cannot_read_is_counted(client: TestClient) -> None:
    for name in ("translator", "recurrent", "language"):
        known, odd = ask(client, "predict", run=name, inputs=["abc", "aжbж"])["predictions"]
        assert "unknown" not in known
        assert odd["unknown"] == 2


def test_a_classifier_gives_every_label_its_probability(
    client: TestClient, runs: dict[str, Run]
) -> None:
    (found,) = ask(client, "predict", run="classify", inputs=["abc x1"])["predictions"]
    assert sum(one["p"] for one in found["labels"]) == pytest.approx(1.0)
    assert found["labels"][0]["text"] == found["text"]
    assert found["others"] == []
    assert exp(found["score"]) == pytest.approx(found["labels"][0]["p"])
    listed = [one for one in client.get("/api/v1/runs").json()["runs"] if one["name"] == "classify"]
    assert sorted(listed[0]["labels"]) == sorted(one["text"] for one in found["labels"])


def test_a_tagger_gives_each_word_its_label(client: TestClient, runs: dict[str, Run]) -> None:
    (found,) = ask(client, "predict", run="tag", inputs=["a b c"])["predictions"]
    assert [one["word"] for one in found["tags"]] == ["a", "b", "c"]
    assert " ".join(one["label"] for one in found["tags"]) == found["text"]
    (own,) = runs["tag"].predict(["a b c"])
    assert found["text"] == own.text
    assert all(0 < one["p"] <= 1 for one in found["tags"])


@pytest.mark.parametrize("name", ["translator", "language", "carried"])
@pytest.mark.parametrize("settings", [{}, {"kind": "sample", "seed": 3, "temperature": 0.8}])
def test_a_stream_is_the_prediction_piece_by_piece(
    client: TestClient, runs: dict[str, Run], name: str, settings: dict[str, Any]
) -> None:
    body = {"run": name, "input": "abc", "settings": settings}
    answer = client.post("/api/v1/stream", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data")]
    own = runs[name].predict("abc", settings=(settings or {"width": 1}) | TORCH)
    assert events[-1] == {"done": True, "text": own.text}
    said = "".join(event["token"] for event in events[:-1])
    assert own.text.endswith(said)
    assert said == own.text.removeprefix("abc" if name != "translator" else "")
    if not settings:  # then the model's own probabilities are all there is
        total = sum(event["log_p"] for event in events[:-1])
        assert own.score - 3.0 < own.score <= total + 1e-4  # the end token is not an event


@pytest.mark.parametrize(
    ("name", "pair"),
    [("translator", ["abc", "cba"]), ("language", ["abc"]), ("classify", ["abc x1", "a"])],
)
def test_scores_are_those_of_the_run(
    client: TestClient, runs: dict[str, Run], name: str, pair: list[str]
) -> None:
    (found,) = ask(client, "score", run=name, pairs=[pair])["scores"]
    ((log_p, tokens),) = runs[name].score([tuple(pair)])
    assert found["log_p"] == pytest.approx(log_p, abs=1e-4)
    assert found["tokens"] == tokens
    assert found["perplexity"] == pytest.approx(exp(-log_p / tokens), rel=1e-3)


def test_attention_of_another_head_needs_no_model(client: TestClient, runs: dict[str, Run]) -> None:
    body: dict[str, Any] = {"run": "translator", "kind": "attention", "input": "abcd"}
    whole = ask(client, "inspect", **body)
    network = runs["translator"].network
    calls: list[int] = []
    handle = network.register_forward_pre_hook(lambda *_: calls.append(1))
    inner = network.decoder.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        other = ask(client, "inspect", **body, options={"layer": 0, "head": 1})
    finally:
        handle.remove()
        inner.remove()
    assert not calls
    assert (other["layer"], other["head"]) == (0, 1)
    assert other["map"] != whole["map"]


def test_settings_of_the_search_are_options_of_a_view(client: TestClient) -> None:
    body: dict[str, Any] = {"run": "translator", "input": "abcd"}
    narrow = ask(client, "inspect", **body, kind="tree", options={"width": 1, "kind": "beam"})
    wide = ask(client, "inspect", **body, kind="tree", options={"width": 4})
    assert len(narrow["nodes"]) < len(wide["nodes"])
    ask(client, "inspect", **body, kind="attention", options={"kind": "beam", "width": 2})


@pytest.mark.parametrize("kind", ["attention", "saliency", "tree"])
@pytest.mark.parametrize("option", [{"word": "x"}, {"n": 3}, {"complete": False}])
def test_an_option_of_another_view_is_refused(
    client: TestClient, kind: str, option: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"run": "translator", "input": "abcd", "kind": kind}
    for more in ({}, {} if kind == "tree" else {"target": "abc"}):
        error = refused(client, "inspect", 422, "settings", **body, options=option | more)
        assert min(option) in error["message"]


@pytest.mark.parametrize("option", [{"method": "gradient"}, {"position": 0}, {"width": 3}])
def test_an_attention_that_needs_no_search_has_no_other_options(
    client: TestClient, option: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"run": "classify", "input": "abcd", "kind": "attention"}
    refused(client, "inspect", 422, "settings", **body, options=option)


def test_every_view_of_every_run_is_served(client: TestClient) -> None:
    inputs = {"table": "[0.5, 2.0, 1.0]"}
    for run in client.get("/api/v1/runs").json()["runs"]:
        for kind in run["views"]:
            item = inputs.get(run["name"], "abc")
            found = ask(client, "inspect", run=run["name"], kind=kind, input=item)
            assert found["kind"] == kind


def test_a_run_without_its_log_and_data_says_so_instead_of_curves_and_examples(
    tmp_path: Any,
) -> None:
    folder = tmp_path / "classifier"
    shutil.copytree(GOLDEN / "classifier", folder)
    with TestClient(create_app({"golden": load(folder)}), base_url=BASE) as client:
        curves = client.get("/api/v1/runs/golden/curves")
        assert curves.status_code == 422  # it has no log of its training, and says so
        assert "no record of its training" in curves.json()["error"]["message"]
        assert str(GOLDEN) not in curves.text
        worst = client.get("/api/v1/runs/golden/worst", params={"n": 2})
        assert worst.status_code in (200, 422)  # a run without its data has none, and says so
        assert client.get("/api/v1/runs/golden/worst", params={"n": 0}).status_code == 422
        assert client.get("/api/v1/runs/other/curves").status_code == 404


def test_runs_are_described(client: TestClient) -> None:
    found = {one["name"]: one for one in client.get("/api/v1/runs").json()["runs"]}
    assert found["translator"]["task"] == "translate"
    assert found["translator"]["searches"]
    assert "attention" in found["translator"]["views"]
    assert found["translator"]["decode"]["width"] == 5
    assert not found["translator"]["decode"].keys() & {"only", "model", "engine", "workers"}
    assert found["language"]["labels"] is None
    assert found["table"]["sources"] == ["numbers"]
    assert not found["translator"]["training"]


# --- bad input ------------------------------------------------------------------------------------


def test_an_unknown_run_is_named_with_those_that_there_are(client: TestClient) -> None:
    error = refused(client, "predict", 404, "unknown_run", run="translatr", inputs=["a"])
    assert "'translatr'" in error["message"]
    assert "translator" in error["message"]
    refused(client, "predict", 404, "unknown_run", inputs=["a"])  # there are several


@pytest.mark.parametrize("text", ["", "  ", "\t", "\n"])
def test_an_empty_input_is_said_to_be_empty(client: TestClient, text: str) -> None:
    error = refused(client, "predict", 422, "empty", run="translator", inputs=[text])
    assert error["where"] == "inputs.0"
    refused(client, "stream", 422, "empty", run="translator", input=text)
    refused(client, "inspect", 422, "empty", run="translator", kind="tree", input=text)


def test_one_of_several_inputs_may_have_a_problem(client: TestClient) -> None:
    found = ask(client, "predict", run="translator", inputs=["abc", "", "d"])["predictions"]
    assert [bool(one.get("problem")) for one in found] == [False, True, False]
    alone = ask(client, "predict", run="translator", inputs=["d"])["predictions"]
    assert found[2]["text"] == alone[0]["text"]


def test_a_prefix_that_has_no_tokens_is_refused(client: TestClient) -> None:
    error = refused(
        client, "predict", 422, "unknown_token", run="translator", inputs=["abc"], prefixes="ж"
    )
    assert "outside the vocabulary" in error["message"]


SHORT = {"kind": "transformer", "dim": 16, "num_heads": 2, "ff_dim": 32, "num_layers": 1}
SHORT |= {"positions": "learned", "max_positions": 12}


@pytest.mark.parametrize("kind", ["translate", "language", "classify", "tag"])
def test_what_the_model_has_no_positions_for_is_too_long(tmp_path: Any, kind: str) -> None:
    tables = {
        "translate": {"encoder": SHORT, "decoder": SHORT},
        "language": {"decoder": SHORT},
        "classify": {"encoder": SHORT},
        "tag": {"encoder": SHORT},
    }
    raw, where = gather(corpus(tmp_path, kind), task=kind)
    raw["data"]["max_len"] = 10
    raw["task"] |= {"context": 12} if kind == "language" else {}
    task = prepare(fill_config(raw | tables[kind], where)[0], tmp_path).task
    run = Run(tmp_path, task.config, task, task.build().eval())
    long = "a b c d " * 8
    with TestClient(create_app({"run": run}), base_url=BASE) as client:
        ask(client, "predict", inputs=["a b"])
        for path, body in (
            ("predict", {"inputs": [long]}),
            ("inspect", {"input": long, "kind": "saliency"}),
            ("score", {"pairs": [[long] if kind == "language" else [long, "a"]]}),
        ):
            error = refused(client, path, 422, "too_long", **body)
            assert "12 tokens or fewer" in error["message"]
        if kind in ("translate", "language"):
            refused(client, "stream", 422, "too_long", input=long)
        if kind == "translate":
            refused(client, "score", 422, "too_long", pairs=[["a", long]])


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"widht": 3}, "width"),
        ({"width": 17}, "at most 16"),
        ({"max_len": 5000}, "at most 2048"),
        ({"only": "/etc/passwd"}, "server's own"),
        ({"model": "/root"}, "server's own"),
        ({"engine": "ctranslate2"}, "server's own"),
        ({"workers": 8}, "server's own"),
        ({"temperature": 0.5}, "kind"),
        ({"banned": ["a"] * 100}, "at most 64"),
        ({"kind": "sample", "seed": -1}, "seed"),
    ],
)
def test_settings_that_are_wrong_or_not_the_clients_are_refused(
    client: TestClient, settings: dict[str, Any], word: str
) -> None:
    for path, name in (("predict", "inputs"), ("stream", "input")):
        inputs: Any = ["abc"] if name == "inputs" else "abc"
        body = {"run": "translator", name: inputs, "settings": settings}
        assert word in refused(client, path, 422, "settings", **body)["message"]
    if "temperature" not in settings and "kind" not in settings:
        body = {"run": "translator", "kind": "tree", "input": "abc", "options": settings}
        refused(client, "inspect", 422, "settings", **body)


def test_no_path_is_taken_from_a_request(client: TestClient, tmp_path: Any) -> None:
    secret = tmp_path / "secret.npy"
    secret.write_bytes(b"x")
    for cell in (str(secret), "../x.npy", "http://127.0.0.1/x.npy", "file:///etc/passwd"):
        error = refused(client, "predict", 422, "input", run="table", inputs=[cell])
        assert "data: URL" in error["message"]
        assert str(secret) not in error["message"]
        refused(client, "inspect", 422, "input", run="table", kind="saliency", input=cell)
        refused(client, "score", 422, "input", run="table", pairs=[[cell, "x"]])
    found = ask(client, "predict", run="table", inputs=["[0.5, 2.0, 1.0]"])["predictions"]
    assert found[0]["text"]


def test_a_body_beyond_the_limits_is_refused(runs: dict[str, Run]) -> None:
    settings = ServeSettings(max_body_bytes=1000, max_inputs=3, max_input_tokens=20)
    app = create_app({"translator": runs["translator"]}, settings)
    with TestClient(app, base_url=BASE) as client:
        refused(client, "predict", 413, "too_large", inputs=["a" * 2000])
        refused(client, "predict", 413, "too_large", inputs=["a"] * 4)
        refused(client, "predict", 413, "too_large", inputs=["a" * 30])
        refused(client, "score", 413, "too_large", pairs=[["a", "b"]] * 4)
    with TestClient(create_app(runs, ServeSettings(max_view_tokens=8)), base_url=BASE) as client:
        body = {"run": "translator", "input": "abc", "options": {"target": "abcdabcd"}}
        for kind in ("attention", "saliency", "tokens"):
            refused(client, "inspect", 413, "too_large", kind=kind, **body)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"nonsense", b"[" * 100_000, b'{"inputs": [NaN]}', b'{"inputs": ["\\ud800"]}',
        b'{"inputs": "abc"}', b'{"inputs": []}', b'{"nbest": 1}', b"null", b"[]", b"\xff\xfe",
        b'{"inputs": ["a"], "nbest": ' + b"9" * 5000 + b"}", b'{"inputs": ["a"], "x": 1}',
        b'{"inputs": ["a"], "settings": {"alpha": 1e999}}', b'{"inputs": [["a", 1]]}',
    ],
)  # fmt: skip
def test_a_malformed_body_is_422(client: TestClient, raw: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = client.post("/api/v1/predict", content=raw, headers=headers)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["code"] == "malformed"


def test_another_content_type_is_415(client: TestClient) -> None:
    headers = {"content-type": "text/plain"}
    answer = client.post("/api/v1/predict", content=b'{"inputs": ["a"]}', headers=headers)
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]["message"]


def test_unknown_routes_and_methods_have_the_one_shape(client: TestClient) -> None:
    for answer in (client.get("/x"), client.get("/api/v1/predict"), client.get("/studio/../x")):
        assert answer.status_code in (404, 405)
        assert answer.json()["error"].keys() == {"code", "message", "where"}


def test_only_word_vectors_have_neighbours(client: TestClient) -> None:
    answer = client.get("/api/v1/neighbours", params={"run": "translator", "word": "a"})
    assert answer.status_code == 422
    assert "word vectors" in answer.json()["error"]["message"]
