"""Runs each agent as a command on this machine, in a directory and a process group of its own."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import RemoteAgentConfig
from .process_group import GroupEnd, run_group
from .runner import AgentResult, AgentRunner, AgentTask
from .sandbox import Sandbox, View

#: Linux takes no longer variable (``MAX_ARG_STRLEN``).
_VARIABLE_LIMIT_BYTES = 128 * 1024 - 100
#: Shells give these to a command that is no program, or not there.
_NOT_RUN = (126, 127)
#: Shells and bubblewrap add the number of the signal that killed a program.
_KILLED = 128
#: Of the end of what a program printed.
_QUOTED_BYTES = 1000
#: Far more than named numbers take.
_REWARD_LIMIT_BYTES = 64 * 1024
#: Where Harbor's tasks have their tests and a solution: the verifier's to see.
_ANSWERS = ("tests", "solution")
#: What programs need to run at all, wherever they run.
_PASSED_ON = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "LANG", "LANGUAGE", "LD_LIBRARY_PATH"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    )
)


class CommandRunner(AgentRunner):
    """An agent that exits with 0 has completed; a verifier, if there is one, judges it then."""

    def __init__(self, config: RemoteAgentConfig) -> None:
        self._config = config
        self._sandbox = Sandbox(
            config.sandbox,
            config.sandbox_paths,
            [*config.dataset_dirs, *config.key_files, *_key_files(), ".env"],
        )

    async def run(self, task: AgentTask) -> AgentResult:
        """Runs one agent and its verifier."""
        root = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="llm-proxy-agent-"))
        # What the agent must not touch is in a directory that it does not see.
        own = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="llm-proxy-runner-"))
        try:
            return await self._run_in(root, own, task)
        finally:
            for directory in (root, own):
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def _run_in(self, root: Path, own: Path, task: AgentTask) -> AgentResult:
        work, task_file, output = root / "work", root / "task.json", own / "output.txt"
        work.mkdir()
        # The agent may read what it finds; the ground truth is its judge's, who comes later.
        shown = {
            name: value for name, value in task.sample.items() if name not in self._config.hidden_columns
        }
        task_file.write_text(json.dumps(shown))
        about_task = _task_environment(task, task_file)
        overrides = {name: str(value) for name, value in self._config.environment_overrides.items()}
        env = {**_outer_environment(), **overrides, **task.environment(), **about_task}
        # The task is read-only, as every later try has the same, and comes without the answers.
        readable = [] if task.task_path is None else [task.task_path]
        masked = [path / name for path in readable for name in _ANSWERS]
        view = View(work, readable=[task_file, *readable], masked=masked)
        end = await self._run_command(self._config.command, view, env, output)
        if end.timed_out:
            return AgentResult("timeout", error="the agent ran out of time")
        if end.exit_code != 0:
            return AgentResult("failed", error=_how_it_ended(end, output))
        if not self._config.verifier:
            return AgentResult("completed")
        return AgentResult("completed", await self._verify(work, output, task))

    async def _verify(self, work: Path, output: Path, task: AgentTask) -> dict[str, float]:
        # A directory that the agent never saw: what it may have left beside its own is no reward.
        judging = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="llm-proxy-verifier-"))
        try:
            return await self._judge(work, output, judging, task)
        finally:
            await asyncio.to_thread(shutil.rmtree, judging, ignore_errors=True)

    async def _judge(self, work: Path, output: Path, judging: Path, task: AgentTask) -> dict[str, float]:
        task_file, reward_file = judging / "task.json", judging / "reward"
        task_file.write_text(json.dumps(task.sample))
        # Without the session: what a verifier asks of a model must not be recorded, and trained on, as the agent's.
        env = {
            **_outer_environment(self._config.verifier_env),
            **_task_environment(task, task_file),
            "AGENT_OUTPUT_FILE": str(output),
            "REWARD_FILE": str(reward_file),
        }
        readable = [output] if task.task_path is None else [output, task.task_path]
        view = View(work, writable=[judging], readable=readable)
        # Beside the agent's output, where the verifier does not write.
        verdict = output.with_name("verifier.txt")
        end = await self._run_command(self._config.verifier, view, env, verdict)
        return await asyncio.to_thread(_rewards_of, end, reward_file, verdict)

    async def _run_command(
        self, command: Sequence[str], view: View, env: Mapping[str, str], output: Path
    ) -> GroupEnd:
        run = functools.partial(
            run_group, cwd=view.cwd, env=env, output=output, limit_s=self._config.agent_timeout
        )
        if self._sandbox.missing is not None:
            return await run(command)
        with tempfile.TemporaryFile() as status:
            return await run(self._sandbox.wrap(command, view, status.fileno()), status=status)


def _outer_environment(more: Sequence[str] = ()) -> dict[str, str]:
    """Of the trainer's own environment what programs need to run.

    The rest is the trainer's: keys of llm-proxy, tokens of model hubs, of clouds and of trackers are nobody else's.
    """
    passed_on = _PASSED_ON | set(more)
    return {name: value for name, value in os.environ.items() if name in passed_on or name.startswith("LC_")}


def _task_environment(task: AgentTask, task_file: Path) -> dict[str, str]:
    variables = {"TRIAL_ID": task.trial_id, "TASK_FILE": str(task_file)}
    if task.task_path is not None:
        variables["TASK_DIR"] = str(task.task_path)
    prompt = _prompt_text(task.sample)
    if prompt is not None and len(prompt.encode()) < _VARIABLE_LIMIT_BYTES and "\0" not in prompt:
        variables["TASK_PROMPT"] = prompt
    return variables


def _prompt_text(sample: Mapping[str, Any]) -> str | None:
    """The row's ``raw_prompt`` (or ``prompt``): text, or the texts of its user messages."""
    given = sample.get("raw_prompt") or sample.get("prompt")
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        return None
    users = [entry for entry in given if isinstance(entry, dict) and entry.get("role") == "user"]
    return "\n\n".join(entry["content"] for entry in users if isinstance(entry.get("content"), str))


def _how_it_ended(end: GroupEnd, output: Path) -> str:
    """``exit code 3: the last line that it printed``."""
    code = end.exit_code or 0
    how = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
    return _with_last_line(how, output)


def _with_last_line(how: str, output: Path) -> str:
    with output.open("rb") as printed:
        printed.seek(max(0, output.stat().st_size - _QUOTED_BYTES))
        last_line = printed.read().decode(errors="replace").strip().rsplit("\n", 1)[-1]
    return f"{how}: {last_line}" if last_line else how


def _rewards_of(end: GroupEnd, reward_file: Path, verdict: Path) -> dict[str, float]:
    """What a verifier gave.

    What it wrote into the reward file (a number, or a JSON object of named numbers), else 1 if it exited with 0, and 0
    if with anything else. One that was killed, as by the kernel when memory ran out, judged nothing, whatever it
    had written by then.

    :raises ValueError: when it gave none
    """
    if end.exit_code is None:
        raise ValueError("the verifier ran out of time")
    if not end.started:
        raise ValueError(_with_last_line("the verifier could not be run", verdict))
    killed_by = _signal_of(end.exit_code)
    if killed_by is not None:
        raise ValueError(_with_last_line(f"the verifier was killed: {killed_by}", verdict))
    written = _read_reward(reward_file)
    if written is not None:
        return _parse_rewards(written)
    if end.exit_code in _NOT_RUN:
        raise ValueError(f"the verifier could not be run: {_how_it_ended(end, verdict)}")
    return {"reward": 1.0 if end.exit_code == 0 else 0.0}


def _signal_of(exit_code: int) -> str | None:
    """By which a program, or one under a shell or in a sandbox, was killed, if its exit code says that it was."""
    try:
        return signal.Signals(-exit_code if exit_code < 0 else exit_code - _KILLED).name
    except ValueError:
        # No program that a signal ended has judged, also if Python has no name for the signal.
        return f"signal {-exit_code}" if exit_code < 0 else None


def _read_reward(path: Path) -> str | None:
    """What is in the reward file; ``None`` if there is none.

    A verifier runs what the agent made, which may have put anything in this place: a link is not followed, and a pipe,
    which would be waited for, is not read.

    :raises ValueError: for what is no plain file of a reward's size
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"the reward file cannot be read: {error.strerror}") from error
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("the reward file is not a file")
        if about.st_size > _REWARD_LIMIT_BYTES:
            raise ValueError(f"the reward file has {about.st_size} bytes")
        return os.read(descriptor, _REWARD_LIMIT_BYTES).decode(errors="replace")
    finally:
        os.close(descriptor)


def _parse_rewards(text: str) -> dict[str, float]:
    try:
        value = json.loads(text)
        parts = value if isinstance(value, dict) else {"reward": value}
        rewards = {str(name): float(part) for name, part in parts.items()}
    except (ValueError, TypeError):
        rewards = {"": math.nan}
    if not all(math.isfinite(part) for part in rewards.values()):
        raise ValueError(f"the reward file holds neither a number nor named numbers: {text.strip()[:100]}")
    return rewards


def _key_files() -> list[str]:
    """The files of keys that variables name, as ``@path``."""
    return [value[1:] for value in os.environ.values() if value.startswith("@")]
