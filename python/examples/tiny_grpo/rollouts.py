"""The trainer's side of llm-proxy: rollouts by its command, and the routes around a change of weights."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from typing import Any

from . import model, tasks
from .system import LLM_PROXY, System


class Rollouts:
    """A batch of tasks whose agents run until ``finish``."""

    def __init__(
        self, system: System, step: int, drawn: list[tasks.Task], samples: int, sampling: dict[str, float]
    ) -> None:
        self._system, self._half = system, len(drawn) * samples // 2
        path = system.directory / f"step-{step}.tasks.jsonl"
        path.write_text("".join(json.dumps({"prompt": t.question, "answer": t.answer}) + "\n" for t in drawn))
        self._output = system.directory / f"step-{step}.rows.jsonl"
        self._output.unlink(missing_ok=True)
        command = [
            LLM_PROXY,
            "rollout",
            "--proxy-url",
            system.proxy_url,
            "--tasks",
            path,
            "--output",
            self._output,
        ]
        command += ["--n", str(samples), "--concurrency", "48", "--sampling-params", json.dumps(sampling)]
        command += ["--runner", "http", "--webhook-url", system.agents_url]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self._started = time.monotonic()

    def finish(self) -> tuple[list[dict[str, Any]], float]:
        """Returns the rows of all samples, and how many seconds they took."""
        errors = (self._process.communicate()[1] or b"").decode()
        if self._process.returncode:
            raise RuntimeError(f"llm-proxy rollout: {errors[-2000:]}")
        # Unlike splitlines(), this does not split at U+2028, which JSON permits in strings.
        lines = self._output.read_text().strip().split("\n")
        return [json.loads(line) for line in lines], time.monotonic() - self._started

    def wait_until_half_way(self) -> None:
        """Waits until active sessions have half as many turns as there are samples, so that agents are in mid-task."""
        url = f"{self._system.proxy_url}/sessions?status=active&totals=true&limit=1"
        while self._process.poll() is None and _get(url)["totals"]["turns"] < self._half:
            time.sleep(0.02)


def change_weights(system: System, policy: model.Policy, version: str) -> None:
    """Replaces the engine's weights. No request runs meanwhile, and each turn records the weights that sampled it."""
    path = system.directory / "weights.pt"
    model.save(policy, path)
    _post(f"{system.proxy_url}/admin/pause?drain_timeout_s=60")
    _post(f"{system.engine_url}/update_weights", {"path": str(path.absolute()), "weight_version": version})
    _post(f"{system.proxy_url}/admin/weight_version", {"weight_version": version})
    _post(f"{system.proxy_url}/admin/resume")


def _get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=120) as answer:
        return json.load(answer)


def _post(url: str, body: dict[str, Any] | None = None) -> None:
    request = urllib.request.Request(
        url, json.dumps(body or {}).encode(), {"content-type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=120).close()
