"""What goes wrong here, each kind under its own name."""

from __future__ import annotations

from llm_proxy import LlmProxyError


class ConfigError(LlmProxyError):
    """An option or an environment variable is wrong; the message names it."""


#: HTTP statuses of the codes that a worker uses, as docs/errors.md has them.
_STATUS = {
    "invalid_request": 400,
    "unsupported": 400,
    "engine_rejected": 400,
    "engine_failed": 502,
    "engine_lost": 502,
    "shutting_down": 503,
}


class CallError(LlmProxyError):
    """One call to an engine failed. The agent gets it under this code of docs/errors.md."""

    #: What logs say of it; ``message`` may hold an engine's own words, which may quote the prompt.
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
