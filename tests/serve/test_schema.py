"""Requests made from our own OpenAPI schema, right and wrong ones: none is the server's failure."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from starlette.testclient import TestClient

from saccade.runs.run import Run
from saccade.serve.http import create_app
from saccade.serve.settings import ServeSettings
from tests.serve.conftest import BASE

FEW, MANY = 4, 900  # requests for each route, right and wrong each


@pytest.fixture(scope="module")
def small(runs: dict[str, Run]) -> Iterator[TestClient]:
    app = create_app(runs, ServeSettings(max_len=20, seconds=5.0))
    with TestClient(app, base_url=BASE) as client:
        yield client


def ask_all(client: TestClient, runs: dict[str, Run], count: int) -> dict[int, int]:
    """Requests for every route, many of which name a run that there is; the statuses."""
    app: Any = client.app
    schema = schemathesis.openapi.from_dict(app.openapi())
    statuses: dict[int, int] = {}
    names = sorted(runs)
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(
                max_examples=count, phases=[Phase.generate], derandomize=True, deadline=None,
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Any) -> None:
                number = sum(statuses.values())
                body = case.body
                if isinstance(body, dict) and number % 2:
                    body = body | {"model" if "model" in body else "run": names[number % 7]}
                try:
                    raw = json.dumps(body).encode() if isinstance(body, dict | list) else b""
                    answer = client.request(
                        case.method, case.formatted_path, content=raw,
                        params=case.query if isinstance(case.query, dict) else None,
                        headers={"content-type": "application/json"} if raw else {},
                    )  # fmt: skip
                except (UnicodeError, TypeError, ValueError):
                    return  # what no client can send
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                assert answer.status_code < 500 or answer.status_code in (503, 504), answer.text
                if answer.status_code >= 400:
                    assert answer.json()["error"].keys() == {"code", "message", "where"}

            with suppress(Unsatisfiable):  # a route without parameters cannot be asked wrongly
                ask()
    return statuses


def test_no_request_of_the_schema_is_the_servers_failure(
    small: TestClient, runs: dict[str, Run]
) -> None:
    statuses = ask_all(small, runs, FEW)
    assert statuses.keys() & {200}
    assert statuses.keys() & {404, 422}


@pytest.mark.slow
def test_thousands_of_requests_of_the_schema_are_never_the_servers_failure(
    small: TestClient, runs: dict[str, Run]
) -> None:
    statuses = ask_all(small, runs, MANY)
    assert sum(statuses.values()) > 10_000
