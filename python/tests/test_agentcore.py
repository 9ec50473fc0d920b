"""Agents on AWS Bedrock AgentCore: its calls are made by boto3 to a stand-in, with S3 and SQS of moto."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from helpers.agentcore import (
    ARN,
    ENVIRONMENT,
    AgentCore,
    Container,
    EnvelopeApp,
    Storage,
    StoringApp,
    start_storage,
    talk,
)
from helpers.loops import SAMPLING, facts, make_loop
from helpers.proxy import Proxy
from helpers.rollout_servers import RolloutServers
from helpers.waiting import eventually
from llm_proxy_verl import process
from llm_proxy_verl.config import RemoteAgentConfig
from llm_proxy_verl.errors import ConfigError
from llm_proxy_verl.runners import AgentResult, AgentTask
from llm_proxy_verl.runners.agentcore import (
    AgentCoreRunner,
    endpoint,
    envelope_results,
    result_queue,
    stored_results,
)
from llm_proxy_verl.runners.agentcore.rate_limiter import RateLimiter
from test_agentcore_units import FakeClock, most_in_a_second
from test_runners import task_of


@pytest.fixture(scope="module")
def storage() -> Iterator[Storage]:
    with start_storage() as started:
        yield started


@pytest.fixture(autouse=True)
def _aws(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", storage.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", storage.url)
    monkeypatch.setattr(stored_results, "_FIRST_LOOK_S", 0.05)
    monkeypatch.setattr(envelope_results, "_FIRST_POLL_S", 0.05)
    # What a test leaves behind ends soon.
    monkeypatch.setattr(result_queue, "_LONG_POLL_S", 1)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


class Runner:
    """A runner of its own against a container, closed with the block."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ledger: Path) -> None:
        self._monkeypatch = monkeypatch
        self._ledger = ledger

    async def run(self, core: AgentCore, *tasks: AgentTask, **options: Any) -> list[AgentResult]:
        self._monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", core.url)
        runner = AgentCoreRunner(config_of(self._ledger, **options))
        try:
            return await asyncio.gather(*(runner.run(task) for task in tasks or [task_of()]))
        finally:
            await runner.close()


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, ledger: Path) -> Runner:
    return Runner(monkeypatch, ledger)


def config_of(ledger: Path, **options: Any) -> RemoteAgentConfig:
    defaults = {
        "proxy_urls": "http://p",
        "runner": "agentcore",
        "retry_base_delay": 0.01,
        "agentcore_arn": ARN,
        "agentcore_tps": 200,
        "agentcore_ledger": str(ledger),
    }
    return RemoteAgentConfig.load({**defaults, **options}, env={})


def way_of(name: str, storage: Storage) -> dict[str, str]:
    """The options of a way in which results come back; the way itself follows from them."""
    if name == "s3":
        return {"agentcore_bucket": storage.bucket}
    if name == "sqs":
        bucket, queue_url = storage.make_told_bucket()
        return {"agentcore_bucket": bucket, "agentcore_queue": queue_url}
    return {}


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def one(payload: dict[str, Any]) -> Any:
    return {"reward": 1}


async def never(payload: dict[str, Any]) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize("way", ["s3", "sqs", "envelope"])
async def test_verl_gets_the_rows_of_an_agent_on_agentcore(
    way: str,
    relay_proxy: Proxy,
    http: aiohttp.ClientSession,
    storage: Storage,
    ledger: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def agent(payload: dict[str, Any]) -> Any:
        await talk(http, payload["_config"], payload["question"])
        return {"rewards": [0.0, 0.5]}

    # Without messages it would be asked for long after the test.
    monkeypatch.setattr(stored_results, "_LOOK_BESIDE_QUEUE_S", 600)
    app: Container = EnvelopeApp(agent) if way == "envelope" else StoringApp(agent, storage)
    async with AgentCore(app) as core:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", core.url)
        options = {
            "proxy_urls": relay_proxy.url,
            "runner": "agentcore",
            "agentcore_arn": ARN,
            "agentcore_ledger": str(ledger),
            **way_of(way, storage),
        }
        servers = RolloutServers()
        loops = [make_loop(servers, **options) for _ in range(3)]
        rows = [{"instance_id": f"sum-{n}", "question": f"What is {n}?"} for n in range(3)]
        outputs: list[Any] = await asyncio.gather(
            *(loop.run(dict(SAMPLING), **row) for loop, row in zip(loops, rows, strict=True))
        )
        await process.close()
    for output in outputs:
        about = facts(output)
        assert (about["agent_status"], about["error"], about["tries"]) == ("completed", None, 1)
        (row,) = (await relay_proxy.get(http, f"/sessions/{about['session_id']}/trajectories"))[
            "trajectories"
        ]
        assert row["exact"]
        assert (output.prompt_ids, output.response_ids) == (row["prompt_ids"], row["response_ids"])
        assert (output.response_mask, output.response_logprobs) == (
            row["response_mask"],
            row["response_logprobs"],
        )
        assert (output.reward_score, output.num_turns) == (0.5, 2)
    assert len(core.started) == 3
    assert set(core.stopped) == set(core.started)
    assert files_in(ledger) == []


async def test_an_agent_is_told_what_the_toolkits_apps_look_for(runner: Runner, storage: Storage) -> None:
    app = StoringApp(one, storage)
    async with AgentCore(app) as core:
        way = way_of("sqs", storage)
        task = task_of(sample={"question": "?"})
        (result,) = await runner.run(core, task, agentcore_experiment="mine", **way)
    assert result == AgentResult("completed", {"reward": 1})
    model = {"base_url": "http://proxy/t~2/v1", "api_key": "k", "model_id": "m"}
    where = {"exp_id": "mine", "input_id": "t~2", "s3_bucket": way["agentcore_bucket"]}
    assert app.payloads == [
        {
            "question": "?",
            "_config": model,
            "_rollout": {**where, **model, "sampling_params": {"temperature": 1.0}},
            "_training": {**where, "session_id": core.started[0], "sqs_url": way["agentcore_queue"]},
        }
    ]


async def test_a_rows_payload_goes_in_place_of_the_row(runner: Runner) -> None:
    app = EnvelopeApp(one)
    async with AgentCore(app) as core:
        await runner.run(core, task_of(sample={"payload": {"question": "?"}, "reward_model": {}}))
    (payload,) = app.payloads
    assert set(payload) == {"question", "_config", "_agentcore_runtime"}
    assert payload["_agentcore_runtime"] == {
        "version": 1,
        "operation": "start",
        "background": True,
        "invocation_id": core.started[0],
    }


@pytest.mark.parametrize("way", ["s3", "envelope"])
async def test_an_agent_that_raises_has_failed_with_its_words(
    way: str, runner: Runner, storage: Storage
) -> None:
    async def raises(payload: dict[str, Any]) -> Any:
        raise RuntimeError("boom")

    app: Container = EnvelopeApp(raises) if way == "envelope" else StoringApp(raises, storage)
    async with AgentCore(app) as core:
        assert await runner.run(core, **way_of(way, storage)) == [AgentResult("failed", error="boom")]
    # Twice, when the result is there before the call that started the agent returns.
    assert set(core.stopped) == set(core.started)


async def test_what_is_in_s3_and_no_json_is_an_error(runner: Runner, storage: Storage) -> None:
    async def page(payload: dict[str, Any]) -> Any:
        return b"<html>"

    async with AgentCore(StoringApp(page, storage)) as core:
        (result,) = await runner.run(core, **way_of("s3", storage))
    assert result == AgentResult("error", error="its result is not JSON: <html>")


async def test_a_result_that_is_there_before_the_call_that_started_its_agent_returns_counts(
    runner: Runner, storage: Storage
) -> None:
    async def stores_and_stays(session_id: str, payload: dict[str, Any]) -> Any:
        rollout = payload["_rollout"]
        key = f"{rollout['exp_id']}/{rollout['input_id']}/{session_id}.json"
        await asyncio.to_thread(
            storage.client("s3").put_object, Bucket=storage.bucket, Key=key, Body=b'{"reward": 0.75}'
        )
        await asyncio.Event().wait()

    async with AgentCore(stores_and_stays) as core:
        results = await runner.run(core, **way_of("s3", storage))
    assert results == [AgentResult("completed", {"reward": 0.75})]
    # Once more when the call has ended, which may have begun the session behind the first stop.
    assert core.stopped == core.started * 2


async def test_a_try_that_failed_is_made_again_and_trains_nothing(
    relay_proxy: Proxy, http: aiohttp.ClientSession, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails_once(payload: dict[str, Any]) -> Any:
        await talk(http, payload["_config"], "?")
        if len(app.payloads) == 1:
            raise RuntimeError("boom")
        return {"reward": 1}

    app = EnvelopeApp(fails_once)
    async with AgentCore(app) as core:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", core.url)
        loop = make_loop(
            RolloutServers(),
            proxy_urls=relay_proxy.url,
            runner="agentcore",
            retry_base_delay=0.01,
            agentcore_arn=ARN,
            agentcore_ledger=str(ledger),
        )
        output: Any = await loop.run(dict(SAMPLING), instance_id="x")
        await process.close()
    about = facts(output)
    assert (about["tries"], about["agent_status"], output.reward_score) == (2, "completed", 1)
    first = await relay_proxy.get(http, f"/sessions/{about['session_id'].removesuffix('~2')}/trajectories")
    assert about["session_id"].endswith("~2")
    assert [row["finished"] for row in first["trajectories"]] == [False]
    second = await relay_proxy.get(http, f"/sessions/{about['session_id']}/trajectories")
    assert [row["response_ids"] for row in second["trajectories"]] == [output.response_ids]
    assert len(set(core.started)) == 2
    assert set(core.stopped) == set(core.started)


async def test_a_batch_tells_how_it_is_getting_on(runner: Runner, capfd: pytest.CaptureFixture[str]) -> None:
    async def fails_for_some(payload: dict[str, Any]) -> Any:
        if payload["fails"]:
            raise RuntimeError("boom")
        return {"reward": 1}

    async with AgentCore(EnvelopeApp(fails_for_some)) as core:
        core.invoke_faults.append("ThrottlingException")
        tasks = [task_of(sample={"fails": number == 0}) for number in range(3)]
        await runner.run(core, *tasks, agentcore_progress=0.05)
        await runner.run(core, task_of(sample={"fails": False}), agentcore_progress=0)
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("AgentCore: ")]
    assert told[-1] == (
        "AgentCore: 3 started, 0 running, 0 waiting, 2 done, 1 failed, 1 calls throttled, "
        "3 in the last minute"
    )


async def test_the_calls_of_a_batch_keep_to_the_rate_and_halve_when_others_use_it(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, calls, refused = FakeClock(), [], []

    def takes() -> bool:
        """25 calls a second, and 10 of them between the second second and the sixth."""
        calls.append(clock.now - 100)
        limit = 10 if 2 <= calls[-1] < 6 else 25
        if sum(time > calls[-1] - 1 + 1e-9 for time in calls) <= limit:
            return True
        refused.append(calls[-1])
        return False

    heard = 0

    class Limiter(RateLimiter):
        def throttled(self) -> None:
            nonlocal heard
            heard += 1
            super().throttled()

    async def answers(session_id: str, payload: dict[str, Any]) -> Any:
        return {"reward": 1}

    async def move(running: asyncio.Future[Any]) -> None:
        """Time moves on when a call has arrived and its refusal was heard: a busy machine changes nothing."""
        while not running.done():
            arrived = len(calls)
            if not clock.advance_to_next():
                await asyncio.sleep(0.001)
                continue
            await eventually(
                lambda arrived=arrived: running.done() or (len(calls) > arrived and heard == len(refused)),
                "the call has arrived",
                timeout_s=60,
            )

    limiter = Limiter(25, clock)
    monkeypatch.setattr(endpoint, "limiter_of", lambda arn, per_second: limiter)
    async with AgentCore(answers, takes=takes) as core:
        tasks = [task_of(sample={}) for _ in range(100)]
        running = asyncio.ensure_future(runner.run(core, *tasks))
        await move(running)
    assert [result.status for result in await running] == ["completed"] * 100
    assert most_in_a_second(calls) <= 25
    assert 2 <= refused[0] < 6
    assert 10 <= sum(refused[0] < time <= refused[0] + 1 for time in calls) <= 15
    assert max(refused) < 7
    assert set(core.stopped) == set(core.started)


async def test_a_container_that_fails_has_failed_and_its_session_is_stopped(runner: Runner) -> None:
    async def broken(session_id: str, payload: dict[str, Any]) -> Any:
        raise RuntimeError("out of memory")

    async with AgentCore(broken) as core:
        (result,) = await runner.run(core)
    assert result.status == "failed"
    assert "out of memory" in (result.error or "")
    assert core.stopped == core.started


async def test_an_app_without_the_envelope_answers_with_its_result(runner: Runner) -> None:
    async def app(session_id: str, payload: dict[str, Any]) -> Any:
        return {"reward": {"tests": 1, "style": 0.5}}

    async with AgentCore(app) as core:
        assert await runner.run(core) == [AgentResult("completed", {"tests": 1, "style": 0.5})]


@pytest.mark.parametrize("way", ["s3", "envelope"])
async def test_an_app_for_the_other_way_of_results_is_told_so(
    way: str, runner: Runner, storage: Storage
) -> None:
    async def app(session_id: str, payload: dict[str, Any]) -> Any:
        return {"reward": 1} if way == "s3" else {"status": "processing"}

    async with AgentCore(app) as core:
        (result,) = await runner.run(core, **way_of(way, storage))
    assert result.status == "error"
    assert ("the way envelope takes answers" if way == "s3" else "agentcore_bucket") in (result.error or "")


async def test_a_session_that_agentcore_ended_by_itself_is_an_error(runner: Runner) -> None:
    app = EnvelopeApp(never)
    async with AgentCore(app) as core:
        running = asyncio.ensure_future(runner.run(core))
        await eventually(lambda: len(app.payloads) == 1, "the agent is started", timeout_s=30)
        app.forget()
        (result,) = await running
    assert result == AgentResult("error", error="AgentCore ended its session early (not_found)")


@pytest.mark.parametrize("way", ["s3", "envelope"])
async def test_an_agent_out_of_time_is_stopped(way: str, runner: Runner, storage: Storage) -> None:
    app: Container = EnvelopeApp(never) if way == "envelope" else StoringApp(never, storage)
    async with AgentCore(app) as core:
        (result,) = await runner.run(core, agent_timeout=2, **way_of(way, storage))
    assert result.status == "timeout"
    assert "no result within 2 s" in (result.error or "")
    assert set(core.stopped) == set(core.started)


async def test_a_rollout_that_is_called_off_leaves_no_session(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = asyncio.Event()

    async def holds(session_id: str, payload: dict[str, Any]) -> Any:
        held.set()
        await asyncio.Event().wait()

    async with AgentCore(holds) as core:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", core.url)
        own = AgentCoreRunner(config_of(ledger))
        running = asyncio.create_task(own.run(task_of()))
        await held.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await own.close()
    # Once more, as the call that starts it was on its way still.
    assert core.stopped == core.started * 2
    assert files_in(ledger) == []


async def test_what_is_throttled_or_has_no_place_is_tried_again(runner: Runner) -> None:
    async with AgentCore(EnvelopeApp(one)) as core:
        core.invoke_faults.extend(
            ["ThrottlingException", "ServiceQuotaExceededException", "RetryableConflictException"]
        )
        core.stop_faults.extend(["InternalServerException", "cut", "ThrottlingException"])
        assert await runner.run(core) == [AgentResult("completed", {"reward": 1})]
    assert len(core.started) == 1
    assert core.stopped == core.started


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("ThrottlingException", "throttled each try"),
        ("ServiceQuotaExceededException", "no place for its session"),
        ("AccessDeniedException", "refused the call"),
    ],
)
async def test_a_start_that_is_not_taken_to_the_end_is_an_error_with_nothing_to_stop(
    fault: str, words: str, runner: Runner, ledger: Path
) -> None:
    async with AgentCore(EnvelopeApp(one)) as core:
        core.invoke_faults.extend([fault] * 8)
        (result,) = await runner.run(core)
    assert result.status == "error"
    assert words in (result.error or "")
    assert (core.started, core.stopped) == ([], [])
    assert files_in(ledger) == []


async def test_a_session_whose_polls_are_throttled_for_good_is_stopped(runner: Runner) -> None:
    app = EnvelopeApp(never)

    async def container(session_id: str, payload: dict[str, Any]) -> Any:
        if payload["_agentcore_runtime"]["operation"] == "start":
            core.invoke_faults.extend(["ThrottlingException"] * 8)
        return await app(session_id, payload)

    async with AgentCore(container) as core:
        (result,) = await runner.run(core)
    assert result.status == "error"
    assert core.stopped == core.started != []


async def test_a_start_that_got_lost_is_not_made_again_and_its_session_is_stopped(runner: Runner) -> None:
    async with AgentCore(EnvelopeApp(one)) as core:
        core.invoke_faults.append("cut")
        (result,) = await runner.run(core)
    assert result.status == "error"
    assert "nobody knows" in (result.error or "")
    assert core.started == []
    assert len(core.stopped) == 1


async def test_sessions_at_a_time_are_bounded_until_they_are_stopped(runner: Runner) -> None:
    async with AgentCore(EnvelopeApp(one), sessions=2) as core:
        tasks = [task_of(session_id=f"t-{number}") for number in range(8)]
        results = await runner.run(core, *tasks, agentcore_sessions=2)
    assert [result.status for result in results] == ["completed"] * 8
    assert core.most <= 2
    assert sorted(core.stopped) == sorted(core.started)
    assert len(set(core.started)) == 8


async def test_the_next_run_stops_what_a_crash_left(runner: Runner, ledger: Path) -> None:
    left = "llm-proxy-left-by-a-process-that-is-gone"
    program = f"""
import asyncio, os, pathlib
from llm_proxy_verl.runners.agentcore.ledger import Ledger
async def main():
    ledger = await Ledger.open(pathlib.Path({str(ledger)!r}), {ARN!r}, "DEFAULT")
    for name in ("stopped", {left!r}):
        await ledger.opened(name)
    await ledger.closed("stopped")
    os._exit(9)
asyncio.run(main())
"""
    crashed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], timeout=50)
    assert crashed.returncode == 9
    async with AgentCore(EnvelopeApp(one)) as core:
        await runner.run(core)
    assert sorted(core.stopped) == sorted([left, *core.started])
    assert files_in(ledger) == []


async def test_a_stop_that_is_refused_stays_in_the_ledger_for_a_run_that_may(
    runner: Runner, ledger: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AgentCore(EnvelopeApp(one)) as core:
        core.stop_faults.append("AccessDeniedException")
        await runner.run(core)
    assert "could not be stopped" in caplog.text
    (path,) = files_in(ledger)
    head, opened = [json.loads(line) for line in path.read_text().splitlines()]
    assert (head["arn"], opened) == (ARN, {"opened": core.started[0]})


async def test_messages_that_come_twice_or_for_nobody_are_taken_off_and_those_of_others_are_left(
    runner: Runner, storage: Storage
) -> None:
    sqs = storage.client("sqs")
    queue_url = storage.make_queue()

    def send(key: str) -> None:
        records = [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {}, "object": {"key": key}}}]
        sqs.send_message(QueueUrl=queue_url, MessageBody=json.dumps({"Records": records}))

    def left() -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        about = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=names)["Attributes"]
        return sum(int(about[name]) for name in names)

    async def agent(payload: dict[str, Any]) -> Any:
        training = payload["_training"]
        key = f"mine/{training['input_id']}/{training['session_id']}.json"
        for _ in range(2):
            send(quote(key, safe=""))
        await eventually(lambda: left() == 1, "one is left, another run's", timeout_s=50)
        storage.client("s3").put_object(Bucket=storage.bucket, Key=key, Body=b'{"reward": 0.5}')
        send(quote(key, safe=""))
        await asyncio.Event().wait()

    for key in ("mine%2Fgone%2Fgone.json", "theirs%2Fx%2Fx.json"):
        send(key)
    sqs.send_message(QueueUrl=queue_url, MessageBody="hello")
    sqs.send_message(QueueUrl=queue_url, MessageBody=json.dumps({"Event": "s3:TestEvent"}))
    options = {"agentcore_bucket": storage.bucket, "agentcore_queue": queue_url}
    async with AgentCore(StoringApp(agent, storage)) as core:
        (result,) = await runner.run(core, agentcore_experiment="mine", **options)
    assert result == AgentResult("completed", {"reward": 0.5})


async def test_a_result_that_no_message_told_of_is_found(
    runner: Runner, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_results, "_LOOK_BESIDE_QUEUE_S", 0.2)
    silent = {"agentcore_bucket": storage.bucket, "agentcore_queue": storage.make_queue()}
    async with AgentCore(StoringApp(one, storage)) as core:
        assert await runner.run(core, **silent) == [AgentResult("completed", {"reward": 1})]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agentcore_bucket": "nobody-made-this"}, "nobody-made-this cannot be read"),
        ({"agentcore_results": "s3"}, r"agentcore_bucket or LLM_PROXY_AGENTCORE_BUCKET"),
        ({"agentcore_results": "sqs", "agentcore_bucket": "b"}, "LLM_PROXY_AGENTCORE_QUEUE"),
        ({"agentcore_arn": "arn:aws:s3:::b"}, "no ARN of an AgentCore runtime"),
    ],
)
async def test_what_is_not_there_is_said_before_anything_is_started(
    options: dict[str, str], message: str, runner: Runner
) -> None:
    async with AgentCore(EnvelopeApp(one)) as core:
        with pytest.raises(ConfigError, match=message):
            await runner.run(core, **options)
    assert core.started == []


async def test_a_queue_that_is_not_there_is_said(runner: Runner, storage: Storage) -> None:
    gone = {"agentcore_bucket": storage.bucket, "agentcore_queue": f"{storage.url}/123456789012/none"}
    async with AgentCore(EnvelopeApp(one)) as core:
        with pytest.raises(ConfigError, match="none cannot be read"):
            await runner.run(core, **gone)


async def test_credentials_that_are_not_there_are_said(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    async with AgentCore(EnvelopeApp(one)) as core:
        with pytest.raises(ConfigError, match="there are no AWS credentials"):
            await runner.run(core)
