"""Why a request gets no answer: a status, a code for programs, a message for people."""

from dataclasses import dataclass
from typing import Any

from saccade.errors import ConfigError, SaccadeError
from saccade.tasks.generate import UNKNOWN_PREFIX
from saccade.tasks.task import TOO_LONG

CODES = {TOO_LONG: "too_long", UNKNOWN_PREFIX: "unknown_token"}  # by a prediction's problem


@dataclass(eq=False, slots=True)
class RequestError(Exception):
    """A request that is refused. The message says what was wrong, where, and what to do."""

    status: int
    code: str
    message: str
    where: str = ""
    retry_after: int = 0  # seconds; with 0 there is no such header

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, "where": self.where}}


def refusal_of(error: SaccadeError, where: str = "") -> RequestError:
    """The response to a user's mistake."""
    text = " ".join(str(error).split())
    code = "settings" if isinstance(error, ConfigError) else "input"
    return RequestError(422, CODES.get(text, code), text, where)


def problem_with(problem: str, where: str) -> RequestError:
    """The response to an input whose prediction has a problem."""
    return RequestError(422, CODES.get(problem, "input"), problem, where)


def client_gone() -> RequestError:
    """The client has disconnected; the status is for the log alone."""
    return RequestError(499, "gone", "the client has gone")
