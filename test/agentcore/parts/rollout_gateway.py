"""A trainer with version 0.2 of the toolkit, with the proxy in place of its `rollout_gateway`, as in docs/gateway.md.

The toolkit's own `RolloutSession` runs the sessions. The proxy's rows must become the same records that the
`TrajectoryManager` of the toolkit's gateway creates from the same requests; a difference fails this program.
"""

import asyncio
import os
import uuid

import agentcore_rl_toolkit.runtime.client as runtime_client
import httpx
from agentcore_rl_toolkit.rollout_gateway import BaseTrace, TrajectoryManager, TurnRecord
from agentcore_rl_toolkit.rollout_session.agentcore_http_session import AgentCoreHttpSession
from agentcore_rl_toolkit.runtime import AgentCoreHttpClient
from openai import APIStatusError, OpenAI

PROXY = os.environ["PROXY_URL"]
REWARD = 0.5
# The interval at which the toolkit polls for a result; its default is 10 s.
runtime_client.POLL_INTERVAL = 0.2

http = httpx.Client(base_url=PROXY, timeout=60)
documented: dict = {}
exec(os.environ["EXAMPLE"], documented)


def post(path: str, **body: object) -> httpx.Response:
    return http.post(path, json=body).raise_for_status()


def create_session() -> str:
    session_id = f"verl_{uuid.uuid4().hex}"
    # With this seed no completion has reasoning, which the agents would omit from their echo.
    post("/sessions", session_id=session_id, sampling_params={"temperature": 1.0, "seed": 1})
    return session_id


def get_fields(record: object) -> tuple:
    return (record.token_ids, record.loss_mask, record.logprobs, record.response_length, record.reward)


def check_records(session_id: str) -> list:
    """Returns the documented code's records of the rows, after comparing them with the toolkit's own."""
    post(f"/sessions/{session_id}/complete")
    rows = http.get(f"/sessions/{session_id}/trajectories").json()["trajectories"]
    ours = [documented["trace_record"](row, REWARD) for row in rows]
    manager = TrajectoryManager()
    for trace in http.get(f"/sessions/{session_id}/traces").json():
        turn = TurnRecord(
            trace["prompt_token_ids"], trace["completion_token_ids"], trace["finish_reason"], trace["logprobs"]
        )
        response = {"role": "assistant", "content": trace["response_message"]["content"]}
        manager.record_turn(session_id, turn=turn, prompt_messages=trace["messages"], response_message=response)
    theirs = manager.get_trajectory(session_id, base_sample=BaseTrace(), reward=REWARD)
    assert [get_fields(record) for record in ours] == [get_fields(record) for record in theirs]
    return ours


async def run_agent() -> None:
    """Runs an AgentCore session whose agent has the proxy's base URL, and the session's id as its key."""
    session_id = create_session()
    config = {"base_url": f"{PROXY}/v1", "api_key": session_id, "model_id": "any"}
    async with AgentCoreHttpClient(os.environ["ARN"]) as client:
        async with AgentCoreHttpSession.with_client(session_id, client) as session:
            dump = await session.run({"prompt": "What is 1?", "_config": config})
    assert dump.is_successful() and dump.reward == REWARD, dump
    (record,) = check_records(session_id)
    assert sum(a != b for a, b in zip(record.loss_mask, record.loss_mask[1:])) == 2, "two completions, and the messages between them"


def branch() -> None:
    """Sends two continuations of one completion, which only the first of two records trains."""
    session_id = create_session()
    agent = OpenAI(base_url=f"{PROXY}/v1", api_key=session_id, max_retries=0)
    assert agent.models.list().data

    def send(*messages: dict) -> dict:
        response = agent.chat.completions.create(model="any", messages=messages, max_tokens=6)
        return {"role": "assistant", "content": response.choices[0].message.content}

    question = {"role": "user", "content": "What is 2?"}
    shared = send(question)
    for more in ("Go on.", "Say that again."):
        send(question, shared, {"role": "user", "content": more})
    first, second = check_records(session_id)
    assert sum(first.loss_mask) > sum(second.loss_mask) > 0
    try:
        send(question)
    except APIStatusError as error:
        assert error.status_code == 409, "the session has ended"
    else:
        raise AssertionError("a request after the end of its session succeeded")


asyncio.run(run_agent())
branch()
print("\ndone")
