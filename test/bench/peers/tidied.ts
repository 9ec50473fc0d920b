/** An agent with tools echoes completions unchanged or normalized: measures what the recorded sequences train. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Children } from '../parts/children.ts'
import { createHeaders } from '../parts/headers.ts'
import type { Peer, Started } from './catalog.ts'
import { startEchoEngine, TURNS } from './echo-engine.ts'
import { CALL_PATH } from './loads.ts'
import { getTotals, type Totals } from './sequences.ts'

export interface EchoResult extends Totals {
  sampled: number
}

interface Message {
  role: string
  content: string | null
  tool_calls?: { id: string; type: string; function: { name: string; arguments: string } }[]
  tool_call_id?: string
}

const TOOL = {
  type: 'function',
  function: {
    name: 'read_file',
    description: 'Reads a file.',
    parameters: { type: 'object', properties: { path: { type: 'string' }, lines: { type: 'number' } } },
  },
}
const SESSION = 'echo-1'
/** Some records are written in succession after the response. */
const WAITS = 100
const WAIT_MS = 100

/**
 * Runs the agent against a peer.
 * @param tidies whether it strips white space and rewrites arguments
 */
export async function echoed(peer: Peer, parent: string, tidies: boolean): Promise<EchoResult> {
  const folder = join(parent, `${peer.name}-echo-${tidies}`)
  mkdirSync(folder, { recursive: true })
  const engine = await startEchoEngine()
  try {
    await using children = new Children()
    const started = await peer.start({ children, engineUrl: engine.url, folder })
    // Some peers request a few tokens of the engine before they listen.
    const before = engine.sampledTokens()
    await converse(started, tidies)
    const sampled = engine.sampledTokens() - before
    const origin = new URL(started.baseUrl).origin
    for (let wait = 0; wait < WAITS && (await peer.record!.calls(origin, SESSION)) < TURNS; wait += 1) {
      await sleep(WAIT_MS)
    }
    const sequences = await peer.record!.sequences(origin, SESSION)
    await children.kill(started.child)
    return { sampled, ...getTotals(sequences) }
  } finally {
    await engine.close()
  }
}

async function converse(started: Started, tidies: boolean): Promise<void> {
  const messages: Message[] = [
    { role: 'system', content: 'You read files.' },
    { role: 'user', content: 'Read all files.' },
  ]
  for (let turn = 0; turn < TURNS; turn += 1) {
    const reply = await sendRequest(started, messages)
    const { content, tool_calls: calls = [] } = reply
    const echo: Message = { role: 'assistant', content, ...(calls.length > 0 && { tool_calls: calls }) }
    messages.push(tidies ? tidy(echo) : echo)
    for (const { id } of calls)
      messages.push({ role: 'tool', tool_call_id: id, content: `Nothing is in it (${turn}).` })
  }
}

async function sendRequest(
  { baseUrl, headers = {} }: Started,
  messages: readonly Message[],
): Promise<Message> {
  const response = await fetch((baseUrl + CALL_PATH).replace('{session}', SESSION), {
    method: 'POST',
    headers: createHeaders({ headers }, SESSION),
    body: JSON.stringify({ model: 'stand-in', messages, tools: [TOOL], max_tokens: 400, temperature: 1 }),
  })
  if (!response.ok) throw new Error(`status ${response.status}: ${await response.text()}`)
  const { choices } = (await response.json()) as { choices: { message: Message }[] }
  return choices[0]!.message
}

function tidy({ content, tool_calls: calls, ...message }: Message): Message {
  const fresh = calls?.map((call) => {
    const { name, arguments: text } = call.function
    return { ...call, function: { name, arguments: JSON.stringify(JSON.parse(text)) } }
  })
  return { ...message, content: content?.trim() || null, ...(fresh && { tool_calls: fresh }) }
}
