/** Measures what the recorded sequences train if an agent echoes completions exactly, or tidies them. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Children } from '../parts/children.ts'
import { createHeaders } from '../parts/headers.ts'
import { CHAT_PATH } from '../parts/targets.ts'
import type { Peer, PeerInstance } from './catalog.ts'
import { startEchoEngine, TURNS } from './echo-engine.ts'
import { getTotals, type Totals } from './sequences.ts'

interface EchoResult extends Totals {
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
/** Some peers write their records after the response. */
const MAX_POLLS = 100
const POLL_MS = 100

/**
 * Runs the agent against a peer.
 * @param tidies whether the agent strips white space and rewrites arguments
 */
export async function measureEcho(peer: Peer, parent: string, tidies: boolean): Promise<EchoResult> {
  const folder = join(parent, `${peer.name}-echo-${tidies}`)
  mkdirSync(folder, { recursive: true })
  const engine = await startEchoEngine()
  try {
    await using children = new Children()
    const instance = await peer.start({ children, engineUrl: engine.url, folder })
    // Some peers request a few tokens from the engine before they listen.
    const before = engine.countSampledTokens()
    await converse(instance, tidies)
    const sampled = engine.countSampledTokens() - before
    const origin = new URL(instance.baseUrl).origin
    for (
      let poll = 0;
      poll < MAX_POLLS && (await peer.record!.countRequests(origin, SESSION)) < TURNS;
      poll += 1
    ) {
      await sleep(POLL_MS)
    }
    const sequences = await peer.record!.readSequences(origin, SESSION)
    await children.kill(instance.child)
    return { sampled, ...getTotals(sequences) }
  } finally {
    await engine.close()
  }
}

async function converse(instance: PeerInstance, tidies: boolean): Promise<void> {
  const messages: Message[] = [
    { role: 'system', content: 'You read files.' },
    { role: 'user', content: 'Read all files.' },
  ]
  for (let turn = 0; turn < TURNS; turn += 1) {
    const completion = await sendRequest(instance, messages)
    const { content, tool_calls: toolCalls = [] } = completion
    const echo: Message = {
      role: 'assistant',
      content,
      ...(toolCalls.length > 0 && { tool_calls: toolCalls }),
    }
    messages.push(tidies ? tidy(echo) : echo)
    for (const { id } of toolCalls)
      messages.push({ role: 'tool', tool_call_id: id, content: `Nothing is in it (${turn}).` })
  }
}

async function sendRequest(
  { baseUrl, headers = {} }: PeerInstance,
  messages: readonly Message[],
): Promise<Message> {
  const response = await fetch((baseUrl + CHAT_PATH).replace('{session}', SESSION), {
    method: 'POST',
    headers: createHeaders({ headers }, SESSION),
    body: JSON.stringify({ model: 'stand-in', messages, tools: [TOOL], max_tokens: 400, temperature: 1 }),
  })
  if (!response.ok) throw new Error(`status ${response.status}: ${await response.text()}`)
  const { choices } = (await response.json()) as { choices: { message: Message }[] }
  return choices[0]!.message
}

function tidy({ content, tool_calls: toolCalls, ...message }: Message): Message {
  const tidied = toolCalls?.map((toolCall) => {
    const { name, arguments: text } = toolCall.function
    return { ...toolCall, function: { name, arguments: JSON.stringify(JSON.parse(text)) } }
  })
  return { ...message, content: content?.trim() || null, ...(tidied && { tool_calls: tidied }) }
}
