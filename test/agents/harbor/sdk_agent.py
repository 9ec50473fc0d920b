"""A user's agent for Harbor: it sends one request with OpenAI's SDK, and writes the response to a file."""

from openai import AsyncOpenAI

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext


class SdkAgent(BaseAgent):
    @staticmethod
    def name() -> str:
        return "sdk"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        pass

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        key, url = self._get_env("OPENAI_API_KEY"), self._get_env("OPENAI_BASE_URL")
        client = AsyncOpenAI(api_key=key, base_url=url)
        completion = await client.chat.completions.create(
            model="embedded", messages=[{"role": "user", "content": instruction}]
        )
        words = completion.choices[0].message.content or ""
        if "sleep" in words:
            await environment.exec("sleep 600")
        await environment.exec(f"printf %s {words.split()[-1]} > /app/answer.txt")
