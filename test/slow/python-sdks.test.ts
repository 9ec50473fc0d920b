/** Whether answers are what OpenAI's and Anthropic's Python packages, as PyPI has them now, say that answers are. */
import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import type { GenerationEvent } from '../../src/canonical/events.ts'
import type { ToolCallDelta } from '../../src/canonical/messages.ts'
import { hasPython, installFromPyPI } from '../agents/parts/install.ts'
import { answer, wholeAnswer } from '../helpers/scripted-backend.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'

const JUDGE = join(import.meta.dirname, 'python_sdks.py')

const [start, , , end] = wholeAnswer() as [GenerationEvent, GenerationEvent, GenerationEvent, GenerationEvent]
const ended = (finishReason: string) => ({ ...end, finishReason }) as GenerationEvent
const call = (index: number, id: string, city: string): ToolCallDelta => ({
  index,
  id,
  type: 'function',
  function: { name: 'weather', arguments: JSON.stringify({ city }) },
})

const ANSWERS: Record<string, GenerationEvent[]> = {
  text: wholeAnswer(),
  'text that is cut': [start, { type: 'delta', content: 'half a' }, ended('length')],
  nothing: [start, end],
  'reasoning and text': [start, { type: 'delta', reasoning: 'Hm.' }, { type: 'delta', content: 'Yes.' }, end],
  'a tool call': [start, { type: 'delta', toolCalls: [call(0, 'call_1', 'Rome')] }, ended('tool_calls')],
  'reasoning, text and two tool calls': [
    start,
    { type: 'delta', reasoning: 'Hm.' },
    { type: 'delta', content: 'I look.' },
    { type: 'delta', toolCalls: [call(0, 'call_1', 'Rome')] },
    { type: 'delta', toolCalls: [call(1, 'call_2', 'Paris')] },
    ended('tool_calls'),
  ],
  'an answer without usage': [start, { type: 'delta', content: 'hi' }, { type: 'end', finishReason: 'stop' }],
}

t.test("the Python SDKs' types take every answer, whole and streamed", async (t) => {
  if (!(await hasPython())) {
    t.pass('the SDKs are not asked', { skip: 'there is no python3 with venv' })
    return
  }
  const { folder } = await installFromPyPI('anthropic', ['openai'])
  const { url, backend } = await startSessionsApi(t)
  const cases = Object.keys(ANSWERS)
  backend.script = ({ sessionId }) => answer(ANSWERS[cases[Number(sessionId.slice(1))]!]!)
  const { stdout } = await promisify(execFile)(join(folder, 'bin/python'), [JUDGE], {
    env: { ...process.env, PROXY_URL: url, CASES: JSON.stringify(cases) },
    timeout: 400_000,
  })
  t.match(stdout, /\ndone\n$/)
})
