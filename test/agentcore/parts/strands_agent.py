"""A Strands agent with a calculator, like the toolkit's own math example."""

import operator
from typing import Any

from strands import Agent, tool
from strands.models.openai import OpenAIModel

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@tool
def calculator(expression: str) -> str:
    """Calculates with two whole numbers.

    Args:
        expression: for example 3 + 4
    """
    left, sign, right = expression.split()
    return str(SIGNS[sign](int(left), int(right)))


def solve(question: str, config: dict[str, Any]) -> str:
    """Returns the agent's final text, after all calculator calls of the model."""
    client = {"api_key": config["api_key"], "base_url": config["base_url"]}
    model = OpenAIModel(client_args=client, model_id=config["model_id"], params={"max_tokens": 64})
    agent = Agent(model=model, tools=[calculator], system_prompt="Use the calculator.", callback_handler=None)
    content = agent(question).message["content"]
    return "".join(block.get("text", "") for block in content)
