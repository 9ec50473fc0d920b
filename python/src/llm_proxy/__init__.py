"""The client of llm-proxy: sessions, rewards, rows, groups, weights, rollouts (docs/your-trainer.md)."""

from .client import AsyncClient, AsyncSession, Client, Session
from .errors import LlmProxyError, ProxyApiError
from .rows import Row, Turn

__all__ = [
    "AsyncClient",
    "AsyncSession",
    "Client",
    "LlmProxyError",
    "ProxyApiError",
    "Row",
    "Session",
    "Turn",
]
