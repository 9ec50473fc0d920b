"""The errors of this package."""

from __future__ import annotations


class LlmProxyError(Exception):
    """The base class of all errors of this package."""


class ProxyApiError(LlmProxyError):
    """The error of a proxy or rollout server that rejected a request, failed, or was unreachable.

    Without any response, ``status`` is 0 and ``code`` is ``unreachable``. Codes are those of docs/errors.md.
    """

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
