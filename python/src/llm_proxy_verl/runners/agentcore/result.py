"""What an agent's result, a JSON object of its own making, says of the rollout."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ..runner import AgentResult

_QUOTED_LENGTH = 200


def read_result(result: object, input_id: str) -> AgentResult:
    """The result that an agent left in S3, or gave by its session.

    - ``status_code`` other than 2xx: the agent failed, for the reason ``stop_reason`` (both as the toolkit's app
      writes them)
    - ``reward``: a number, or an object of named numbers; else ``rewards``: the same, or a list whose last one counts
    - ``input_id``: if it is there, it is the one that the agent was given

    :param input_id: what the agent was given
    """
    if not isinstance(result, Mapping):
        return _wrong("its result is no JSON object")
    given_id = result.get("input_id", input_id)
    if given_id != input_id:
        return _wrong(f"its result is for another sample: {quoted(given_id)}")
    status = result.get("status_code", 200)
    if not _is_number(status) or not 200 <= status <= 299:
        reason = result.get("stop_reason")
        said = reason if isinstance(reason, str) and reason else f"status_code {quoted(status)}"
        return AgentResult("failed", error=said)
    given = result.get("reward")
    if given is None:
        given = result.get("rewards")
    rewards = _rewards_of(given)
    if rewards is None:
        return _wrong(f"its reward is no number: {quoted(given)}")
    return AgentResult("completed", rewards)


def parse_result(text: bytes, input_id: str) -> AgentResult:
    """The result of what is in S3."""
    try:
        result = json.loads(text)
    except ValueError:
        return _wrong(f"its result is not JSON: {quoted(text.decode(errors='replace'))}")
    return read_result(result, input_id)


def quoted(value: object) -> str:
    """The beginning of it, for a message."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return f"{text[:_QUOTED_LENGTH]}…" if len(text) > _QUOTED_LENGTH else text


def _rewards_of(given: Any) -> dict[str, float] | None:
    """``None`` when it is none."""
    if given is None or given == []:
        return {}
    if isinstance(given, list):
        return _rewards_of(given[-1])
    if isinstance(given, Mapping):
        return dict(given) if all(map(_is_number, given.values())) else None
    return {"reward": given} if _is_number(given) else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _wrong(error: str) -> AgentResult:
    return AgentResult("error", error=error)
