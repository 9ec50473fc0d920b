/**
 * Recorded text is untrusted. No command prints it in a form that the terminal executes, or that imitates a line of the
 * program.
 */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import type { GenerationEvent } from '../../../src/protocol/canonical/events.ts'
import { runCommands } from '../../helpers/run-commands.ts'
import { completeResponse, respond } from '../../helpers/scripted-backend.ts'
import { recordTurn, type SessionsApi, startSessionsApi } from '../../helpers/sessions-api.ts'

/** Clears the screen, sets the title, moves the cursor with a C1 control, and reverses the direction of text. */
const HOSTILE = '\u001b[2J\u001b]0;owned\u0007\u009b1;1H\u202e'
const LINES = `${HOSTILE}\n── turn 9`

const EXECUTED =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these must not reach a terminal
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e]/

const SESSION = `s\u202e`

async function startHostile(t: Test): Promise<SessionsApi> {
  const api = await startSessionsApi(t)
  const { sessions, store, backend } = api
  await sessions.create({ sessionId: SESSION, metadata: { task: HOSTILE } })
  const input = JSON.stringify({ [LINES]: LINES })
  const call = { id: 'a', type: 'function', function: { name: LINES, arguments: input } }
  await recordTurn(store, SESSION, 0, {
    requestMessages: [JSON.stringify({ role: LINES, name: LINES, content: LINES, tool_calls: [call] })],
    params: JSON.stringify({ model: LINES }),
    model: LINES,
    completionText: `found ${LINES}`,
    reasoning: LINES,
    toolCalls: JSON.stringify([call]),
    finishReason: LINES,
    exact: false,
    inexactReason: LINES,
    weightVersionStart: LINES,
    weightVersionEnd: LINES,
  })
  const marks = { labels: [HOSTILE], note: HOSTILE }
  await sessions.updateMarks(SESSION, { ...marks, turns: { 0: marks } })
  const [start, delta, , end] = completeResponse()
  const hostile = [start, { ...delta, content: LINES }, { ...end, finishReason: LINES }] as GenerationEvent[]
  backend.script = () => respond(hostile)
  return api
}

t.test('no command prints recorded control characters, as text or as JSON', async (t) => {
  const { url } = await startHostile(t)
  const commands = [
    ['sessions', 'list'],
    ['sessions', 'show', SESSION],
    ['sessions', 'grep', 'found'],
    ['sessions', 'tail'],
    ['sessions', 'reward', SESSION, '1'],
    ['chat', '--session', 'talk'],
    ['weights', 'set', HOSTILE],
    ['workers', 'list'],
    ['sessions', 'abort', SESSION, HOSTILE],
  ].map((command) => [...command, '--url', url])
  const texts = await runCommands([...commands, ['sessions', 'show', HOSTILE, '--url', url]])
  for (const [index, { stdout, stderr }] of texts.entries()) {
    const name = commands[index]?.slice(0, 2).join(' ') ?? 'an error'
    t.notMatch(stdout + stderr, EXECUTED, name)
    if (name !== 'chat --session') t.notMatch(stdout, /^── turn 9/m, `${name} has no line that was recorded`)
  }
  const exported = ['sessions', 'export', SESSION, '--format', 'turns', '--url', url]
  const objects = await runCommands([...commands.map((command) => [...command, '--json']), exported])
  for (const [index, { stdout }] of objects.entries()) {
    const name = (commands[index] ?? exported).slice(0, 2).join(' ')
    t.notMatch(stdout, EXECUTED, `${name} as JSON`)
    t.doesNotThrow(() => stdout.split(/\n(?=\{)/).map((line) => JSON.parse(line)), `${name} is JSON`)
  }
  t.match(
    JSON.parse(objects.at(-1)!.stdout),
    { completion_text: `found ${LINES}` },
    'escapes preserve the value',
  )
})

t.test(
  'the response of a server that is not a proxy, or an error message, cannot control the terminal',
  async (t) => {
    const server = createServer(({ url }, response) => {
      response.statusCode = url === '/health' ? 200 : 500
      response.end(url === '/health' ? HOSTILE : JSON.stringify({ detail: HOSTILE }))
    }).listen(0, '127.0.0.1')
    t.teardown(() => server.close())
    await new Promise((resolve) => server.once('listening', resolve))
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    for (const { stdout, stderr } of await runCommands([
      ['health', '--url', url],
      ['workers', 'list', '--url', url],
    ]))
      t.notMatch(stdout + stderr, EXECUTED)
  },
)
