"""Runs the agent of docs/agentcore.md verbatim. Prints its URL."""

import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn

page = Path(__file__).parents[3] / "docs" / "agentcore.md"
[program] = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
names: dict[str, Any] = {"__name__": "documented"}
exec(program, names)

listening = socket.create_server(("127.0.0.1", 0))
print(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"}), flush=True)
# The test reads no stdout from here on, and the agent prints to it.
sys.stdout = sys.stderr
# The connections of a batch are idle for more than 5 s between requests; a request fails on a connection that the server
# is closing.
uvicorn.Server(uvicorn.Config(names["app"], log_level="error", timeout_keep_alive=3600)).run(sockets=[listening])
