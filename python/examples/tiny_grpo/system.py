"""The processes of a run: engine, proxy in relay mode, worker and agents."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from . import model, text

REPOSITORY = text.HERE.parents[2]
#: ``LLM_PROXY`` names an executable where there is no Node.
LLM_PROXY = os.environ.get("LLM_PROXY") or str(REPOSITORY / "bin/llm-proxy")


@dataclasses.dataclass(frozen=True)
class System:
    """The URLs of the running processes."""

    proxy_url: str
    engine_url: str
    agents_url: str
    #: Weights, tasks, rows, the engine's log, and the proxy's database.
    directory: Path
    proxy_pid: int
    worker_pid: int

    @property
    def engine_log(self) -> Path:
        """The engine's own ids and logprobs, a line for each completion, if ``log_engine`` is set."""
        return self.directory / "engine.jsonl"


@contextlib.contextmanager
def running(
    directory: Path,
    weights: Path,
    *,
    context: int,
    placement: model.Placement = model.Placement(),
    log_engine: bool = False,
    seed: int = 0,
    token_mode: bool = True,
    agent_flags: tuple[str, ...] = (),
) -> Iterator[System]:
    """Starts the processes, and ends them with the block."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in (*directory.glob("proxy.db*"), *directory.glob("engine.jsonl")):
        old.unlink()
    with contextlib.ExitStack() as started, (directory / "system.log").open("w") as log:

        def start(*command: str) -> tuple[str, int]:
            """Starts a process; returns its first line of output, which it prints once it is ready, and its id."""
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=text.HERE.parent,
                start_new_session=True,
            )
            started.callback(_end, process)
            line = process.stdout.readline().strip() if process.stdout else ""
            if not line:
                raise RuntimeError(f"{' '.join(command)} did not start; {log.name} says why")
            return line, process.pid

        log_flags = ["--log", str(directory / "engine.jsonl")] if log_engine else []
        engine, _ = start(
            sys.executable, "-m", "tiny_grpo.engine", "--weights", str(weights), "--seed", str(seed),
            "--device", placement.device, "--dtype", placement.dtype, *log_flags,
        )  # fmt: skip
        folder = text.write_model_directory(directory / "model")
        tokens = ["--tokenizer", str(folder), "--tool-parser", "hermes", "--context-length", str(context)]
        ready, proxy_pid = start(
            LLM_PROXY, "serve", "--mode", "relay", "--port", "0", "--db", str(directory / "proxy.db"),
            "--durability", "process", "--log-level", "warn", *(tokens if token_mode else ()),
        )  # fmt: skip
        proxy = re.search(r"http://\S+", ready)[0]
        _, worker_pid = start(
            LLM_PROXY, "worker", "--proxy-url", proxy, "--engine-url", engine, "--log-level", "warn"
        )
        agents, _ = start(sys.executable, "-m", "tiny_grpo.agents", *agent_flags)
        yield System(proxy, engine, agents, directory, proxy_pid, worker_pid)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout:
        process.stdout.close()
