"""
A typical agent with google-genai. It knows nothing of the proxy, and takes its endpoint from
GOOGLE_GEMINI_BASE_URL. `python google-genai.py whole|streamed TASK`.
"""
import pathlib
import subprocess
import sys

from google import genai
from google.genai import types

how, task = sys.argv[1:]


def texts(*names):
    properties = {name: types.Schema(type="STRING") for name in names}
    return types.Schema(type="OBJECT", properties=properties, required=list(names))


def write_file(path, content):
    pathlib.Path(path).write_text(content)
    return "written"


def bash(command):
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    return done.stdout + done.stderr


def read_file(path):
    return pathlib.Path(path).read_text()


TOOLS = {"write_file": write_file, "bash": bash, "read_file": read_file}
DECLARATIONS = [
    types.FunctionDeclaration(name="write_file", description="Write a file.", parameters=texts("path", "content")),
    types.FunctionDeclaration(name="bash", description="Run a command.", parameters=texts("command")),
    types.FunctionDeclaration(name="read_file", description="Read a file.", parameters=texts("path")),
]

client = genai.Client()
chat = client.chats.create(
    model="gemini-3-pro",
    config=types.GenerateContentConfig(
        system_instruction="You are a careful agent.",
        tools=[types.Tool(function_declarations=DECLARATIONS)],
        thinking_config=types.ThinkingConfig(include_thoughts=how == "streamed"),
    ),
)
message = task
while True:
    calls = []
    for answer in chat.send_message_stream(message) if how == "streamed" else [chat.send_message(message)]:
        calls += answer.function_calls or []
        print("".join(part.text for part in answer.parts or [] if part.text and not part.thought), end="")
    if not calls:
        break
    results = [(call, {"output": TOOLS[call.name](**call.args)}) for call in calls]
    message = [
        types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response=response))
        for call, response in results
    ]
