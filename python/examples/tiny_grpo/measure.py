"""Measures a closed loop on one machine: training as a whole, and what the proxy adds to the engine's responses.

The engine serves a policy of some size, on a GPU if there is one. First, 64 clients stream completions from the engine
and through the proxy and its worker, in the order engine, proxy, proxy, engine. Then the policy trains. Linux only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp
import torch

from . import dialogues, model, show, system, trainer
from .batching import SEATS
from .engine_log import EngineLog
from .trainer import Line, Row, Trainer

#: Completions of each client in each of the four rounds, and the tokens of each.
COMPLETIONS, TOKENS = 6, 96
ROUNDS = ("engine", "proxy", "proxy", "engine")


def run(weights: Path, out: Path, placement: model.Placement, steps: int) -> int:
    """Writes ``measure.json``, ``measure.md`` and ``training.png`` to ``out``; returns 0 if every row is exact."""
    policy = model.load(weights, model.Placement(placement.device))
    settings = trainer.Settings(steps=steps, engine_dtype=placement.dtype)
    rows: list[Row] = []

    def keep_rows(where: system.System, lines: list[Line], advantage: float) -> list[Row]:
        kept = trainer.proxy_rows(where, lines, advantage)
        rows.extend(kept)
        return kept

    with system.running(
        out / "measure", weights, context=policy.shape.context, placement=placement, log_engine=True
    ) as where:
        # The first round of each target compiles code and opens connections.
        rounds = [asyncio.run(measure_round(where, target)) for target in ("engine", "proxy", *ROUNDS)][2:]
        done: list[show.Step] = []
        print(show.header(), flush=True)
        for step in Trainer(where, policy, settings, 0, to_rows=keep_rows).run():
            done.append(step)
            print(show.line(step), flush=True)
        unknown = EngineLog(where.engine_log).unknown(rows)
    result = {
        "machine": machine(placement),
        "parameters": sum(weight.numel() for weight in policy.parameters()),
        "dtype": placement.dtype,
        "rounds": rounds,
        "steps": done,
        "rows": len(rows),
        "completions_unknown_to_engine": unknown,
    }
    (out / "measure.json").write_text(json.dumps(result, indent=1))
    (out / "measure.md").write_text(table(result))
    show.plot({f"{result['parameters'] / 1e6:.0f} million parameters": done}, out / "training.png")
    print(f"\n{table(result)}")
    return 0 if unknown == 0 and all(step["exact_rows"] == 1 for step in done) else 1


async def measure_round(where: system.System, target: str) -> dict[str, Any]:
    """Streams completions with as many clients as the engine has seats.

    :returns: sampled tokens per second, durations in seconds, and CPU seconds of proxy and worker
    """
    dice = random.Random(1)
    prompts = [dialogues.draw_dialogue(dice, careful=True)[0][:64] for _ in range(SEATS)]
    cpu = {"proxy": cpu_seconds(where.proxy_pid), "worker": cpu_seconds(where.worker_pid)}
    started = time.monotonic()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, raise_for_status=True) as http:
        clients = (_client(http, where, target, number, prompt) for number, prompt in enumerate(prompts))
        durations = [seconds for client in await asyncio.gather(*clients) for seconds in client]
    seconds = time.monotonic() - started
    return {
        "target": target,
        "tokens_per_second": len(durations) * TOKENS / seconds,
        "durations": durations,
        "proxy_cpu": cpu_seconds(where.proxy_pid) - cpu["proxy"],
        "worker_cpu": cpu_seconds(where.worker_pid) - cpu["worker"],
    }


async def _client(
    http: aiohttp.ClientSession, where: system.System, target: str, number: int, prompt: list[int]
) -> list[float]:
    """Streams ``COMPLETIONS`` responses one after the other; returns their durations in seconds."""
    session = f"measure-{os.urandom(4).hex()}-{number}"
    base = where.engine_url if target == "engine" else f"{where.proxy_url}/{session}"
    body = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    fields = {"logprobs": 1, "return_token_ids": True, "stream_options": {"include_usage": True}}
    durations = []
    for _ in range(COMPLETIONS):
        started = time.monotonic()
        async with http.post(f"{base}/v1/completions", json=body | fields) as response:
            text = await response.text()
        durations.append(time.monotonic() - started)
        if f'"completion_tokens":{TOKENS}' not in text.replace(" ", ""):
            raise RuntimeError(f"{target} did not complete {TOKENS} tokens: {text[-500:]}")
    return durations


def cpu_seconds(root: int) -> float:
    """Returns the CPU time, user and system, of a process and its descendants (proc_pid_stat(5))."""
    ticks, children = {}, defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            ticks[pid] = int(fields[11]) + int(fields[12])
            children[int(fields[1])].append(pid)
    family = [root]
    for pid in family:
        family.extend(children[pid])
    return sum(ticks[pid] for pid in family) / os.sysconf("SC_CLK_TCK")


def machine(placement: model.Placement) -> str:
    """Returns the name of the device, the number of CPU cores and the version of PyTorch."""
    device = torch.cuda.get_device_name() if placement.device == "cuda" else platform.machine()
    return f"{device}, {os.cpu_count()} CPU cores, PyTorch {torch.__version__}"


def table(result: dict[str, Any]) -> str:
    """Returns the results as Markdown."""
    engine, proxy = (Rounds(result["rounds"], target) for target in ("engine", "proxy"))
    p50, p99 = ((proxy.percentiles[place - 1] - engine.percentiles[place - 1]) * 1000 for place in (50, 99))
    steps = result["steps"]
    first, last = (statistics.mean(step["reward"] for step in part) for part in (steps[:5], steps[-5:]))
    unknown, error = result["completions_unknown_to_engine"], max(step["logprob_error"] for step in steps)
    lines = {
        "machine": result["machine"],
        "policy": f"{result['parameters'] / 1e6:.1f} million parameters, {result['dtype']}",
        "tokens per second, engine alone": f"{engine.speed:,.0f}",
        "tokens per second, through the proxy": f"{proxy.speed:,.0f} ({proxy.speed / engine.speed:.1%})",
        f"time added to {TOKENS} tokens": f"p50 {p50:+.1f} ms, p99 {p99:+.1f} ms",
        "CPU time of a turn": f"proxy {proxy.cpu('proxy_cpu'):.2f} ms, worker {proxy.cpu('worker_cpu'):.2f} ms",
        "reward, first and last five steps": f"{first:.2f}, {last:.2f} ({len(steps)} steps)",
        "exact samples, of the worst step": f"{min(step['exact_rows'] for step in steps):.0%}",
        "rows": f"{result['rows']}",
        "completions that differ from the engine's log": f"{unknown}",
        "largest difference of recorded and recomputed logprobs": f"{error:.1e}",
    }
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in lines.items())


class Rounds:
    """The rounds of one target, summarised."""

    def __init__(self, rounds: list[dict[str, Any]], target: str) -> None:
        self._rounds = [part for part in rounds if part["target"] == target]
        self._durations = [seconds for part in self._rounds for seconds in part["durations"]]
        self.speed = statistics.mean(part["tokens_per_second"] for part in self._rounds)
        self.percentiles = statistics.quantiles(self._durations, n=100)

    def cpu(self, name: str) -> float:
        """Returns the mean CPU time of a turn in milliseconds."""
        return sum(part[name] for part in self._rounds) / len(self._durations) * 1000
