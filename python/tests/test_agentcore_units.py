"""Parts of the runner for AgentCore that are functions of their input, and its limiter with a clock of its own."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from llm_proxy_verl.config import RemoteAgentConfig
from llm_proxy_verl.errors import ConfigError
from llm_proxy_verl.runners import AgentResult
from llm_proxy_verl.runners.agentcore.rate_limiter import CallKind, RateLimiter
from llm_proxy_verl.runners.agentcore.result import parse_result, read_result
from llm_proxy_verl.runners.agentcore.run_counts import RunCounts
from llm_proxy_verl.runners.agentcore.sqs_records import session_of_key, written_keys


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object], /) -> object:
        self._timers.append((self.now + delay, callback))
        return None

    async def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := sorted((timer for timer in self._timers if timer[0] <= end), key=lambda timer: timer[0]):
            self._timers.remove(due[0])
            self.now = max(self.now, due[0][0])
            due[0][1]()
        self.now = end
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def advance_to_next(self) -> bool:
        """Moves to the time of the next timer, and runs it; False when there is none."""
        if not self._timers:
            return False
        timer = min(self._timers, key=lambda timer: timer[0])
        self._timers.remove(timer)
        self.now = max(self.now, timer[0])
        timer[1]()
        return True


def most_in_a_second(times: list[float]) -> int:
    return max(sum(first <= time < first + 1 - 1e-9 for time in times) for first in times)


async def waiting(limiter: RateLimiter, *kinds: CallKind) -> tuple[list[int], list[asyncio.Task[None]]]:
    """Calls that ask in this order; returns the numbers of those that were granted as they are."""
    granted: list[int] = []

    async def ask(number: int, kind: CallKind) -> None:
        await limiter.acquire(kind)
        granted.append(number)

    tasks = [asyncio.create_task(ask(number, kind)) for number, kind in enumerate(kinds)]
    await asyncio.sleep(0)
    return granted, tasks


async def test_calls_are_spread_evenly_at_the_rate() -> None:
    clock = FakeClock()
    granted, tasks = await waiting(RateLimiter(10, clock), *["start"] * 25)
    counts = []
    for _ in range(3):
        await clock.advance(1)
        counts.append(len(granted))
    # The first second begins with two, a tenth of a second made up for; the next one with two again.
    assert counts == [12, 22, 25]
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("seed", range(20))
async def test_no_second_has_more_calls_than_the_rate_however_late_timers_are(seed: int) -> None:
    dice = random.Random(seed)
    clock, rate = FakeClock(), dice.randint(1, 40)
    limiter, times = RateLimiter(rate, clock), []

    async def ask() -> None:
        await limiter.acquire("start")
        times.append(clock.now)

    tasks = [asyncio.create_task(ask()) for _ in range(150)]
    await asyncio.sleep(0)
    while clock.advance_to_next():
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        clock.now += dice.choice((0.0, 0.0, 0.01, 0.25))
    await asyncio.gather(*tasks)
    assert most_in_a_second(times) <= rate


def test_a_line_tells_how_a_batch_is_getting_on() -> None:
    now = 0.0
    counts = RunCounts(lambda: now)
    for _ in range(5):
        counts.waits()
    for _ in range(3):
        counts.starts()
    counts.gives_up()
    counts.ends(True)
    now = 50.0
    counts.ends(False)
    counts.throttled()
    rest = "1 done, 1 failed, 1 calls throttled"
    assert counts.describe() == f"AgentCore: 3 started, 1 running, 1 waiting, {rest}, 2 in the last minute"
    now = 60.0
    assert counts.describe().endswith("1 in the last minute")
    assert not counts.is_idle


async def test_kinds_of_calls_take_turns_and_the_first_to_ask_goes_first() -> None:
    clock = FakeClock()
    granted, _ = await waiting(RateLimiter(10, clock), "poll", "poll", "poll", "start", "start", "stop")
    await clock.advance(10)
    assert granted == [5, 3, 0, 4, 1, 2]


async def test_a_call_that_is_called_off_takes_nobodys_place() -> None:
    clock = FakeClock()
    granted, tasks = await waiting(RateLimiter(1, clock), "start", "start", "start")
    tasks[0].cancel()
    await clock.advance(0)
    assert granted == [1]
    tasks[2].cancel()
    await clock.advance(5)
    assert granted == [1]


async def test_the_rate_halves_once_for_calls_throttled_together_and_recovers() -> None:
    clock = FakeClock()
    limiter = RateLimiter(20, clock)
    limiter.throttled()
    limiter.throttled()
    assert limiter.rate == 10
    await clock.advance(5)
    assert limiter.rate == 15
    limiter.throttled()
    assert limiter.rate == 7.5
    await clock.advance(60)
    assert limiter.rate == 20
    for _ in range(20):
        limiter.throttled()
        await clock.advance(1)
    assert limiter.rate >= 20 / 32
    limiter.lower_to(0.5)
    assert limiter.rate == 0.5


@pytest.mark.parametrize(
    ("result", "read"),
    [
        ({"reward": 1}, AgentResult("completed", {"reward": 1})),
        ({"rewards": [0, 1, 0.5]}, AgentResult("completed", {"reward": 0.5})),
        ({"rewards": {"a": 1, "b": 2}, "reward": None}, AgentResult("completed", {"a": 1, "b": 2})),
        ({"rewards": []}, AgentResult("completed")),
        ({"input_id": "me", "status_code": 200}, AgentResult("completed")),
        ({"input_id": "you"}, AgentResult("error", error="its result is for another sample: you")),
        ({"status_code": 500, "stop_reason": "boom"}, AgentResult("failed", error="boom")),
        ({"status_code": 404}, AgentResult("failed", error="status_code 404")),
        ({"reward": "1"}, AgentResult("error", error="its reward is no number: 1")),
        ({"reward": True}, AgentResult("error", error="its reward is no number: true")),
        ({"reward": float("nan")}, AgentResult("error", error="its reward is no number: NaN")),
        ([1], AgentResult("error", error="its result is no JSON object")),
    ],
)
def test_a_result_is_read_as_the_toolkits_app_writes_it(result: Any, read: AgentResult) -> None:
    assert read_result(result, "me") == read
    assert parse_result(json.dumps(result).encode(), "me") == read


def test_the_keys_of_written_objects_are_decoded_and_whatever_else_comes_is_none() -> None:
    def record(key: str, **fields: Any) -> dict[str, Any]:
        return {"eventName": "ObjectCreated:Put", "s3": {"object": {"key": key}}, **fields}

    body = json.dumps(
        {"Records": [record("e%2Fa+b%2Fs.json"), record("x", eventName="ObjectRemoved:Delete")]}
    )
    assert written_keys(body) == ["e/a b/s.json"]
    assert written_keys(json.dumps({"Type": "Notification", "Message": body})) == ["e/a b/s.json"]
    for other in (
        "hello",
        "[]",
        '{"Event": "s3:TestEvent"}',
        '{"Records": [1, {"s3": []}]}',
        '{"Records": {}}',
    ):
        assert written_keys(other) == []
    assert written_keys(json.dumps({"Records": [record("%FF")]})) == []


def test_a_key_tells_its_session_as_new_and_older_apps_write_it() -> None:
    assert session_of_key("e/i/llm-proxy-s.json") == "llm-proxy-s"
    assert session_of_key("e/in_put_llm-proxy-s.json") == "llm-proxy-s"


def test_the_options_are_read_from_the_variables_of_the_command() -> None:
    arn = "arn:aws:bedrock-agentcore:us-west-2:1:runtime/x"
    env = {"PROXY_SERVER_URL": "http://p", "REMOTE_AGENT_RUNNER": "agentcore", "LLM_PROXY_AGENTCORE_ARN": arn}
    config = RemoteAgentConfig.load(env={**env, "LLM_PROXY_AGENTCORE_TPS": "12.5", "LLM_PROXY_RESULTS": "s3"})
    assert (config.agentcore_arn, config.agentcore_tps, config.agentcore_results) == (arn, 12.5, "s3")
    with pytest.raises(ConfigError, match="AGENTCORE_TPS must be a number of at least"):
        RemoteAgentConfig.load(env={**env, "LLM_PROXY_AGENTCORE_TPS": "0"})
    del env["LLM_PROXY_AGENTCORE_ARN"]
    with pytest.raises(ConfigError, match=r"remote_agent.agentcore_arn or LLM_PROXY_AGENTCORE_ARN"):
        RemoteAgentConfig.load(env=env)
