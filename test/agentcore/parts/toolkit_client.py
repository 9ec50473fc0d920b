"""Runs one rollout of `PROMPT` with the toolkit's own client at the session `BASE_URL`. Prints its result."""

import json
import os

from agentcore_rl_toolkit import RolloutClient

client = RolloutClient(
    os.environ["ARN"],
    os.environ["BUCKET"],
    "theirs",
    base_url=os.environ["BASE_URL"],
    model_id="embedded",
    api_key=os.environ["API_KEY"],
)
future = client.invoke({"prompt": os.environ["PROMPT"]})
print(json.dumps(future.result(timeout=60)))
