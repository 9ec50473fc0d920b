"""Uses a proxy with rLLM's own client; any claim of docs/gateway.md that does not hold ends this with an error."""

import asyncio
import os

from openai import OpenAI
from rllm_model_gateway import AsyncGatewayClient, GatewayClient

proxy, engine = os.environ["PROXY_URL"], os.environ["ENGINE_URL"]


def send_request(base_url: str) -> None:
    client = OpenAI(base_url=base_url, api_key="none", max_retries=0)
    client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}])


# The document's own example, with an agent in place of the comment and with the test's addresses.
example = os.environ["EXAMPLE"].replace("http://proxy:9090", proxy).replace("http://vllm-0:8000", engine)
assert "# … the agent runs …" in example
found: dict = {"send_request": send_request}
exec(example.replace("# … the agent runs …", "send_request(agent_base_url)"), found)
assert [trace.session_id for trace in found["traces"]] == [found["session_id"]]
assert found["traces"][0].completion_token_ids, "traces have ids"

with GatewayClient(proxy) as client:
    for session_id in ["plain", "harbor/hello-world:0", "a b+c@d,é"]:
        assert client.create_session(session_id, metadata={"n": 1}) == session_id
        assert client.create_session(session_id, metadata={"n": 2}) == session_id
        send_request(client.get_session_url(session_id))
        assert client.get_session_info(session_id)["metadata"]["n"] == 1, "found, not changed"
        (trace,) = client.get_session_traces(session_id)
        assert client.get_trace(trace.trace_id).trace_id == trace.trace_id
        assert client.get_session_traces(session_id, since=trace.timestamp + 60) == []
        assert client.delete_session(session_id) == 1, "counts sessions"
        assert client.delete_session(session_id) == 0, "one that is not there counts nothing"
        assert client.get_session_traces(session_id) == []
    client.create_session("listed")
    listed = client.list_sessions(since=0, limit=1)
    assert [session["session_id"] for session in listed["sessions"]] == ["listed"]
    assert client.list_sessions(since=4_000_000_000)["sessions"] == []
    worker_id = client.add_worker(url=engine, weight=2)
    assert worker_id == client.add_worker(url=f"{engine}/v1"), "known by URL"
    assert [worker.worker_id for worker in client.list_workers()] == [worker_id]
    assert client.flush() is True
    assert client.health()["status"] == "ok"


async def check_async_client() -> None:
    client = AsyncGatewayClient(proxy)
    session_id = await client.create_session()
    assert await client.get_session_traces(session_id) == []
    assert await client.delete_session(session_id) == 1
    await client.close()


asyncio.run(check_async_client())
print("\ndone")
