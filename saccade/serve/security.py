"""Middleware for every request: host, origin and key, the size of its body, and the log.

The log has a line for each request: method, route, status and time; never a text, a query string
or a key.
"""

import asyncio
import base64
import binascii
import hmac
import logging
import traceback
from time import monotonic
from typing import Any
from urllib.parse import parse_qs

from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from saccade.serve.refusals import RequestError, client_gone
from saccade.serve.service import Service
from saccade.serve.settings import MAX_FIELDS

log = logging.getLogger("saccade.serve")

HEALTH = ("/healthz", "/readyz")
KEY_IN_BODY = ("/translate", "/detect")  # where LibreTranslate's clients send it
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service):
        self.app, self.service, self.settings = app, service, service.settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status, started = monotonic(), 500, False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                headers = [*message["headers"], *HEADERS]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                if self.service.state == "draining":
                    headers.append((b"connection", b"close"))
                message["headers"] = headers
            await send(message)

        counted = scope["path"] not in HEALTH
        self.service.active += counted
        try:
            try:
                self._admit(scope)
                receive = await self._read_body(scope, receive)
                await self.app(scope, receive, send_with_headers)
            except RequestError as refusal:
                await response_of(refusal)(scope, receive, send_with_headers)
            except Exception as error:
                log.error("%s in\n%s", type(error).__name__, "".join(frames_of(error)))
                if not started:
                    message = "something went wrong on the server: it is in its log"
                    failure = RequestError(500, "internal", message)
                    await response_of(failure)(scope, receive, send_with_headers)
        finally:
            self.service.active -= counted
            seconds = monotonic() - begun
            route = route_of(scope)
            self.service.metrics.answered(route, status, seconds)
            method = scope["method"] if scope["method"] in METHODS else "other"
            log.info("%s %s %d %.1f ms", method, route, status, 1000 * seconds)

    def _admit(self, scope: Scope) -> None:
        """RequestError for a request that is not permitted, and for any while not ready."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self.settings.is_known(name_of(host)):
            message = "this server is not called so; name further names with --allow-host"
            raise RequestError(403, "wrong_host", message, "Host")
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            raise RequestError(403, "wrong_origin", "pages of other sites may not ask", "Origin")
        if scope["path"] in HEALTH:
            return
        in_body = scope["path"] in KEY_IN_BODY and scope["method"] == "POST"
        if not in_body:
            self._check_key(key_of(headers))
        if self.service.state != "ready" and not is_page(scope["path"]):
            doing = {"loading": "loading its runs", "draining": "about to end"}
            message = f"the server is {doing[self.service.state]}: try again"
            raise RequestError(503, self.service.state, message, retry_after=2)

    def _check_key(self, key: str) -> None:
        expected = self.settings.key
        if expected and not hmac.compare_digest(key.encode(errors="replace"), expected.encode()):
            message = "a key is needed: Authorization: Bearer KEY"
            raise RequestError(401, "unauthorized", message, "Authorization")

    async def _read_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read and parse the body within its limits; the application's `receive` replays it."""
        if scope["method"] in ("GET", "HEAD"):
            return receive
        most = self.settings.max_body_bytes
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and (len(length) > 12 or int(length) > most):
            raise too_large(most)
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise client_gone()
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > most:
                        raise too_large(most)
        except TimeoutError:
            problem = f"the request did not come within {self.settings.body_seconds:g} s"
            raise RequestError(408, "slow", problem) from None
        if scope["method"] == "POST":  # under overload not even JSON is parsed
            self.service.engine.require_room()
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        form = kind in ("application/x-www-form-urlencoded", "multipart/form-data")
        if body and not (form and scope["path"] in KEY_IN_BODY) and not is_json(kind):
            expected = "send JSON, with Content-Type: application/json"
            raise RequestError(415, "content_type", expected, "Content-Type")
        value = None if form else parsed(bytes(body))
        if scope["path"] in KEY_IN_BODY:
            key = key_of(headers)
            if not key and kind == "application/x-www-form-urlencoded":
                key = key_in_form(bytes(body))
            elif not key and isinstance(value, dict):
                key = str(value.get("api_key") or "")
            self._check_key(key)
        scope["saccade.body"] = value
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return replay


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def parsed(body: bytes) -> Any:
    """The value of a JSON body; RequestError if it is malformed.

    The parser limits depth and digits, and refuses NaN and unpaired surrogates.
    """
    if not body:
        return None
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(422, "malformed", f"the body is not JSON: {error}", "body") from None


def is_json(kind: str) -> bool:
    """Whether a content type is JSON, which a cross-site form cannot send."""
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def too_large(most: int) -> RequestError:
    message = f"the body has more than {most:,} bytes: send less at once"
    return RequestError(413, "too_large", message, "body")


def key_of(headers: Headers) -> str:
    """The key in a request: a bearer token, or the password of basic authentication."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return ""


def key_in_form(body: bytes) -> str:
    """The key in a form; RequestError if it has too many fields."""
    try:
        fields = parse_qs(body.decode(errors="replace"), max_num_fields=MAX_FIELDS)
    except ValueError:
        message = f"the form has more than {MAX_FIELDS} fields: send less at once"
        raise RequestError(422, "malformed", message, "body") from None
    return fields.get("api_key", [""])[0]


def is_page(path: str) -> bool:
    return path == "/" or path.startswith("/studio/")


def name_of(host: str) -> str:
    """The name in a Host header, without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def route_of(scope: Scope) -> str:
    """The route as declared, without the client's path parameters."""
    if "saccade.route" in scope:
        return str(scope["saccade.route"])
    path = getattr(scope.get("route"), "path", None)
    return str(path) if path else "/studio" if is_page(scope["path"]) else "none"


def frames_of(error: BaseException) -> list[str]:
    """The stack of an error without its message, which may hold a client's text."""
    return traceback.format_tb(error.__traceback__)


def response_of(refusal: RequestError) -> JSONResponse:
    headers = {"retry-after": str(refusal.retry_after)} if refusal.retry_after else {}
    if refusal.status == 401:
        headers["www-authenticate"] = 'Basic realm="saccade", charset="UTF-8"'
    return JSONResponse(refusal.body, refusal.status, headers)
