"""Runners: what they hand to agents, and what they make of how agents end."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from helpers.harbor import Agent, HarborServer, completed
from helpers.loops import SAMPLING, facts, make_loop, sample
from helpers.proxy import Proxy
from helpers.rollout_servers import RolloutServers
from helpers.waiting import eventually
from llm_proxy_verl.config import RemoteAgentConfig
from llm_proxy_verl.errors import ConfigError
from llm_proxy_verl.runners import AgentTask, make_runner
from llm_proxy_verl.runners.harbor import task_archive
from llm_proxy_verl.runners.sandbox import Sandbox

#: An agent of the standard library alone: one call with what it finds in its environment.
ONE_CALL = """
import json, os, sys, urllib.request
body = {"model": os.environ.get("OPENAI_MODEL", "any"), "max_tokens": 16,
        "messages": [{"role": "user", "content": os.environ["TASK_PROMPT"]}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
                                 {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
with urllib.request.urlopen(request) as response:
    print(json.load(response)["choices"][0]["message"]["content"])
"""


NEEDS_SANDBOX = pytest.mark.skipif(Sandbox("auto").missing is not None, reason="no sandbox here")


def config_of(**options: Any) -> RemoteAgentConfig:
    # What a test's programs leave for it is outside of what a sandbox lets them write.
    defaults = {"proxy_urls": "http://p", "harbor_url": "http://h", "sandbox": "none"}
    return RemoteAgentConfig.load({**defaults, **options}, env={})


def task_of(**fields: Any) -> AgentTask:
    async def never() -> str:
        await asyncio.Event().wait()
        return "completed"

    defaults: dict[str, Any] = {
        "trial_id": "t",
        "session_id": "t~2",
        "try_number": 2,
        "sample": {"raw_prompt": [{"role": "user", "content": "Look around."}], "n": 1},
        "task_path": None,
        "sampling_params": {"temperature": 1.0},
        "openai_base_url": "http://proxy/t~2/v1",
        "anthropic_base_url": "http://proxy/t~2",
        "api_key": "k",
        "model_name": "m",
        "until_ended": never,
    }
    return AgentTask(**{**defaults, **fields})


# Harbor


async def test_a_harbor_server_gets_the_task_byte_for_byte_and_all_there_is_to_know(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    task = tmp_path / "hello world"
    (task / "empty").mkdir(parents=True)
    (task / "task.toml").write_bytes(b"[metadata]\r\n")
    (task / "blob").write_bytes(bytes(range(256)) * 300)
    (task / "run.sh").write_text("#!/bin/sh\n")
    (task / "run.sh").chmod(0o755)
    (task / "link").symlink_to("task.toml")

    async def run(agent: Agent) -> dict[str, Any]:
        return completed(reward=1.0)

    async with HarborServer(run) as harbor:
        options: dict[str, Any] = {
            "harbor_url": harbor.url + "/",
            "agent_name": "swe",
            "agent_import_path": "my_agents.swe:Swe",
            "agent_kwargs": {"steps": 3},
            "environment_overrides": {"LANG": "C", "OPENAI_API_KEY": "not this one"},
            "environment_kwargs": '{"namespace": "rl"}',
        }
        result = await make_runner(config_of(**options), http).run(task_of(task_path=task))
    assert (result.status, result.rewards) == ("completed", {"reward": 1.0})
    (agent,) = harbor.agents
    overrides = agent.metadata.pop("environment_overrides")
    assert agent.metadata == {
        "task_path": str(task),
        "agent": {
            "name": "swe",
            "import_path": "my_agents.swe:Swe",
            "model_name": "m",
            "llm_proxy_url": "http://proxy/t~2/v1",
            "kwargs": {"steps": 3},
        },
        "timeout_multiplier": 1,
        "verifier": {},
        "environment_kwargs": {"namespace": "rl"},
    }
    assert (overrides["OPENAI_API_KEY"], overrides["LANG"]) == ("k", "C")
    assert overrides["ANTHROPIC_BASE_URL"] == "http://proxy/t~2"
    with tarfile.open(fileobj=io.BytesIO(agent.archive)) as archive:
        archive.extractall(tmp_path / "out", filter="tar")
    copy = tmp_path / "out" / "hello world"
    assert {path.name for path in copy.iterdir()} == {path.name for path in task.iterdir()}
    for name in ("task.toml", "blob", "run.sh"):
        assert (copy / name).read_bytes() == (task / name).read_bytes()
    assert os.access(copy / "run.sh", os.X_OK)
    assert os.readlink(copy / "link") == "task.toml"


def test_equal_directories_give_equal_archives(tmp_path: Path) -> None:
    for name in ("one", "two"):
        directory = tmp_path / name / "task"
        directory.mkdir(parents=True)
        (directory / "file").write_text("x")
        os.utime(directory / "file", (len(name), 1000 if name == "one" else 2000))
    assert task_archive(tmp_path / "one" / "task") == task_archive(tmp_path / "two" / "task")


@pytest.mark.parametrize(
    ("status", "body"),
    [(500, "oops"), (200, "not JSON"), (200, '{"status": "odd"}'), (200, '["completed"]')],
)
async def test_an_answer_of_a_harbor_server_that_is_none_is_quoted(
    http: aiohttp.ClientSession, tmp_path: Path, status: int, body: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=status, text=body)

    async with serving(answer) as url:
        runner = make_runner(config_of(harbor_url=url), http)
        with pytest.raises(ValueError, match=f"answered with {status}: .*{body[:5]}".replace("[", r"\[")):
            await runner.run(task_of(task_path=tmp_path))


async def test_a_harbor_run_beyond_its_time_is_a_timeout(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    async def hang(agent: Agent) -> dict[str, Any]:
        await asyncio.Event().wait()
        return completed()

    async with HarborServer(hang) as harbor:
        runner = make_runner(config_of(harbor_url=harbor.url, harbor_timeout="200ms"), http)
        assert (await runner.run(task_of(task_path=tmp_path))).status == "timeout"


# Command


async def test_a_command_finds_its_session_and_its_task_and_a_verifier_judges_it(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    judged = 'echo \'{"a": 1, "b": 0.5}\' > "$REWARD_FILE"'
    verifier = f'test -s "$AGENT_OUTPUT_FILE" && test -z "$OPENAI_API_KEY" && {judged}'
    loop = make_loop(
        RolloutServers(),
        proxy_urls=[relay_proxy.url],
        runner="command",
        command=[sys.executable, "-c", ONE_CALL],
        verifier=verifier,
    )
    output: Any = await loop.run(dict(SAMPLING), **sample(tmp_path / "task"))
    assert (output.num_turns, sum(output.response_mask), output.reward_score) == (1, 6, 1.5)
    assert facts(output)["reward_components"] == {"a": 1.0, "b": 0.5}


@pytest.mark.parametrize(
    ("command", "status", "error"),
    [
        ("true", "completed", None),
        ("echo no; echo no luck; exit 3", "failed", "exit code 3: no luck"),
        ("kill -9 $$", "failed", "ended by signal 9"),
        ("sleep 30", "timeout", "the agent ran out of time"),
        ("exec cat", "completed", None),
    ],
)
async def test_how_a_command_ends_is_how_its_try_ends(
    http: aiohttp.ClientSession, command: str, status: str, error: str | None
) -> None:
    runner = make_runner(config_of(runner="command", command=command, agent_timeout=0.5), http)
    result = await runner.run(task_of())
    assert (result.status, result.error) == (status, error)


@pytest.mark.parametrize(
    ("verifier", "rewards"),
    [
        ("true", {"reward": 1.0}),
        ("false", {"reward": 0.0}),
        ("echo 0.25 > $REWARD_FILE; false", {"reward": 0.25}),
        ('echo "lots" > $REWARD_FILE', None),
        ("echo NaN > $REWARD_FILE", None),
        ("no-such-program", None),
        ("sleep 30", None),
    ],
)
async def test_a_verifiers_word_is_its_reward_file_or_its_exit_code(
    http: aiohttp.ClientSession, verifier: str, rewards: dict[str, float] | None
) -> None:
    options = {"runner": "command", "command": "true", "verifier": verifier, "agent_timeout": 0.5}
    runner = make_runner(config_of(**options), http)
    if rewards is None:
        with pytest.raises(ValueError, match=r"verifier|reward file"):
            await runner.run(task_of())
    else:
        assert (await runner.run(task_of())).rewards == rewards


@pytest.mark.parametrize("sandbox", ["none", pytest.param("bwrap", marks=NEEDS_SANDBOX)])
@pytest.mark.parametrize(
    ("verifier", "said"),
    [
        ("kill -9 $$", "was killed: SIGKILL"),
        (["/bin/sh", "-c", "kill -SEGV $$"], "was killed: SIGSEGV"),
        ('sh -c "kill -9 \\$\\$" && true', "was killed: SIGKILL"),
        ("echo 0 > $REWARD_FILE; kill -9 $$", "was killed: SIGKILL"),
        ("exit 255", None),
    ],
)
async def test_a_verifier_that_was_killed_gave_no_verdict(
    http: aiohttp.ClientSession, verifier: str | list[str], said: str | None, sandbox: str
) -> None:
    options = {"command": "true", "verifier": verifier, "sandbox": sandbox}
    runner = make_runner(config_of(runner="command", **options), http)
    if said is None:
        assert (await runner.run(task_of())).rewards == {"reward": 0.0}
    else:
        with pytest.raises(ValueError, match=f"the verifier {said}"):
            await runner.run(task_of())


@NEEDS_SANDBOX
async def test_a_verifier_that_bubblewrap_could_not_start_gave_none_either(
    http: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The machine's namespaces have run out when it is the verifier's turn.
    refusal = 'echo "bwrap: Creating new namespace failed" >&2; exit 1'
    script = (
        f'#!/bin/sh\n[ -z "$AGENT_OUTPUT_FILE" ] || {{ {refusal}; }}\nexec {shutil.which("bwrap")} "$@"\n'
    )
    (tmp_path / "bwrap").write_text(script)
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    options = {"command": "true", "verifier": "true", "sandbox": "bwrap"}
    with pytest.raises(ValueError, match="could not be run: bwrap: Creating new namespace failed"):
        await make_runner(config_of(runner="command", **options), http).run(task_of())


@NEEDS_SANDBOX
async def test_in_the_sandbox_files_of_keys_are_empty_wherever_they_are_named(
    http: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("admin", "worker", "other", ".env"):
        (tmp_path / name).write_text(f"key of {name}")
    (tmp_path / "plain").write_text("seen")
    monkeypatch.setenv("LLM_PROXY_FRONT_KEY", "@other")
    files = " ".join(str(tmp_path / name) for name in ("admin", "worker", "other", ".env", "plain"))
    options: dict[str, Any] = {
        "command": f"cat {files}; exit 3",
        "sandbox": "bwrap",
        "sandbox_paths": [str(tmp_path)],
        "admin_key": f"@{tmp_path}/admin",
        "worker_key": "@worker",
    }
    result = await make_runner(config_of(runner="command", **options), http).run(task_of())
    assert result.error == "exit code 3: seen"


async def test_an_agent_cannot_leave_a_reward_for_its_verifier(http: aiohttp.ClientSession) -> None:
    options = {"command": "sh -c 'echo 1 > ../reward; echo 1 > reward'", "verifier": "false"}
    runner = make_runner(config_of(runner="command", **options), http)
    assert (await runner.run(task_of())).rewards == {"reward": 0.0}


async def test_nothing_that_a_command_started_outlives_it(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    command = f"sleep 60 & echo $! > {pid_file}; wait"
    runner = make_runner(config_of(runner="command", command=command), http)
    running = asyncio.create_task(runner.run(task_of()))
    await eventually(lambda: pid_file.exists() and pid_file.read_text() != "", "the command runs")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: not is_alive(int(pid_file.read_text())), "its child is gone")


async def test_a_rollout_that_is_cancelled_while_its_command_starts_leaves_nothing(
    http: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file, told = tmp_path / "pid", asyncio.Event()
    start = asyncio.create_subprocess_exec

    async def start_slowly(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*args, **options)
        await told.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_slowly)
    command = f"sleep 60 & echo $! > {pid_file}; wait"
    runner = make_runner(config_of(runner="command", command=command), http)
    running = asyncio.create_task(runner.run(task_of()))
    await eventually(lambda: pid_file.exists() and pid_file.read_text() != "", "the command runs")
    running.cancel()
    told.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: not is_alive(int(pid_file.read_text())), "its child is gone")


async def test_a_command_gets_none_of_the_proxys_keys(
    http: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_PROXY_ADMIN_KEY", "secret")
    out = tmp_path / "env"
    options: dict[str, Any] = {"environment_overrides": {"DEPTH": 3, "OPENAI_API_KEY": "other"}}
    runner = make_runner(config_of(runner="command", command=f"env > {out}", **options), http)
    await runner.run(task_of(task_path=tmp_path))
    variables = dict(line.split("=", 1) for line in out.read_text().splitlines() if "=" in line)
    assert not [name for name in variables if name.startswith("LLM_PROXY_")]
    expected = {
        "OPENAI_BASE_URL": "http://proxy/t~2/v1",
        "OPENAI_API_KEY": "k",
        "ANTHROPIC_BASE_URL": "http://proxy/t~2",
        "ANTHROPIC_AUTH_TOKEN": "k",
        "OPENAI_MODEL": "m",
        "TRIAL_ID": "t",
        "TASK_DIR": str(tmp_path),
        "TASK_PROMPT": "Look around.",
        "DEPTH": "3",
    }
    assert {name: variables.get(name) for name in expected} == expected


async def test_the_ground_truth_is_the_verifiers_and_not_the_agents(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    options = {"command": f'cp "$TASK_FILE" {seen}', "verifier": 'grep -q 42 "$TASK_FILE"'}
    answers = ("extra_info", "answer", "solution", "ground_truth", "patch", "test_patch")
    hidden = {"reward_model": {"ground_truth": "42"}, **dict.fromkeys(answers, "six times seven")}
    task = task_of(sample={"instance_id": "a", **hidden})
    result = await make_runner(config_of(runner="command", **options), http).run(task)
    assert (json.loads(seen.read_text()), result.rewards) == ({"instance_id": "a"}, {"reward": 1.0})
    options["hidden_columns"] = "reward_model,patch"
    await make_runner(config_of(runner="command", **options), http).run(task)
    assert set(json.loads(seen.read_text())) == {"instance_id", *hidden} - {"reward_model", "patch"}


@pytest.mark.parametrize(
    ("left", "why"),
    [
        ("ln -s /etc/hostname $REWARD_FILE", "cannot be read"),
        ("mkfifo $REWARD_FILE", "is not a file"),
        ("head -c 100000 /dev/zero > $REWARD_FILE", "has 100000 bytes"),
    ],
)
async def test_a_reward_is_read_from_a_plain_file_and_from_nothing_else(
    http: aiohttp.ClientSession, left: str, why: str
) -> None:
    runner = make_runner(config_of(runner="command", command="true", verifier=left), http)
    with pytest.raises(ValueError, match=why):
        await runner.run(task_of())


async def test_what_an_agent_puts_in_the_place_of_its_task_is_not_followed(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    command = f'ln -sf {victim} "$TASK_FILE"; ln -sf {victim} ../output.txt; echo said'
    options = {"command": command, "verifier": 'grep -q said "$AGENT_OUTPUT_FILE"'}
    result = await make_runner(config_of(runner="command", **options), http).run(task_of())
    assert (result.rewards, victim.read_text()) == ({"reward": 1.0}, "as it was")


@NEEDS_SANDBOX
async def test_in_the_sandbox_an_agent_cannot_reach_its_reward(
    http: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tests", "solution"):
        (tmp_path / name).mkdir()
    (tmp_path / "tests" / "expected").write_text("42")
    monkeypatch.setenv("HF_TOKEN", "secret")
    attack = (
        'cat "$TASK_DIR/tests/expected"; echo 1 > "$TASK_DIR/tests/expected"; cat /proc/*/environ; env; '
        'setsid sh -c "while :; do date +%N > beat; sleep 0.02; done" & while [ ! -s beat ]; do sleep 0.02; done'
    )
    judge = (
        'rm -f beat; sleep 0.2; test ! -e beat && ! grep -aq -e secret -e 42 "$AGENT_OUTPUT_FILE" '
        '&& grep -qx 42 "$TASK_DIR/tests/expected"'
    )
    options = {"command": attack, "verifier": judge, "sandbox": "bwrap"}
    result = await make_runner(config_of(runner="command", **options), http).run(task_of(task_path=tmp_path))
    assert (result.status, result.rewards) == ("completed", {"reward": 1.0})


@NEEDS_SANDBOX
async def test_in_the_sandbox_an_agent_may_finish_what_it_does(http: aiohttp.ClientSession) -> None:
    command = 'trap "exit 0" TERM; while :; do sleep 0.05; done'
    options = {"command": command, "agent_timeout": 0.5, "sandbox": "bwrap"}
    result = await make_runner(config_of(runner="command", **options), http).run(task_of())
    assert result.status == "timeout"


def test_without_a_sandbox_it_is_said_that_agents_must_be_trusted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Sandbox("none")
    assert "trusted agents only" in caplog.text
    (tmp_path / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Sandbox("auto").missing == "bwrap is not installed"
    with pytest.raises(ConfigError, match="bubblewrap"):
        Sandbox("bwrap")


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# HTTP


async def test_a_webhook_is_told_of_the_task_and_the_session_is_waited_for(
    relay_proxy: Proxy, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    told: list[dict[str, Any]] = []
    agents: list[asyncio.Task[None]] = []

    async def agent(task: dict[str, Any]) -> None:
        body = {"model": "m", "max_tokens": 16, "messages": task["task"]["raw_prompt"]}
        headers = {"Authorization": f"Bearer {task['api_key']}"}
        async with http.post(
            f"{task['openai_base_url']}/chat/completions", json=body, headers=headers
        ) as answer:
            assert answer.status == 200
        session = f"{relay_proxy.url}/sessions/{task['session_id']}"
        async with http.post(f"{session}/reward", json={"reward": 0.5}):
            pass
        async with http.post(f"{session}/complete"):
            pass

    async def webhook(request: web.Request) -> web.Response:
        told.append(await request.json())
        agents.append(asyncio.create_task(agent(told[-1])))
        return web.Response(status=202)

    row = sample(tmp_path / "hook")
    async with serving(webhook) as url:
        options: dict[str, Any] = {
            "proxy_urls": [relay_proxy.url],
            "runner": "http",
            "webhook_url": f"{url}/hook",
        }
        output: Any = await make_loop(RolloutServers(), **options).run(dict(SAMPLING), **row)
        await asyncio.gather(*agents)
    assert (sum(output.response_mask), output.reward_score) == (6, 0.5)
    assert told[0]["task"] == json.loads(json.dumps(row))
    assert (told[0]["task_path"], told[0]["try"]) == (row["local_task_path"], 1)
    assert told[0]["anthropic_base_url"] + "/v1" == told[0]["openai_base_url"]


async def test_a_webhook_that_refuses_is_an_error_and_one_that_forgets_is_a_timeout(
    http: aiohttp.ClientSession,
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=503 if request.path == "/busy" else 200, text="no room")

    async with serving(answer) as url:
        options: dict[str, Any] = {"runner": "http", "agent_timeout": 0.3}
        with pytest.raises(ValueError, match="503: no room"):
            await make_runner(config_of(webhook_url=f"{url}/busy", **options), http).run(task_of())
        result = await make_runner(config_of(webhook_url=f"{url}/ok", **options), http).run(task_of())
        assert result.status == "timeout"


class serving:  # noqa: N801 - reads as a verb
    """One handler for every path, on a free port."""

    def __init__(self, handler: Callable[[web.Request], Any]) -> None:
        self._handler = handler

    async def __aenter__(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handler)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aexit__(self, *_error: object) -> None:
        await self._runner.cleanup()
