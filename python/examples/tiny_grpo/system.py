"""The processes of a run: engine, proxy in relay mode, worker and agents, as if on machines of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from . import text

REPOSITORY = text.HERE.parents[2]
LLM_PROXY = str(REPOSITORY / "bin/llm-proxy")


@dataclasses.dataclass(frozen=True)
class System:
    """Where what runs is to be reached."""

    proxy_url: str
    engine_url: str
    agents_url: str
    #: For weights, tasks, rows, and the proxy's database.
    directory: Path


@contextlib.contextmanager
def running(
    directory: Path,
    weights: Path,
    *,
    context: int,
    seed: int = 0,
    token_mode: bool = True,
    agent_flags: tuple[str, ...] = (),
) -> Iterator[System]:
    """Starts all of it, and ends it with the block."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("proxy.db*"):
        old.unlink()
    with contextlib.ExitStack() as started, (directory / "system.log").open("w") as log:

        def start(*command: str) -> str:
            """Starts a process; returns its first line of output, which says that it is ready."""
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
            return line

        engine = start(
            sys.executable, "-m", "tiny_grpo.engine", "--weights", str(weights), "--seed", str(seed)
        )
        model = text.write_model_directory(directory / "model")
        tokens = ["--tokenizer", str(model), "--tool-parser", "hermes", "--context-length", str(context)]
        ready = start(
            LLM_PROXY, "serve", "--mode", "relay", "--port", "0", "--db", str(directory / "proxy.db"),
            "--durability", "process", "--log-level", "warn", *(tokens if token_mode else ()),
        )  # fmt: skip
        proxy = re.search(r"http://\S+", ready)[0]
        start(LLM_PROXY, "worker", "--proxy-url", proxy, "--engine-url", engine, "--log-level", "warn")
        agents = start(sys.executable, "-m", "tiny_grpo.agents", *agent_flags)
        yield System(proxy, engine, agents, directory)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout:
        process.stdout.close()
