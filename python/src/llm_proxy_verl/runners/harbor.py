"""Has a Harbor server run each agent in an environment of its own, and judge it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import aiohttp

from ..config import RemoteAgentConfig
from .runner import AgentResult, AgentRunner, AgentTask

_STATUSES = ("completed", "failed", "timeout", "error")
#: What is quoted of an answer that is none.
_QUOTED_LENGTH = 300


class HarborRunner(AgentRunner):
    """``POST /api/v1/runs``: the task goes in as an archive, the answer comes when the agent has ended."""

    def __init__(self, config: RemoteAgentConfig, http: aiohttp.ClientSession) -> None:
        self._config = config
        self._http = http

    async def run(self, task: AgentTask) -> AgentResult:
        """Runs one agent. A run that took longer than ``harbor_timeout`` has the status ``timeout``."""
        if task.task_path is None:
            raise ValueError("the row has no local_task_path, and no dataset directory has its instance_id")
        archive = await asyncio.to_thread(task_archive, task.task_path)
        limit = self._config.harbor_timeout
        try:
            status, text = await asyncio.wait_for(self._submit(task, archive), limit)
        except asyncio.TimeoutError:
            return AgentResult("timeout", error=f"no answer within {limit:g} s")
        return _parse_answer(status, text)

    async def _submit(self, task: AgentTask, archive: bytes) -> tuple[int, str]:
        form = aiohttp.FormData(quote_fields=False)
        form.add_field("metadata", json.dumps(self._metadata(task)))
        form.add_field("task_archive", archive, filename="task.tar.gz", content_type="application/gzip")
        url = f"{self._config.harbor_url}/api/v1/runs"
        # The time limit is the run's own.
        async with self._http.post(url, data=form, timeout=aiohttp.ClientTimeout(total=None)) as response:
            return response.status, await response.text()

    def _metadata(self, task: AgentTask) -> dict[str, Any]:
        config = self._config
        return {
            "task_path": str(task.task_path),
            "agent": {
                "name": config.agent_name,
                "import_path": config.agent_import_path,
                "model_name": task.model_name,
                "llm_proxy_url": task.openai_base_url,
                "kwargs": config.agent_kwargs,
            },
            "timeout_multiplier": 1,
            "verifier": {},
            "environment_overrides": {**config.environment_overrides, **task.environment()},
            "environment_kwargs": config.environment_kwargs,
        }


def task_archive(directory: Path) -> bytes:
    """A directory as tar.gz, under its own name: ``/data/tasks/hello`` becomes ``hello/…``.

    Files are byte for byte, with links, empty directories and who may execute what; owners and times are left out and
    the order is fixed, so that equal directories give equal archives.

    :raises OSError: for what cannot be read
    """
    root = directory.resolve()
    packed = io.BytesIO()
    # tarfile's own gzip would write the time of day.
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted([root, *root.rglob("*")]):
            name = Path(root.name) / path.relative_to(root)
            archive.add(path, arcname=str(name), recursive=False, filter=_anonymous)
    return packed.getvalue()


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def _parse_answer(status: int, text: str) -> AgentResult:
    """:raises ValueError: that quotes an answer which is none"""
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        answer = json.loads(text)
        rewards = {str(name): float(part) for name, part in (answer.get("rewards") or {}).items()}
        if status < 300 and answer["status"] in _STATUSES:
            return AgentResult(answer["status"], rewards, answer.get("error"))
    raise ValueError(f"the Harbor server answered with {status}: {text[:_QUOTED_LENGTH]}")
