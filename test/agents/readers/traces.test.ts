/** The released Phoenix reads the proxy's spans with its own reader of OpenTelemetry's conventions. */
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import type { TurnOutcome } from '../../../src/proxy/store/port/turn-store.ts'
import { buildInputAttributes, buildOutputAttributes } from '../../../src/proxy/tracing/content.ts'
import { addMessageTexts } from '../../helpers/messages.ts'
import { DEFAULT_TURN } from '../../helpers/sessions-api.ts'
import { hasPython, installFromPyPI } from '../parts/install.ts'
import { runProgram } from '../parts/programs.ts'

const PHOENIX = 'arize-phoenix==20.26.1'

// The `__init__` of Phoenix's packages would start a server.
const READ = `
import importlib.util, json, sys, types
for name in ("phoenix", "phoenix.trace"):
    package = types.ModuleType(name)
    package.__path__ = [importlib.util.find_spec("openinference").submodule_search_locations[0] + "/../" + name.replace(".", "/")]
    sys.modules[name] = package
from phoenix.trace.gen_ai.conversion import get_openinference_attributes
print(json.dumps(get_openinference_attributes(json.loads(sys.argv[1]))))
`

if (!(await hasPython())) {
  t.pass('left out: there is no Python')
} else {
  t.test('Phoenix finds the messages, the tool calls, their results and the tools of a span', async (t) => {
    const dependencies = ['opentelemetry-semantic-conventions', 'numpy', 'pydantic']
    const { folder } = await installFromPyPI('openinference-semantic-conventions', dependencies)
    const python = (...args: string[]) => {
      const program = { command: join(folder, 'bin/python'), args, cwd: tmpdir(), env: process.env }
      return runProgram(program, 120_000)
    }
    const install = [
      '-m',
      'uv',
      'pip',
      'install',
      '--quiet',
      '--no-deps',
      '--python',
      join(folder, 'bin/python'),
    ]
    t.equal((await python(...install, PHOENIX)).code, 0)
    const call = { id: 'c1', type: 'function', function: { name: 'run', arguments: '{"a":1}' } }
    const messages = [
      { role: 'system', content: 'Be brief.' },
      {
        role: 'user',
        content: [
          { type: 'text', text: 'Run it' },
          { type: 'image_url', image_url: { url: 'https://example.com/a.png' } },
        ],
      },
      { role: 'assistant', content: '', tool_calls: [call] },
      { role: 'tool', tool_call_id: 'c1', content: 'done' },
    ]
    const turn = {
      turnId: 't',
      index: 0,
      lastMessage: addMessageTexts(messages.map((message) => JSON.stringify(message))),
      tools: JSON.stringify([
        { type: 'function', function: { name: 'run', parameters: { type: 'object' } } },
      ]),
      promptPieces: [],
    }
    const outcome = { ...DEFAULT_TURN, toolCalls: JSON.stringify([call]), finishReason: 'tool_calls' }
    const attributes = {
      'gen_ai.operation.name': 'chat',
      ...buildInputAttributes(turn, 10_000),
      ...buildOutputAttributes(outcome as unknown as TurnOutcome, 10_000),
    }
    const { output } = await python('-c', READ, JSON.stringify(attributes))
    const read = JSON.parse(output)
    t.match(read, {
      'openinference.span.kind': 'LLM',
      'llm.input_messages.0.message.role': 'system',
      'llm.input_messages.3.message.tool_call_id': 'c1',
      'llm.output_messages.0.message.role': 'assistant',
      'llm.output_messages.0.message.tool_calls.0.tool_call.function.name': 'run',
      'llm.input_messages.2.message.tool_calls.0.tool_call.id': 'c1',
    })
    const joined = Object.values(read).join('\n')
    for (const text of ['Be brief.', 'Run it', 'https://example.com/a.png', 'done', 'hello', '"name": "run"'])
      t.ok(joined.includes(text), text)
  })
}
