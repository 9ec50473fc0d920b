"""An agent written as in deepagents' documentation, with its own files and one tool. `python deep-agent.py TASK`."""
import sys

from deepagents import create_deep_agent
from langchain_openai import ChatOpenAI


def look(place: str) -> str:
    """Looks at a place."""
    return f"nothing in {place}"


agent = create_deep_agent(model=ChatOpenAI(model="embedded"), tools=[look])
question = {"messages": [{"role": "user", "content": sys.argv[1]}]}
print(agent.invoke(question, {"recursion_limit": 200})["messages"][-1].content)
