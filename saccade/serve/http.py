"""The application: routes, and one shape for every error."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

import saccade
from saccade.errors import SaccadeError
from saccade.runs.run import Run
from saccade.serve import libretranslate, native, openai
from saccade.serve.refusals import RequestError, refusal_of
from saccade.serve.security import Gate, response_of
from saccade.serve.service import Service
from saccade.serve.settings import ServeSettings

STUDIO = Path(__file__).parent / "studio"
MAX_FAULTS = 3  # of a malformed request, that its response names
CODES = {404: "not_found", 405: "method"}


def create_app(runs: Mapping[str, Run], settings: ServeSettings | None = None) -> FastAPI:
    """The application that serves these runs, ready at once."""
    service = Service(settings or ServeSettings())
    for name, run in runs.items():
        service.add(name, run)
    service.state = "ready"
    return application(service)


def application(service: Service) -> FastAPI:
    """The application of a service, whose runs may still be loading."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="saccade", version=saccade.__version__, docs_url=None, redoc_url=None,
        lifespan=lifespan,
    )  # fmt: skip
    app.state.service = service
    app.add_middleware(Gate, service=service)
    app.include_router(native.router(service))
    app.include_router(libretranslate.router(service))
    app.include_router(openai.router(service))

    @app.exception_handler(RequestError)
    async def refused(_: HttpRequest, refusal: RequestError) -> Response:
        return response_of(refusal)

    @app.exception_handler(SaccadeError)
    async def mistaken(_: HttpRequest, error: SaccadeError) -> Response:
        return response_of(refusal_of(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: HttpRequest, error: RequestValidationError) -> Response:
        return response_of(malformed_refusal(error))

    @app.exception_handler(HTTPException)
    async def failed(_: HttpRequest, error: HTTPException) -> Response:
        code = CODES.get(error.status_code, "http")
        response = response_of(RequestError(error.status_code, code, str(error.detail)))
        response.headers.update(error.headers or {})
        return response

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        return JSONResponse({"status": service.state}, 200 if service.state == "ready" else 503)

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        if not (STUDIO / "index.html").is_file():
            raise RequestError(404, "not_found", "this installation has no page")
        return FileResponse(STUDIO / "index.html", headers={"cache-control": "no-cache"})

    app.mount("/studio", RevalidatedFiles(directory=STUDIO, html=True))
    return app


class RevalidatedFiles(StaticFiles):
    """Files that a browser revalidates each time: they are small, and change with versions."""

    def file_response(self, *args: object, **options: object) -> Response:
        response = super().file_response(*args, **options)  # type: ignore[arg-type]
        response.headers["cache-control"] = "no-cache"
        return response


def malformed_refusal(error: RequestValidationError) -> RequestError:
    """What is wrong with a body or a query, without its content."""
    faults = []
    for fault in error.errors()[:MAX_FAULTS]:
        place = ".".join(str(part) for part in fault["loc"])
        faults.append((place[:120], str(fault["msg"])[:200]))
    message = "; ".join(f"{place}: {reason}" for place, reason in faults)
    return RequestError(422, "malformed", message, faults[0][0] if faults else "")
