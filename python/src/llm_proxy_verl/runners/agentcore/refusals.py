"""What AgentCore's errors mean for a rollout.

https://docs.aws.amazon.com/bedrock-agentcore/latest/APIReference/API_InvokeAgentRuntime.html
"""

from __future__ import annotations

from typing import Literal

from ..runner import AgentResult
from .result import quoted

#: - ``throttled``, ``quota``, ``conflict``: nothing was begun; later it may be.
#: - ``agent``: the container, or the program in it, failed.
#: - ``gone``: there is no such session, or no such runtime.
#: - ``refused``: nothing was begun, and never will be: the key, the role or the request is wrong.
#: - ``lost``: nobody knows whether the call was heard.
RefusalKind = Literal["throttled", "quota", "conflict", "agent", "gone", "refused", "lost"]

_KINDS: dict[str, RefusalKind] = {
    "ThrottlingException": "throttled",
    "ThrottledException": "throttled",
    "TooManyRequestsException": "throttled",
    "ServiceQuotaExceededException": "quota",
    "RetryableConflictException": "conflict",
    "ConflictException": "conflict",
    "RuntimeClientError": "agent",
    "ResourceNotFoundException": "gone",
}
_WORDS: dict[RefusalKind, str] = {
    "throttled": "AgentCore throttled each try to call its session",
    "quota": "the account has no place for its session",
    "conflict": "its session was busy with something else",
    "agent": "its container failed",
    "gone": "AgentCore knows no such runtime or session",
    "refused": "AgentCore refused the call",
    "lost": "nobody knows whether its session was started",
}


class RefusalError(Exception):
    """A call that was not answered with an answer."""

    def __init__(self, kind: RefusalKind, detail: str) -> None:
        super().__init__(f"{_WORDS[kind]}: {quoted(detail)}")
        self.kind = kind

    @property
    def is_before_start(self) -> bool:
        """Of a call that starts: nothing of it can be running."""
        return self.kind not in ("agent", "lost")

    @property
    def result(self) -> AgentResult:
        """The outcome of a try whose session met with this."""
        return AgentResult("failed" if self.kind == "agent" else "error", error=str(self))


def refusal_of(error: Exception) -> RefusalError:
    """:param error: what a client of boto3 raised"""
    from botocore.exceptions import ClientError, NoCredentialsError, ParamValidationError

    if isinstance(error, RefusalError):
        return error
    detail = f"{type(error).__name__}: {error}"
    if isinstance(error, ClientError):
        about = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        name = about.get("Code", "")
        return RefusalError(_KINDS.get(name) or _kind_of(status), f"{name}: {about.get('Message', '')}")
    if isinstance(error, (NoCredentialsError, ParamValidationError)):
        return RefusalError("refused", detail)
    return RefusalError("lost", detail)


def _kind_of(status: int) -> RefusalKind:
    if status == 429:
        return "throttled"
    return "refused" if 400 <= status < 500 else "lost"
