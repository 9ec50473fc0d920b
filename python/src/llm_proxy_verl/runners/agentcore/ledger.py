"""Which AgentCore sessions may be running, on disk.

A session costs money until it is stopped, also when the process that started it is gone. Each runner writes a file of
its own into one folder, ``{"opened": id}`` before a session is started and ``{"closed": id}`` when it is stopped; the
next one to open the folder takes over what a dead one left open. ``llm-proxy rollout`` writes the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .threads import in_thread

#: A file of a live process is touched this often.
_TOUCH_S = 60.0
#: One that was not for so long has no process any more, whatever goes by its number now, on whatever machine.
_DEAD_AFTER_S = 5 * _TOUCH_S
_SUFFIX = ".sessions.jsonl"
#: Start of a process that has ended, and is there as a number alone.
_COLLECTED_BY_NOBODY = "ended"
#: In /proc/pid/stat, counted behind the name, which may hold anything:
#: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
_STATE, _START_TIME = 0, 19


class Ledger:
    """A runner's file; made by :meth:`open`."""

    def __init__(self, path: Path, file: int, open_sessions: list[str]) -> None:
        self._path = path
        self._file = file
        self._open = dict.fromkeys(open_sessions)
        self._writing = asyncio.Lock()
        self._touching = asyncio.create_task(self._touch())

    @classmethod
    async def open(cls, folder: Path, arn: str, qualifier: str) -> Ledger:
        """Takes over what dead processes left open of this endpoint.

        :param folder: made if it is not there
        :raises OSError: of the file system
        """
        return cls(*await asyncio.shield(in_thread(lambda: _take_over(folder, arn, qualifier))))

    @property
    def open_sessions(self) -> list[str]:
        """Those that are not known to be stopped; right after ``open`` those of dead processes."""
        return list(self._open)

    async def opened(self, session_id: str) -> None:
        """On disk when this returns: only then may the session be started."""
        self._open[session_id] = None
        await self._append({"opened": session_id})

    async def closed(self, session_id: str) -> None:
        """It is stopped."""
        self._open.pop(session_id, None)
        await self._append({"closed": session_id})

    async def close(self) -> None:
        """The file stays if a session is open."""
        self._touching.cancel()
        async with self._writing:
            os.close(self._file)
        if not self._open:
            self._path.unlink(missing_ok=True)

    async def _append(self, entry: Mapping[str, str]) -> None:
        async with self._writing:
            writing = in_thread(lambda: _write(self._file, [entry]))
            try:
                await asyncio.shield(writing)
            finally:
                # The next line comes after the whole of this one.
                if not writing.done():
                    await asyncio.wait([writing])

    async def _touch(self) -> None:
        while True:
            await asyncio.sleep(_TOUCH_S)
            with contextlib.suppress(OSError):
                os.utime(self._path)


def _take_over(folder: Path, arn: str, qualifier: str) -> tuple[Path, int, list[str]]:
    folder.mkdir(parents=True, exist_ok=True)
    left = _left_open(folder, arn, qualifier)
    sessions = [session for found in left.values() for session in found]
    path = folder / f"{uuid.uuid4()}{_SUFFIX}"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
    head: dict[str, Any] = {
        "version": 1,
        "arn": arn,
        "qualifier": qualifier,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    started = _process_start(os.getpid())
    if started is not None:
        head["started"] = started
    # Ours before theirs is removed: whatever comes between, each open session is in a file.
    _write(file, [head, *({"opened": session} for session in sessions)])
    for old in left:
        old.unlink(missing_ok=True)
    return path, file, sessions


def _write(file: int, lines: list[Mapping[str, Any]]) -> None:
    data = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    while data:
        data = data[os.write(file, data) :]
    os.fsync(file)


def _left_open(folder: Path, arn: str, qualifier: str) -> dict[Path, list[str]]:
    """Files of dead processes with this endpoint, and the sessions that each has open."""
    left = {}
    for path in folder.glob(f"*{_SUFFIX}"):
        # Another process may take it over at the same time: what is stopped twice is stopped.
        with contextlib.suppress(FileNotFoundError):
            head, *lines = [_parse(line) for line in path.read_text().split("\n")]
            is_ours = (head.get("version"), head.get("arn"), head.get("qualifier")) == (1, arn, qualifier)
            if is_ours and _is_dead(path, head):
                left[path] = _sessions_of(lines)
    return left


def _sessions_of(lines: list[dict[str, Any]]) -> list[str]:
    """A line that a crash cut off says nothing: its session was not started yet, or is stopped once more."""
    found: dict[str, None] = {}
    for line in lines:
        if isinstance(line.get("opened"), str):
            found[line["opened"]] = None
        if isinstance(line.get("closed"), str):
            found.pop(line["closed"], None)
    return list(found)


def _is_dead(path: Path, head: Mapping[str, Any]) -> bool:
    if time.time() - path.stat().st_mtime > _DEAD_AFTER_S:
        return True
    return head.get("host") == socket.gethostname() and not _is_alive(head.get("pid"), head.get("started"))


def _is_alive(pid: object, started: object) -> bool:
    """A number is not enough: in a container that starts again each process has the number of the one before it."""
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Somebody else's process is one too.
        pass
    now = _process_start(pid)
    if now is None:
        return True
    if now == _COLLECTED_BY_NOBODY:
        return False
    # Files of earlier versions have no start. This process did not write them.
    return pid != os.getpid() if started is None else started == now


def _process_start(pid: int) -> str | None:
    """When a process began, as text that no other process of its number has; ``None`` where the system does not tell.

    ``llm-proxy rollout`` writes the same text.
    """
    try:
        about = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = about[about.rindex(")") + 2 :].split(" ")
        if fields[_STATE] in ("Z", "X"):
            return _COLLECTED_BY_NOBODY
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {fields[_START_TIME]}"
    except (OSError, ValueError, IndexError):
        return None


def _parse(line: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        value = json.loads(line)
        return value if isinstance(value, dict) else {}
    return {}
