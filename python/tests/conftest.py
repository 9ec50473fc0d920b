"""Fixtures: the real proxy as a process, and verl's rollout servers as an object that scripts what they sample."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

HERE = Path(__file__).parent
if importlib.util.find_spec("verl") is None:
    sys.path.insert(0, str(HERE / "standin"))

import verl  # noqa: E402

from helpers.harbor import HARBOR_URL  # noqa: E402
from helpers.loaders import write_rows  # noqa: E402
from helpers.proxy import Proxy, start_proxy, start_rollouts  # noqa: E402
from llm_proxy_verl import process  # noqa: E402


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    kind = "a stand-in with the signatures of verl" if is_standin() else "verl itself,"
    terminalreporter.write_line(f"these tests used {kind} {verl.__version__}")


def is_standin() -> bool:
    return Path(str(verl.__file__)).is_relative_to(HERE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No test may hang for ever, whatever it waits for."""
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(60))
        if is_standin() and item.get_closest_marker("real_verl"):
            item.add_marker(pytest.mark.skip(reason="verl is not installed"))


@pytest.fixture(scope="session")
def relay_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy in relay and token mode, for all tests that do not look at its workers or its end.

    Its agents are run by the ``HarborServer`` of the test.
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
