"""An agent written as in OpenHands' documentation, with its editor. `python openhands-agent.py TASK`, in the folder of
the task."""
import os
import sys

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from pydantic import SecretStr

llm = LLM(
    model="openai/embedded",
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key=SecretStr("none"),
    usage_id="agent",
)
agent = Agent(llm=llm, tools=[Tool(name=FileEditorTool.name)])
conversation = Conversation(agent=agent, workspace=os.getcwd(), visualizer=None, max_iteration_per_run=20)
conversation.send_message(sys.argv[1])
conversation.run()
