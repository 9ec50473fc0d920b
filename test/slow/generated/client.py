"""A rollout through the client that openapi-python-client generates from openapi.json: its requests, its models, its
errors."""
import os
import sys

sys.path.insert(0, os.environ["GENERATED"])
from llm_proxy_client import AuthenticatedClient  # noqa: E402
from llm_proxy_client.api.agent import post_by_session_id_v1_chat_completions as chat  # noqa: E402
from llm_proxy_client.api.agent import post_by_session_id_v1_messages as messages  # noqa: E402
from llm_proxy_client.api.health import get_health  # noqa: E402
from llm_proxy_client.api.sessions import delete_sessions_by_session_id as delete  # noqa: E402
from llm_proxy_client.api.sessions import get_sessions, post_sessions  # noqa: E402
from llm_proxy_client.api.sessions import get_sessions_by_session_id as read  # noqa: E402
from llm_proxy_client.api.sessions import get_sessions_by_session_id_trajectories as trajectories  # noqa: E402
from llm_proxy_client.api.sessions import post_sessions_by_session_id_complete as complete  # noqa: E402
from llm_proxy_client.api.sessions import post_sessions_by_session_id_reward as reward  # noqa: E402
from llm_proxy_client.api.traces import get_sessions_by_session_id_traces as traces  # noqa: E402
from llm_proxy_client.models import PostBySessionIdV1ChatCompletionsBody as ChatBody  # noqa: E402
from llm_proxy_client.models import PostBySessionIdV1MessagesBody as MessagesBody  # noqa: E402
from llm_proxy_client.models import PostSessionsBody, PostSessionsBySessionIdCompleteBody  # noqa: E402
from llm_proxy_client.models import PostSessionsBySessionIdRewardBody  # noqa: E402

SESSION = "task/of python:0"
client = AuthenticatedClient(
    base_url=os.environ["PROXY_URL"], token=os.environ["PROXY_KEY"], raise_on_unexpected_status=True
)
assert get_health.sync(client=client).status == "ok"
created = post_sessions.sync(client=client, body=PostSessionsBody.from_dict({"session_id": SESSION, "metadata": {"a": 1}}))
assert (created.session_id, created.status) == (SESSION, "created"), created
assert created.agent_key.startswith("lp-"), created

question = [{"role": "user", "content": "hi"}]
answer = chat.sync(
    SESSION, client=client, body=ChatBody.from_dict({"model": "x", "messages": question, "max_tokens": 4})
)
assert answer.choices[0]["message"]["role"] == "assistant", answer
message = messages.sync(
    SESSION, client=client, body=MessagesBody.from_dict({"model": "x", "messages": question, "max_tokens": 4})
)
assert message.type_ == "message", message
sampled = [answer.usage["completion_tokens"], message.usage["output_tokens"]]
assert all(1 <= count <= 4 for count in sampled), sampled
assert reward.sync(SESSION, client=client, body=PostSessionsBySessionIdRewardBody(reward=0.5)).reward == 0.5
assert complete.sync(SESSION, client=client, body=PostSessionsBySessionIdCompleteBody()).completed is True

whole = read.sync(SESSION, client=client)
assert [len(turn.completion_token_ids) for turn in whole.turns] == sampled, whole
assert [turn.completion_text for turn in read.sync(SESSION, client=client, ids=False).turns] == [
    turn.completion_text for turn in whole.turns
]
rows = trajectories.sync(SESSION, client=client, select="longest").trajectories
assert len(rows) == 1 and sum(rows[0].response_mask) == max(sampled) and rows[0].reward == 0.5, rows
assert [trace.completion_token_ids for trace in traces.sync(SESSION, client=client)] == [
    turn.completion_token_ids for turn in whole.turns
]
assert [session.session_id for session in get_sessions.sync(client=client, limit=5).sessions] == [SESSION]

after = chat.sync(SESSION, client=client, body=ChatBody.from_dict({"model": "x", "messages": question}))
assert after.error.code == "session_ended", after
assert delete.sync(SESSION, client=client).deleted == 1
unknown = read.sync_detailed(SESSION, client=client)
assert (unknown.status_code, unknown.parsed.detail) == (404, "Session not found"), unknown
print("done")
