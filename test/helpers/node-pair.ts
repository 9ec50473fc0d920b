/**
 * Two nodes of one database in this process, with an engine that echoes its request (`wait 50 ms`: after that time), and
 * keys of every scope.
 */
import type { ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { createAgentKey, createRunKey } from '../../src/proxy/http/access/agent-key.ts'
import { KEYS } from './keys.ts'
import { PostgresServer } from './postgres.ts'
import { startProxy, type TestProxy } from './proxy.ts'
import {
  type IncomingRequest,
  type ScriptedServer,
  sendJson,
  startScriptedServer,
} from './scripted-server.ts'

const PROMPT_IDS = [101, 102, 103]
const COMPLETION_IDS = [7, 8, 9, 2]

export interface NodePair {
  /** The node that owns every session that {@link NodePair.open} creates. */
  owner: TestProxy
  other: TestProxy
  engine: ScriptedServer
  server: PostgresServer
  db: string
  /**
   * Creates the first turn of a session at the owner.
   * @returns the key of its agent
   */
  open(sessionId: string): Promise<string>
}

export async function startNodePair(t: Pick<Test, 'teardown'>): Promise<NodePair> {
  const server = await PostgresServer.start()
  t.teardown(() => server.end())
  const db = await server.newDatabase()
  const engine = await startScriptedServer(respond)
  t.teardown(() => engine.close())
  const options = { ...KEYS, db, engineUrls: [engine.url], durability: 'process' } as const
  const owner = await startProxy(t, options)
  const other = await startProxy(t, options)
  const open = async (sessionId: string) => {
    const key = agentKey(sessionId)
    const { status } = await sendRequest(owner, sessionId, 'begin', key)
    if (status !== 200) throw new Error(`${sessionId} was not opened: ${status}`)
    return key
  }
  return { owner, other, engine, server, db, open }
}

export const agentKey = (sessionId: string) => createAgentKey(KEYS.agentKeySecrets[0]!, sessionId)
export const runKey = (run: string) => createRunKey(KEYS.agentKeySecrets[0]!, run)

/**
 * Sends an LLM request of an agent.
 * @returns the engine's echo of it
 */
export async function sendRequest(
  { url }: { url: string },
  sessionId: string,
  content: string,
  key: string,
): Promise<{ status: number; text: string }> {
  const response = await fetch(`${url}/${sessionId}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
    body: chatBody(content),
  })
  return { status: response.status, text: await response.text() }
}

export function chatBody(content: string): string {
  return JSON.stringify({ model: 'fake', messages: [{ role: 'user', content }] })
}

export function encodeChunked(body: string): string {
  return `${Buffer.byteLength(body, 'latin1').toString(16)}\r\n${body}\r\n0\r\n\r\n`
}

async function respond({ method, path, body }: IncomingRequest, response: ServerResponse): Promise<void> {
  if (path === '/v1/models')
    sendJson(response, { data: [{ id: 'fake', owned_by: 'vllm', max_model_len: 4_096 }] })
  else if (path === '/version') sendJson(response, { version: '0.32.0' })
  else if (method === 'GET') sendJson(response, {})
  else if (path.endsWith('/chat/completions')) await complete(body, response)
  else sendJson(response, { error: { message: 'no such route' } }, 404)
}

async function complete(body: { messages: { content: string }[] }, response: ServerResponse): Promise<void> {
  const question = body.messages.at(-1)!.content
  await sleep(Number(/^wait (\d+) ms$/.exec(question)?.[1] ?? 0))
  const content = `answer to ${question}`
  const logprobs = COMPLETION_IDS.map((id) => ({
    ...{ token: `token_id:${id}`, logprob: -0.5, bytes: null, top_logprobs: [] },
  }))
  sendJson(response, {
    ...{ id: 'chatcmpl-1', object: 'chat.completion', created: 1, model: 'fake' },
    prompt_token_ids: PROMPT_IDS,
    choices: [
      {
        ...{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' },
        ...{ logprobs: { content: logprobs }, token_ids: COMPLETION_IDS },
      },
    ],
    usage: { prompt_tokens: PROMPT_IDS.length, completion_tokens: COMPLETION_IDS.length, total_tokens: 7 },
  })
}
