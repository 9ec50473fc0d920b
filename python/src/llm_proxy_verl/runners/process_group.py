"""A command in a process group of its own, which ends with everything that it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

#: Between asking a command to end and killing it.
_GRACE_S = 5.0


@dataclass(frozen=True)
class GroupEnd:
    """How a command ended."""

    #: Negative: the signal that ended it. ``None``: it ran out of time.
    exit_code: int | None
    #: False when the sandbox could not start it: what there is of output and exit code is the sandbox's.
    started: bool = True

    @property
    def timed_out(self) -> bool:
        """Whether the time limit ended it."""
        return self.exit_code is None


async def run_group(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    output: Path,
    limit_s: float,
    status: IO[bytes] | None = None,
) -> GroupEnd:
    """Runs a command to its end. Whatever ends it (itself, the time limit, a cancellation), nothing of it is left.

    :param output: gets stdout and stderr as they come; a file, since a pipe stays open as long as anything that the
        command left behind holds it
    :param status: file in which a sandbox says whether the program in it ran: ``--json-status-fd`` of bubblewrap
    :raises OSError: when it cannot be started
    """
    with output.open("wb") as sink:
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                *command,
                cwd=cwd,
                env=dict(env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                pass_fds=() if status is None else (status.fileno(),),
            )
        )
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Its first lines may run already, and asyncio would end the command without what it has started.
            await _end_group(await starting)
            raise
    try:
        exit_code = await asyncio.wait_for(process.wait(), limit_s)
        return GroupEnd(exit_code, started=status is None or _has_run(status))
    except asyncio.TimeoutError:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), _GRACE_S)
        return GroupEnd(None)
    finally:
        # What it started in the background must not go on calling.
        await _end_group(process)


def _has_run(status: IO[bytes]) -> bool:
    """Written when the program has ended, and only if it ever began."""
    status.seek(0)
    return b'"exit-code"' in status.read()


async def _end_group(process: asyncio.subprocess.Process) -> None:
    _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def _signal_group(pid: int, which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, which)
