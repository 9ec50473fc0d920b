"""llm-proxy for verl.

Only ``llm_proxy_verl.agent_loop``, which contains ``RemoteAgentLoop``, requires verl.
"""

from llm_proxy import LlmProxyError, ProxyApiError

from .config import RemoteAgentConfig
from .errors import CallError, ConfigError
from .verl_engine import RolloutLimits, VerlEngine
from .worker.client import InferenceWorkerClient

__all__ = [
    "CallError",
    "ConfigError",
    "InferenceWorkerClient",
    "LlmProxyError",
    "ProxyApiError",
    "RemoteAgentConfig",
    "RolloutLimits",
    "VerlEngine",
]
