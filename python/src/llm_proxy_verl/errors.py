"""The errors of this package."""

from __future__ import annotations

from llm_proxy import LlmProxyError


class ConfigError(LlmProxyError):
    """The error for an invalid option or environment variable; the message names it."""


#: HTTP statuses of the error codes that a worker reports (docs/errors.md).
_STATUS = {
    "invalid_request": 400,
    "unsupported": 400,
    "engine_rejected": 400,
    "engine_failed": 502,
    "engine_lost": 502,
    "shutting_down": 503,
}


class CallError(LlmProxyError):
    """The error of a failed request to an engine. The agent receives ``message``, with ``code`` as in
    docs/errors.md."""

    #: Text for logs; unlike ``message``, it must not contain text of the engine, which may quote the prompt.
    log_message: str

    def __init__(
        self, code: str, message: str, *, param: str | None = None, log_message: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.log_message = message if log_message is None else log_message
        self.message = message
        self.status = _STATUS[code]
        self.param = param
