"""Consumers of the client, against the real proxy: fetches, acknowledgements, releases and lost responses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from helpers.forwarder import Forwarder
from helpers.proxy import Proxy, start_proxy
from llm_proxy import AsyncClient, Client, ProxyApiError
from test_client import converse


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy on the embedded engine."""
    with start_proxy(tmp_path_factory.mktemp("consumers"), mode="local") as started:
        yield started


def complete(client: Client, task: str, reward: float = 1) -> str:
    """Creates a completed session of one turn."""
    with client.create(metadata={"task": task}) as session:
        converse(session.base_url, "any", 1)
        session.reward(reward)
    return session.id


def test_an_acknowledged_session_is_removed_and_a_released_one_is_delivered_again(proxy: Proxy) -> None:
    with Client(proxy.url) as client:
        consumer = client.consumer("again", metadata={"task": "again"})
        session_ids = [complete(client, "again", reward) for reward in (1, 2, 3)]
        lease = consumer.fetch(2, lease_s=60)
        assert [session.session_id for session in lease.sessions] == session_ids[:2]
        assert [row.reward for row in lease.rows] == [1.0, 2.0]
        assert lease.rows == [row for one in session_ids[:2] for row in client.session(one).rows()]
        (first, _) = lease.sessions
        assert (first.deliveries, first.metadata["task"], first.fields["turn_count"]) == (1, "again", 1)
        assert lease.ack() == []
        other = consumer.fetch(limit=9, select="last", details="advantages")
        assert [row.fields["advantages"] for row in other.rows] == [None]
        assert other.extend() == []
        assert len(consumer.fetch(9)) == 0
        assert consumer.release() == session_ids[2:]
        (last,) = consumer.fetch(9).sessions
        assert (last.session_id, last.deliveries) == (session_ids[2], 2)
        assert other.ack() == session_ids[2:], "another process has it"
        counts = consumer.info()
        assert (counts["available"], counts["leased"], counts["acknowledged"]) == (0, 1, 2)
        with pytest.raises(ProxyApiError, match="other settings"):
            client.consumer("again")
        assert consumer.delete()
        assert not consumer.delete()


def test_a_waiting_process_receives_complete_groups(proxy: Proxy) -> None:
    with Client(proxy.url) as client:
        settings = {"group_by": "task", "group_size": 2, "metadata": {"task": "whole"}, "rewarded": True}
        settings["group_timeout_s"] = 3600
        consumer = client.consumer("groups", **settings)
        one = complete(client, "whole")
        timer = threading.Timer(0.3, lambda: complete(client, "whole"))
        timer.start()
        lease = client.consumer("groups", **settings).fetch(wait_s=30)
        timer.join()
        assert len(lease) == 2
        assert lease.sessions[0].session_id == one
        assert lease.discarded == {"stale": 0, "unversioned": 0, "incomplete": 0, "damaged": 0}
        lease.release()
        assert len(consumer.fetch(min_weight_version=10**9)) == 0, "the embedded engine's version is another"
        assert consumer.info()["acknowledged"] >= 2


@pytest.mark.parametrize("oldest", [0, 0.0])
def test_a_weight_version_of_0_excludes_sessions_without_a_version(proxy: Proxy, oldest: float) -> None:
    task = f"oldest {oldest!r}"
    with Client(proxy.url) as client:
        consumer = client.consumer(f"oldest-{oldest!r}", metadata={"task": task})
        complete(client, task)
        lease = consumer.fetch(min_weight_version=oldest)
        assert (len(lease), lease.discarded["unversioned"]) == (0, 1)


def test_a_duration_of_0_is_rejected_and_not_replaced_by_the_default(proxy: Proxy) -> None:
    with Client(proxy.url) as client:
        consumer = client.consumer("brief", metadata={"task": "brief"})
        with pytest.raises(ProxyApiError, match="lease_s"):
            consumer.fetch(lease_s=0)


async def test_a_lost_response_is_requested_again(proxy: Proxy) -> None:
    async with Forwarder(proxy.url) as forwarder, AsyncClient(forwarder.url) as client:
        consumer = await client.consumer("lost", metadata={"task": "lost"})
        waiting = asyncio.create_task(consumer.fetch(3, wait_s=30))
        await asyncio.sleep(0.2)
        forwarder.cut()
        with Client(proxy.url) as other:
            session_id = await asyncio.to_thread(complete, other, "lost")
        lease = await waiting
        assert [one.session_id for one in lease.sessions] == [session_id]
        again = await consumer.fetch(3, lease_id=lease.id)
        assert [(one.session_id, one.deliveries) for one in again.sessions] == [(session_id, 1)]
        assert await lease.extend(60) == []
        assert await lease.ack() == []
        await lease.release()
        assert len(await consumer.fetch(lease_id=lease.id)) == 0
        assert (await consumer.info())["acknowledged"] >= 1
        assert await consumer.release() == []
        assert await consumer.delete()
