"""
Replaces `tests/utils.py` of vLLM: a server that runs already, at TARGET_URL, in place of one that each test file starts.

Only the part that the HTTP tests use is here. Names and defaults are those of the original.
"""

import os

import anthropic
import openai

TIMEOUT_S = 60
ROCM_EXTRA_ARGS = []


class RemoteOpenAIServer:
    """The server at TARGET_URL, which outlives the test file."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model, vllm_serve_args, **options):
        self.url_root = os.environ["TARGET_URL"]

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc_value, traceback):
        pass

    def url_for(self, *parts):
        return "/".join([self.url_root, *(part.strip("/") for part in parts if part)])

    def get_client(self, **options):
        return openai.OpenAI(base_url=self.url_for("v1"), **self._with_defaults(options))

    def get_async_client(self, **options):
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), **self._with_defaults(options))

    def get_client_anthropic(self, **options):
        return anthropic.Anthropic(base_url=self.url_root, **self._with_defaults(options))

    def get_async_client_anthropic(self, **options):
        return anthropic.AsyncAnthropic(base_url=self.url_root, **self._with_defaults(options))

    def _with_defaults(self, options):
        return {"api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": TIMEOUT_S, **options}
