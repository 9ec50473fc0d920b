"""What goes wrong with a proxy, each kind under its own name."""

from __future__ import annotations


class LlmProxyError(Exception):
    """The base of every error of this package."""


class ProxyApiError(LlmProxyError):
    """A proxy or a rollout server refused what it was asked, failed at it, or could not be reached.

    ``status`` is 0 and ``code`` is ``unreachable`` where there was no answer at all. Codes are those of docs/errors.md.
    """

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
