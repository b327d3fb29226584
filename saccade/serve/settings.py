"""What a server permits: where it listens, who may send requests, and how large they may be."""

import ipaddress
from dataclasses import dataclass
from functools import cached_property
from math import inf

from saccade.errors import ConfigError

MAX_PORT = 65_535
MAX_FIELDS = 300  # of a form
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ServeSettings:
    """Limits of a server. All of them are finite, so that no client can exhaust it."""

    host: str = "127.0.0.1"
    port: int = 8000
    key: str = ""  # required of every request; needed on any address but loopback
    names: tuple[str, ...] = ()  # further permitted Host names
    max_body_bytes: int = 2_000_000
    max_waiting: int = 128  # requests
    max_waiting_tokens: int = 200_000  # of all waiting requests
    max_width: int = 16  # of a beam; also n-best, and candidates of minimum Bayes risk
    max_len: int = 2048  # tokens of an answer
    max_inputs: int = 256  # of a request
    max_input_tokens: int = 4096
    max_view_tokens: int = 1024  # of an input that is inspected, and of its output
    seconds: float = 30.0  # deadline of a request
    body_seconds: float = 10.0  # in which a client has to send its request

    def __post_init__(self) -> None:
        bounds = {
            "--port": (self.port, 0 <= self.port <= MAX_PORT, f"a number from 0 to {MAX_PORT:,}"),
            "--waiting": (self.max_waiting, self.max_waiting > 0, "a number from 1 on"),
            "--seconds": (self.seconds, 0 < self.seconds < inf, "more than 0"),
            "--body-mb": (self.max_body_bytes / 1e6, self.max_body_bytes > 0, "more than 0"),
            "--width": (self.max_width, self.max_width > 0, "a number from 1 on"),
        }
        for option, (value, holds, wanted) in bounds.items():
            if not holds:
                raise ConfigError(f"{option} {value:g}: {wanted} is needed")
        if not is_loopback(self.host) and not self.key:
            raise ConfigError(
                f"--host {self.host}: who can reach this address could use the server: give a key, "
                "in a file (--key-file) or in the environment (SACCADE_KEY), or stay on 127.0.0.1"
            )
        if self.key and (len(self.key) < 8 or not self.key.isascii() or " " in self.key):
            raise ConfigError("the key: 8 or more ASCII characters without blanks are needed")

    @cached_property
    def hosts(self) -> frozenset[str]:
        """The permitted Host names."""
        own = () if self.host in ("0.0.0.0", "::") else (self.host,)
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, *own, *self.names))

    def is_known(self, host: str) -> bool:
        """Whether a request may have this Host name.

        A server that listens on all addresses permits any address; a page of another site cannot
        use that without the key.
        """
        return host.lower() in self.hosts or (self.host in ("0.0.0.0", "::") and is_address(host))


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    return is_address(host) and ipaddress.ip_address(host).is_loopback
