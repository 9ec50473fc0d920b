"""
A typical agent with google-genai, without code for the proxy. Its endpoint is in GOOGLE_GEMINI_BASE_URL.
`python google-genai.py complete|streamed TASK`.
"""
import pathlib
import subprocess
import sys

from google import genai
from google.genai import types

delivery, task = sys.argv[1:]


def string_parameters(*names):
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
    types.FunctionDeclaration(name="write_file", description="Write a file.", parameters=string_parameters("path", "content")),
    types.FunctionDeclaration(name="bash", description="Run a command.", parameters=string_parameters("command")),
    types.FunctionDeclaration(name="read_file", description="Read a file.", parameters=string_parameters("path")),
]

client = genai.Client()
chat = client.chats.create(
    model="gemini-3-pro",
    config=types.GenerateContentConfig(
        system_instruction="You are a careful agent.",
        tools=[types.Tool(function_declarations=DECLARATIONS)],
        thinking_config=types.ThinkingConfig(include_thoughts=delivery == "streamed"),
    ),
)
message = task
while True:
    calls = []
    for response in chat.send_message_stream(message) if delivery == "streamed" else [chat.send_message(message)]:
        calls += response.function_calls or []
        print("".join(part.text for part in response.parts or [] if part.text and not part.thought), end="")
    if not calls:
        break
    results = [(call, {"output": TOOLS[call.name](**call.args)}) for call in calls]
    message = [
        types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response=result))
        for call, result in results
    ]
