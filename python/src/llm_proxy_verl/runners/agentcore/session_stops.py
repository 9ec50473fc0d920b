"""Ends sessions in the background: each stop is tried until it is answered, or the runner is closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ...delays import retry_delay
from .endpoint import AgentCoreEndpoint
from .ledger import Ledger
from .refusals import RefusalError

logger = logging.getLogger(__name__)

#: How long the last stops are waited for; what is left then is stopped by the next run.
_CLOSE_S = 60.0


class SessionStops:
    """Of one runner."""

    def __init__(self, endpoint: AgentCoreEndpoint, retry_base_s: float) -> None:
        self._endpoint = endpoint
        self._retry_base_s = retry_base_s
        self._running: set[asyncio.Task[None]] = set()
        self._has_warned = False

    def end(
        self,
        session_id: str,
        ledger: Ledger,
        *,
        is_begun: bool = True,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Stops a session, unless nothing of it can be running.

        :param then: when it is stopped, or never will be
        """
        ending = asyncio.create_task(self._end(session_id, ledger, is_begun))
        self._running.add(ending)

        def ended(_: object) -> None:
            self._running.discard(ending)
            if then is not None:
                then()

        ending.add_done_callback(ended)

    async def close(self) -> None:
        """Waits for the last ones."""
        if not self._running:
            return
        _, late = await asyncio.wait(set(self._running), timeout=_CLOSE_S)
        for ending in late:
            ending.cancel()
        if late:
            logger.warning("%d AgentCore sessions may be running; the next run stops them", len(late))
            await asyncio.wait(late)

    async def _end(self, session_id: str, ledger: Ledger, is_begun: bool) -> None:
        try:
            if is_begun:
                await self._stop(session_id)
            await ledger.closed(session_id)
        except (RefusalError, OSError) as error:
            # The ledger keeps it for a run that may.
            if not self._has_warned:
                logger.warning("a session could not be stopped and goes on costing: %s", error)
            self._has_warned = True

    async def _stop(self, session_id: str) -> None:
        failures = 0
        while True:
            try:
                return await self._endpoint.stop(session_id)
            except RefusalError as refusal:
                if refusal.kind == "refused":
                    raise
            failures += 1
            await asyncio.sleep(retry_delay(self._retry_base_s, failures))
