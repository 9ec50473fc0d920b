"""Fixtures: the real proxy as a process, and verl's rollout servers as an object with scripted outputs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

HERE = Path(__file__).parent
if importlib.util.find_spec("verl") is None:
    sys.path.insert(0, str(HERE / "fakes"))

import verl  # noqa: E402

from helpers.harbor import HARBOR_URL  # noqa: E402
from helpers.loaders import write_rows  # noqa: E402
from helpers.proxy import Proxy, start_proxy, start_rollouts  # noqa: E402
from llm_proxy_verl import process  # noqa: E402


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    kind = "a fake with the signatures of verl" if is_fake_verl() else "verl itself,"
    terminalreporter.write_line(f"these tests used {kind} {verl.__version__}")


def is_fake_verl() -> bool:
    return Path(str(verl.__file__)).is_relative_to(HERE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sets a time limit for tests without one, and skips tests that need verl itself."""
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(60))
        if is_fake_verl() and item.get_closest_marker("real_verl"):
            item.add_marker(pytest.mark.skip(reason="verl is not installed"))


@pytest.fixture(scope="session")
def relay_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy in relay and token mode, for all tests that check neither its workers nor its end.

    The ``HarborServer`` of the test runs its agents.
    """
    folder = tmp_path_factory.mktemp("proxy")
    with (
        start_proxy(folder) as proxy,
        start_rollouts(folder, proxy, "--runner", "harbor", "--harbor-url", HARBOR_URL) as both,
    ):
        yield both


@pytest.fixture(scope="module")
def rows_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with rows.jsonl, rows.parquet and rows.arrow."""
    folder = tmp_path_factory.mktemp("rows")
    write_rows(folder)
    return folder


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.fixture(autouse=True)
async def _shared_resources_end() -> AsyncIterator[None]:
    yield
    await process.close()
