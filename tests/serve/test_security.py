"""Who may ask, and what goes into the log."""

import base64
import logging
import threading

import pytest
from starlette.testclient import TestClient

from saccade.errors import ConfigError
from saccade.runs.run import Run
from saccade.serve import native
from saccade.serve.engine import Call
from saccade.serve.http import create_app
from saccade.serve.settings import ServeSettings
from tests.serve.conftest import BASE

KEY = "correct-horse"
TEXT = "abcabcab"
BODY = {"inputs": ["abc"]}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_an_address_that_others_can_reach_needs_a_key() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        ServeSettings(host=host)
    for host in ("0.0.0.0", "::", "10.0.0.7", "example.org"):
        with pytest.raises(ConfigError, match="give a key"):
            ServeSettings(host=host)
        ServeSettings(host=host, key=KEY)
    with pytest.raises(ConfigError, match="8 or more"):
        ServeSettings(key="short")


def test_a_full_queue_refuses_what_it_has_not_read(runs: dict[str, Run]) -> None:
    """What is refused costs no time that the model needs."""
    app = create_app({"run": runs["translator"]}, ServeSettings(max_waiting=1))
    engine, begun, gate = app.state.service.engine, threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        gate.wait(60)

    with TestClient(app, base_url=BASE) as client:
        engine.submit(Call(function=hold, seconds=60.0))
        assert begun.wait(30)
        engine.submit(Call(function=int, seconds=60.0))
        headers = {"content-type": "application/json"}
        refused = client.post("/api/v1/predict", content=b'{"inputs": 7', headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "busy")
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/api/v1/runs").status_code == 200
        gate.set()


@pytest.mark.parametrize("route", ["/", "/studio/app.js", "/api/v1/runs", "/metrics", "/languages",
                                   "/v1/models", "/openapi.json", "/nothing"])  # fmt: skip
def test_every_route_but_health_needs_the_key(keyed: TestClient, route: str) -> None:
    for headers in ({}, bearer("wrong-horse"), bearer(""), bearer(KEY + "x"), bearer("é")):
        answer = keyed.get(route, headers={k: v.encode() for k, v in headers.items()})
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "unauthorized"
    assert keyed.get(route, headers=bearer(KEY)).status_code != 401
    named = base64.b64encode(f"anybody:{KEY}".encode()).decode()
    assert keyed.get(route, headers={"authorization": f"Basic {named}"}).status_code != 401


def test_health_needs_no_key(keyed: TestClient) -> None:
    assert keyed.get("/healthz").status_code == 200
    assert keyed.get("/readyz").json() == {"status": "ready"}


def test_posts_need_the_key_and_libretranslates_may_have_it_in_the_body(keyed: TestClient) -> None:
    assert keyed.post("/api/v1/predict", json=BODY).status_code == 401
    assert keyed.post("/api/v1/predict", json=BODY, headers=bearer(KEY)).status_code == 200
    body = {"q": "abc", "source": "auto", "target": "target"}
    assert keyed.post("/translate", json=body).status_code == 401
    assert keyed.post("/translate", json=body | {"api_key": "wrong-horse"}).status_code == 401
    assert keyed.post("/translate", json=body | {"api_key": KEY}).status_code == 200
    assert keyed.post("/translate", data=body | {"api_key": KEY}).status_code == 200
    assert keyed.post("/translate", data=body).status_code == 401
    assert keyed.post("/api/v1/predict", json=BODY | {"api_key": KEY}).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.x", ""])
def test_another_host_is_refused(client: TestClient, host: str) -> None:
    answer = client.get("/api/v1/runs", headers={"host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "wrong_host"


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000"])
def test_this_machine_is_known_by_its_names(client: TestClient, host: str) -> None:
    assert client.get("/readyz", headers={"host": host}).status_code == 200


def test_further_names_and_addresses_are_known_where_others_may_ask(keyed: TestClient) -> None:
    for host in ("models.example:8000", "192.168.1.2", "[fe80::1]:8000"):
        assert keyed.get("/readyz", headers={"host": host}).status_code == 200
    assert keyed.get("/readyz", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9000",
                                    "http://127.0.0.1", "ftp://127.0.0.1:8000"])  # fmt: skip
def test_a_page_of_another_origin_may_not_ask(client: TestClient, origin: str) -> None:
    answer = client.post("/api/v1/predict", json=BODY, headers={"origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_our_own_page_may_ask(client: TestClient) -> None:
    headers = {"origin": BASE, "host": "127.0.0.1:8000"}
    body = {"run": "translator", **BODY}
    assert client.post("/api/v1/predict", json=body, headers=headers).status_code == 200


def test_every_answer_has_the_strict_headers(client: TestClient) -> None:
    for answer in (client.get("/api/v1/runs"), client.get("/x"), client.post("/translate")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_the_log_has_no_text_and_no_key(
    keyed: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    headers = bearer(KEY)
    keyed.post("/api/v1/predict", json={"inputs": ["abcabcab"]}, headers=headers)
    keyed.post("/api/v1/predict", json={"inputs": ["abcabcab"]}, headers=bearer("wrong-secret"))
    keyed.get("/api/v1/neighbours", params={"word": "abcabcab"}, headers=headers)
    keyed.get("/api/v1/runs/abcabcab/curves", headers=headers)
    keyed.get("/abcabcab", headers=headers)
    ours = [record.getMessage() for record in caplog.records if record.name == "saccade.serve"]
    assert len(ours) == 5
    for line in ours:
        assert "abcabcab" not in line
        assert KEY not in line
        assert "secret" not in line
    assert "POST /api/v1/predict 200" in ours[0]


def test_a_failure_of_ours_is_500_with_nothing_of_the_text(
    runs: dict[str, Run], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(f"with {TEXT} in it")

    monkeypatch.setattr(native, "view_of", broken)
    with TestClient(create_app({"translator": runs["translator"]}), base_url=BASE) as client:
        body = {"kind": "tree", "input": TEXT}
        answer = client.post("/api/v1/inspect", json=body)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal"
        assert TEXT not in answer.text
        assert client.post("/api/v1/predict", json=BODY).status_code == 200
    assert "RuntimeError" in caplog.text
    assert TEXT not in caplog.text
