"""AgentCore on this machine: S3 and SQS, the service's two calls, and programs in its containers."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp
import boto3
from aiohttp import web
from moto.server import ThreadedMotoServer

from .web_server import serve

REGION = "us-west-2"
ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/math-x"
SESSION_HEADER = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"

#: Of the environment of every AWS client.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}

Agent = Callable[[dict[str, Any]], Awaitable[Any]]
#: A program in a container: session id and payload in, its answer out.
Container = Callable[[str, dict[str, Any]], Awaitable[Any]]


@dataclass
class Storage:
    url: str
    bucket: str = "results"

    def client(self, service: str) -> Any:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.session.Session(**keys).client(service, region_name=REGION, endpoint_url=self.url)

    def make_bucket(self, name: str) -> None:
        where = {"LocationConstraint": REGION}
        self.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration=where)

    def make_queue(self) -> str:
        """One of its own for each test: a poll that a test leaves behind hides messages while it lasts."""
        url: str = self.client("sqs").create_queue(QueueName=uuid.uuid4().hex)["QueueUrl"]
        return url

    def make_told_bucket(self) -> tuple[str, str]:
        """A bucket, and the URL of a queue that is told of what is written there."""
        bucket, queue_url = uuid.uuid4().hex, self.make_queue()
        self.make_bucket(bucket)
        about = self.client("sqs").get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])
        told = {"QueueArn": about["Attributes"]["QueueArn"], "Events": ["s3:ObjectCreated:*"]}
        self.client("s3").put_bucket_notification_configuration(
            Bucket=bucket, NotificationConfiguration={"QueueConfigurations": [told]}
        )
        return bucket, queue_url


@contextmanager
def start_storage() -> Iterator[Storage]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        storage = Storage(f"http://{host}:{port}")
        storage.make_bucket(storage.bucket)
        yield storage
    finally:
        server.stop()


class StoringApp:
    """A program that works in the background and leaves its result in S3, where the toolkit's app does."""

    def __init__(self, agent: Agent, storage: Storage) -> None:
        self._agent = agent
        self._s3 = storage.client("s3")
        self.payloads: list[dict[str, Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, session_id: str, payload: dict[str, Any]) -> Any:
        self.payloads.append(payload)
        task = asyncio.create_task(self._work(session_id, payload))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return {"status": "processing"}

    async def _work(self, session_id: str, payload: dict[str, Any]) -> None:
        try:
            result = await self._agent(payload)
        except RuntimeError as error:
            result = {"status_code": 500, "stop_reason": str(error)}
        rollout = payload["_rollout"]
        key = f"{rollout['exp_id']}/{rollout['input_id']}/{session_id}.json"
        body = result if isinstance(result, bytes) else json.dumps(result).encode()
        await asyncio.to_thread(self._s3.put_object, Bucket=rollout["s3_bucket"], Key=key, Body=body)


class EnvelopeApp:
    """A program that is asked for its result."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.payloads: list[dict[str, Any]] = []
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    async def __call__(self, session_id: str, payload: dict[str, Any]) -> Any:
        orders = payload["_agentcore_runtime"]
        name = orders["invocation_id"]
        if orders["operation"] == "start":
            self.payloads.append(payload)
            self._tasks[name] = asyncio.create_task(self._agent(payload))
        state = {"version": 1, "invocation_id": name}
        task = self._tasks.get(name)
        if task is None:
            return {**state, "status": "not_found"}
        if not task.done():
            return {**state, "status": "in_progress"}
        error = task.exception()
        if error is not None:
            return {**state, "status": "completed", "error": str(error)}
        return {**state, "status": "completed", "result": task.result()}

    def forget(self) -> None:
        """As a container that was replaced."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()


class AgentCore:
    """InvokeAgentRuntime and StopRuntimeSession on the paths and with the errors of the real ones."""

    def __init__(
        self, container: Container, *, sessions: int = 1000, takes: Callable[[], bool] = lambda: True
    ) -> None:
        self._container = container
        #: Whether a call that arrives now is within the quota.
        self._takes = takes
        self._sessions = sessions
        self.url = ""
        #: Sessions in order of their first call.
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.running: set[str] = set()
        self._calls: dict[str, asyncio.Future[Any]] = {}
        #: The most sessions that ran at a time.
        self.most = 0
        #: Errors in place of the next answers; ``cut`` closes the connection.
        self.invoke_faults: deque[str] = deque()
        self.stop_faults: deque[str] = deque()

    async def __aenter__(self) -> AgentCore:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/runtimes/{arn}/invocations", self._invoke)
        app.router.add_post("/runtimes/{arn}/stopruntimesession", self._stop)
        self._runner, self.url = await serve(app)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _invoke(self, request: web.Request) -> web.Response:
        session_id = request.headers[SESSION_HEADER]
        payload = json.loads(await request.read())
        if not self._takes():
            return _fault(request, "ThrottlingException")
        if self.invoke_faults:
            return _fault(request, self.invoke_faults.popleft())
        if not 33 <= len(session_id) <= 256 or request.match_info["arn"] != ARN:
            return _refuse(400, "ValidationException")
        if session_id not in self.running:
            if len(self.running) >= self._sessions:
                return _refuse(402, "ServiceQuotaExceededException")
            if session_id not in self.started:
                self.started.append(session_id)
            self.running.add(session_id)
            self.most = max(self.most, len(self.running))
        call = self._calls[session_id] = asyncio.ensure_future(self._container(session_id, payload))
        await asyncio.wait([call])
        if call.cancelled():
            return _refuse(424, "RuntimeClientError", "the session was stopped")
        if (error := call.exception()) is not None:
            return _refuse(424, "RuntimeClientError", str(error))
        answer = call.result()
        return web.json_response(answer, headers={SESSION_HEADER: session_id})

    async def _stop(self, request: web.Request) -> web.Response:
        session_id = request.headers[SESSION_HEADER]
        if not self._takes():
            return _fault(request, "ThrottlingException")
        if self.stop_faults:
            return _fault(request, self.stop_faults.popleft())
        self.stopped.append(session_id)
        if session_id not in self.running:
            return _refuse(404, "ResourceNotFoundException")
        self.running.discard(session_id)
        self._calls[session_id].cancel()
        return web.json_response({}, headers={SESSION_HEADER: session_id})


_STATUSES = {"ThrottlingException": 429, "AccessDeniedException": 403, "InternalServerException": 500}


def _fault(request: web.Request, name: str) -> web.Response:
    if name == "cut":
        assert request.transport is not None
        request.transport.abort()
    return _refuse(_STATUSES.get(name, 409), name)


def _refuse(status: int, name: str, message: str | None = None) -> web.Response:
    return web.json_response({"message": message or name}, status=status, headers={"x-amzn-errortype": name})


async def talk(http: aiohttp.ClientSession, config: dict[str, str], question: str) -> None:
    """A conversation of two calls, as an agent's OpenAI client makes it."""
    messages = [{"role": "user", "content": question}]
    for _ in range(2):
        body = {"model": config["model_id"], "messages": messages, "max_tokens": 16}
        headers = {"Authorization": f"Bearer {config['api_key']}"}
        url = f"{config['base_url']}/chat/completions"
        async with http.post(url, json=body, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "Go on."}]
