"""The client of llm-proxy: sessions, rewards, rows, consumers, weights, rollouts (docs/your-trainer.md)."""

from .client import AsyncClient, AsyncSession, Client, Session
from .consumer_calls import Fetched
from .consumers import AsyncConsumer, AsyncLease, Consumer, Lease
from .errors import LlmProxyError, ProxyApiError
from .forest import PackedForest, TokenForest
from .rows import Row, Turn

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncLease",
    "AsyncSession",
    "Client",
    "Consumer",
    "Fetched",
    "Lease",
    "LlmProxyError",
    "PackedForest",
    "ProxyApiError",
    "Row",
    "Session",
    "TokenForest",
    "Turn",
]
