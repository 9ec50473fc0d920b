"""The addresses under which agents reach the proxy."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit, urlunsplit

from .errors import ConfigError


def agent_facing_url(proxy_url: str, agent_host: str | None) -> str:
    """The proxy's base URL as agents see it.

    :param agent_host: address or name, with a port if it is another one than the proxy URL's; without any port the
        URL has the default port of its scheme
    :raises ConfigError: for what is no address
    """
    if agent_host is None:
        return proxy_url
    parts = urlsplit(proxy_url)
    host = f"[{agent_host}]" if agent_host.count(":") > 1 and not agent_host.startswith("[") else agent_host
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?", host):
        raise ConfigError(f"LLM_PROXY_IP {agent_host!r} will not do: give an address, such as 10.0.0.1")
    if not re.search(r":\d+$", host) and parts.port is not None:
        host = f"{host}:{parts.port}"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def url_segment(session_id: str) -> str:
    """A session's id as one segment of a URL, and as the key that it is on a proxy without keys."""
    return quote(session_id, safe=":")
