"""
The same task in each framework, written as in its documentation: two additions with a tool, then the result.
`python frameworks.py NAME`; the endpoint is in OPENAI_BASE_URL or ANTHROPIC_BASE_URL.
"""
import asyncio
import json
import os
import sys

TASK = "What is 2 + 3, and 4 more than that? Use the tool."
BASE_URL = os.environ["OPENAI_BASE_URL"]
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
FUNCTION = {"name": "add", "description": "Adds two numbers.", "parameters": PARAMETERS}


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def loop(complete):
    """Runs the tool loop of OpenAI's documentation; LiteLLM's is the same."""
    messages = [{"role": "user", "content": TASK}]
    while True:
        message = complete(messages=messages, tools=[{"type": "function", "function": FUNCTION}]).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = str(add(**json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def openai():
    from openai import OpenAI

    client = OpenAI()
    return loop(lambda **body: client.chat.completions.create(model="m", **body))


def litellm():
    import litellm

    return loop(lambda **body: litellm.completion(model="openai/m", **body))


def anthropic():
    from anthropic import Anthropic

    client = Anthropic()
    tool = {"name": "add", "description": "Adds two numbers.", "input_schema": PARAMETERS}
    messages = [{"role": "user", "content": TASK}]
    while True:
        response = client.messages.create(model="m", max_tokens=500, messages=messages, tools=[tool])
        messages.append({"role": "assistant", "content": response.content})
        calls = [block for block in response.content if block.type == "tool_use"]
        if not calls:
            return response.content[-1].text
        results = [{"type": "tool_result", "tool_use_id": c.id, "content": str(add(**c.input))} for c in calls]
        messages.append({"role": "user", "content": results})


def langchain():
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    agent = create_agent(ChatOpenAI(model="m"), [add])
    return agent.invoke({"messages": [{"role": "user", "content": TASK}]})["messages"][-1].content


def pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel

    return Agent(OpenAIChatModel("m"), tools=[add]).run_sync(TASK).output


def smolagents():
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    model = OpenAIServerModel(model_id="m", api_base=BASE_URL, api_key="none")
    return ToolCallingAgent(tools=[tool(add)], model=model, max_steps=4).run(TASK)


def autogen():
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown", "structured_output": False}
    client = OpenAIChatCompletionClient(model="m", model_info=info)
    agent = AssistantAgent("worker", model_client=client, tools=[add], max_tool_iterations=4)
    return asyncio.run(agent.run(task=TASK)).messages[-1].to_text()


def llama_index():
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(model="m", api_base=BASE_URL, api_key="none", is_chat_model=True, is_function_calling_model=True)

    async def run():
        return str(await FunctionAgent(tools=[add], llm=llm).run(TASK))

    return asyncio.run(run())


def crewai():
    from crewai import LLM, Agent, Crew, Task
    from crewai.tools import tool

    llm = LLM(model="openai/m", base_url=BASE_URL, api_key="none")
    worker = Agent(role="Worker", goal="Add numbers", backstory="You add.", llm=llm, tools=[tool("add")(add)])
    task = Task(description=TASK, expected_output="The number", agent=worker)
    return Crew(agents=[worker], tasks=[task]).kickoff().raw


def instructor():
    import instructor
    from openai import OpenAI
    from pydantic import BaseModel

    class add(BaseModel):
        a: int
        b: int

    client = instructor.from_openai(OpenAI(), mode=instructor.Mode.TOOLS)
    messages = [{"role": "user", "content": TASK}]
    for _ in range(2):
        result = client.chat.completions.create(model="m", messages=messages, response_model=add, max_retries=1)
        messages.append({"role": "assistant", "content": result.model_dump_json()})
        messages.append({"role": "user", "content": str(result.a + result.b)})
    return messages[-1]["content"]


def dspy():
    import dspy

    dspy.configure(lm=dspy.LM("openai/m", api_base=BASE_URL, api_key="none", cache=False))
    return dspy.ReAct("question -> answer", tools=[add], max_iters=4)(question=TASK).answer


def aider():
    """Offers no tools: the model writes files, and aider sends their content."""
    from aider.coders import Coder
    from aider.io import InputOutput
    from aider.models import Model

    open("sum.txt", "w").close()
    model = Model("openai/m", weak_model="openai/m", editor_model=False)
    io = InputOutput(yes=True, pretty=False, fancy_input=False)
    coder = Coder.create(
        main_model=model, edit_format="whole", io=io, fnames=["sum.txt"], use_git=False, map_tokens=0, stream=False
    )
    coder.run("Write the sum of 2 and 3 into the file.")
    coder.run("Add 4 to it.")
    return coder.run("What does it say now?")


print("answer:", globals()[sys.argv[1]]())
