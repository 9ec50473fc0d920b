"""The ledger of AgentCore sessions: whose sessions are taken over, and whose are left alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from helpers.waiting import eventually
from llm_proxy_verl.runners.agentcore.ledger import Ledger

#: The kernel's own books: other systems number their processes so that a number does not soon come again.
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")


def left_by(folder: Path, session: str, **head: object) -> Path:
    path = folder / f"{session}.sessions.jsonl"
    first = {"version": 1, "arn": "arn:1", "qualifier": "DEFAULT", "host": socket.gethostname(), **head}
    path.write_text(f"{json.dumps(first)}\n{json.dumps({'opened': session})}\n")
    return path


def only_head_in(folder: Path) -> dict[str, object]:
    (path,) = folder.iterdir()
    head: dict[str, object] = json.loads(path.read_text())
    return head


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Ledger]:
    ledger = await Ledger.open(folder, "arn:1", "DEFAULT")
    try:
        yield ledger
    finally:
        await ledger.close()


def start_of(pid: int) -> str:
    """As ``llm-proxy rollout`` writes it: the boot's id, and field 22 of the process's stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {fields[22 - 3]}"


@pytest.fixture
def ended() -> Iterator[subprocess.Popen[bytes]]:
    """A child that is not waited for."""
    child = subprocess.Popen(["true"])
    yield child
    child.wait()


async def test_a_living_process_keeps_its_sessions(tmp_path: Path) -> None:
    left_by(tmp_path, "of an earlier version", pid=os.getppid())
    async with opened(tmp_path) as first:
        await first.opened("of a run of the same process")
        async with opened(tmp_path) as second:
            assert second.open_sessions == []


@ON_LINUX
async def test_the_file_says_when_its_process_began_and_is_believed(tmp_path: Path) -> None:
    async with opened(tmp_path):
        head = only_head_in(tmp_path)
        assert (head["pid"], head["started"]) == (os.getpid(), start_of(os.getpid()))
    left_by(tmp_path, "a", pid=os.getppid(), started=start_of(os.getppid()))
    async with opened(tmp_path) as ledger:
        assert ledger.open_sessions == []


@ON_LINUX
async def test_a_container_that_starts_again_has_the_number_of_the_one_that_crashed(tmp_path: Path) -> None:
    left_by(tmp_path, "a", pid=os.getpid(), started="of an earlier process")
    left_by(tmp_path, "b", pid=os.getppid(), started="of an earlier process")
    left_by(tmp_path, "c", pid=os.getpid())
    async with opened(tmp_path) as ledger:
        assert sorted(ledger.open_sessions) == ["a", "b", "c"]


@ON_LINUX
async def test_a_process_that_has_ended_and_that_nobody_has_collected_is_dead(
    tmp_path: Path, ended: subprocess.Popen[bytes]
) -> None:
    stat = Path(f"/proc/{ended.pid}/stat")
    await eventually(lambda: stat.read_text().rsplit(") ", 1)[1][0] == "Z", "the child has ended")
    left_by(tmp_path, "a", pid=ended.pid)
    async with opened(tmp_path) as ledger:
        assert ledger.open_sessions == ["a"]
