"""Managers that start rLLM's gateway themselves, unchanged, on a machine where a proxy already uses the port.

`SlimeGatewayManager` comes from AgentCore's toolkit 0.1.5 on PyPI. rLLM's `GatewayManager` is not on PyPI: it starts
the command below, and then uses the address of its options as the toolkit's does. Any claim of docs/gateway.md
that does not hold ends this with an error.
"""

import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

from openai import OpenAI
from rllm_model_gateway import GatewayClient

proxy, engine = urlsplit(os.environ["PROXY_URL"]), os.environ["ENGINE_URL"]
folder = Path(os.environ["FOLDER"])
REQUIREMENT, SOURCE = "agentcore-rl-toolkit==0.1.5", "agentcore_rl_toolkit/backends/slime/integration/gateway.py"


def send_request(base_url: str) -> None:
    client = OpenAI(base_url=base_url, api_key="none", max_retries=0)
    client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}])


def check_rllm() -> None:
    """Starts the gateway with the manager's options: `rllm.gateway.host`, `rllm.gateway.port`."""
    command = ["-m", "rllm_model_gateway", "--host", "0.0.0.0", "--port", str(proxy.port), "--store", "memory"]
    spawned = subprocess.Popen([sys.executable, *command])
    client = GatewayClient(f"http://{proxy.hostname}:{proxy.port}")
    assert client.health()["mode"] == "local", "the proxy responds at once"
    client.add_worker(url=engine)
    assert spawned.wait(60) != 0, "its own gateway finds no port"
    client.create_session("rllm:0")
    send_request(client.get_session_url("rllm:0"))
    assert client.flush()
    (trace,) = client.get_session_traces("rllm:0")
    assert trace.completion_token_ids


def check_toolkit() -> None:
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), REQUIREMENT]
    subprocess.run(download, check=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extract(SOURCE, folder)
    found = runpy.run_path(str(folder / SOURCE))
    config = found["GatewayConfig"](host=proxy.hostname, port=proxy.port, model="some/model")
    manager = found["SlimeGatewayManager"](config)
    manager.start(engine)
    send_request(manager.create_session("slime:0", {"temperature": 0.5}))
    (trace,) = manager.get_traces("slime:0")
    assert trace.completion_token_ids
    manager.delete_session("slime:0")
    assert manager.get_traces("slime:0") == []
    manager.shutdown()


check_rllm()
check_toolkit()
assert GatewayClient(f"http://{proxy.hostname}:{proxy.port}").health()["status"] == "ok", "the proxy has ended"
print("\ndone")
