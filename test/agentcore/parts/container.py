"""The program in a container, with the toolkit's own apps: `container.py s3|envelope`. Prints its URL."""

import json
import os
import socket
import sys
import time

import uvicorn
from openai import OpenAI
from strands_agent import solve

KIND = sys.argv[1]

if KIND == "s3":
    from agentcore_rl_toolkit import AgentCoreRLApp

    app = AgentCoreRLApp()
    entrypoint = app.rollout_entrypoint
    CONFIG = "_rollout"
else:
    from agentcore_rl_toolkit.runtime import AgentCoreRuntimeApp

    app = AgentCoreRuntimeApp(state_dir=os.environ["STATE_DIR"])
    entrypoint = app.entrypoint
    CONFIG = "_config"


def put(payload, context, body: bytes) -> None:
    rollout = payload["_rollout"]
    key = f"{rollout['exp_id']}/{rollout['input_id']}/{context.session_id}.json"
    app.s3_client.put_object(Bucket=rollout["s3_bucket"], Key=key, Body=body)


@entrypoint
def agent(payload, context):
    """Sends two requests, as a tool loop does, unless the payload's `does` names another behaviour."""
    does = payload.get("does")
    if does == "raise":
        raise RuntimeError("boom")
    if does == "html":
        put(payload, context, b"<html>")
        time.sleep(2)
    if does == "early":
        put(payload, context, json.dumps({"reward": 0.75}).encode())
        time.sleep(2)
    if does == "sleep":
        time.sleep(5)
    config = payload[CONFIG]
    if does == "calculate":
        return {"reward": float(solve(payload["prompt"], config).endswith(f" {payload['answer']}."))}
    client = OpenAI(base_url=config["base_url"], api_key=config["api_key"])
    messages = [{"role": "user", "content": payload["prompt"]}]
    for _ in range(2):
        response = client.chat.completions.create(model=config["model_id"], messages=messages, max_tokens=6)
        messages.append({"role": "assistant", "content": response.choices[0].message.content})
        messages.append({"role": "user", "content": "Go on."})
    return {"reward": 0.5, "rewards": [0.0, 0.5]}


listening = socket.create_server(("127.0.0.1", 0))
print(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"}), flush=True)
# The connections of a batch are idle for more than 5 s between requests; a request fails on a connection that the server
# is closing.
uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_keep_alive=3600)).run(sockets=[listening])
