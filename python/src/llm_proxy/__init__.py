"""Client library of llm-proxy: sessions, rewards, rows, consumers, weights and rollouts (docs/your-trainer.md)."""

from .client import AsyncClient, Client
from .consumers import AsyncConsumer, AsyncLease, Consumer, Fetched, Lease
from .errors import LlmProxyError, ProxyApiError
from .forest import PackedForest, TokenForest
from .records import EngineRequest
from .rows import Row, Turn
from .sessions import AsyncSession, Session

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncLease",
    "AsyncSession",
    "Client",
    "Consumer",
    "EngineRequest",
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
