/**
 * An engine and its agent in a separate thread, so that a test can observe the proxy's thread alone. The engine has
 * vLLM's wire format and writes its events in batches, each after the agent has received the previous one. All requests are
 * of one conversation, which grows.
 */
import { once } from 'node:events'
import { isMainThread, parentPort, Worker } from 'node:worker_threads'
import type { Test } from 'tap'
import { sendJson, startScriptedServer } from './scripted-server.ts'

/** One streamed Messages request. */
interface RequestSpec {
  url: string
  batches: number
  eventsPerBatch: number
}

interface AgentThread {
  engineUrl: string
  /** Runs a request to its end. @returns the body of the response */
  send(request: RequestSpec): Promise<string>
}

/** Starts the thread, which ends with the test. */
export async function startAgentThread(t: Pick<Test, 'teardown'>): Promise<AgentThread> {
  const thread = new Worker(import.meta.filename)
  t.teardown(() => thread.terminate())
  const next = async () => (await once(thread, 'message'))[0] as string
  return {
    engineUrl: await next(),
    send(request) {
      thread.postMessage(request)
      return next()
    },
  }
}

if (!isMainThread) await run()

async function run(): Promise<void> {
  /** The request in progress. */
  let request: RequestSpec
  const messages = [{ role: 'user', content: 'Count.' }]
  let sampled = ''
  let received = ''
  let onReceived = () => {}
  const untilReceived = async (text: string) => {
    while (!received.includes(text)) await new Promise<void>((resolve) => (onReceived = resolve))
  }
  const engine = await startScriptedServer(async ({ method, path, body }, response) => {
    if (method === 'GET') {
      const models = {
        object: 'list',
        data: [{ id: 'm', object: 'model', owned_by: 'vllm', max_model_len: 4096 }],
      }
      return sendJson(response, path === '/v1/models' ? models : { version: '0.32.0' })
    }
    // The proxy probes an engine with a short request.
    if (body.stream !== true) return sendJson(response, {}, 404)
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write(createEvent({ role: 'assistant', content: '' }, { prompt_token_ids: [1, 2, 3] }))
    for (let batch = 0; batch < request.batches; batch += 1) {
      const tokens = Array.from(
        { length: request.eventsPerBatch },
        (_, index) => batch * request.eventsPerBatch + index,
      )
      sampled += tokens.map(getWord).join('')
      response.write(tokens.map((token) => createEvent({ content: getWord(token) }, {}, token)).join(''))
      await untilReceived(getWord(tokens.at(-1)!))
    }
    response.end(`${createEvent({}, {}, undefined, 'stop')}data: [DONE]\n\n`)
  })
  parentPort!.postMessage(engine.url)
  parentPort!.on('message', async (next: RequestSpec) => {
    request = next
    received = ''
    sampled = ''
    const response = await fetch(request.url, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'm', max_tokens: 1_000, stream: true, messages }),
    })
    const decoder = new TextDecoder()
    for await (const bytes of response.body!) {
      received += decoder.decode(bytes, { stream: true })
      onReceived()
    }
    messages.push({ role: 'assistant', content: sampled }, { role: 'user', content: 'Continue.' })
    parentPort!.postMessage(received)
  })
}

function getWord(token: number): string {
  return ` w${token}.`
}

function createEvent(
  delta: object,
  root: object,
  token?: number,
  finishReason: string | null = null,
): string {
  const logprob = { token: '', logprob: -0.5, bytes: null, top_logprobs: [] }
  const sampled = token === undefined ? {} : { token_ids: [1_000 + token], logprobs: { content: [logprob] } }
  const choice = { index: 0, delta, finish_reason: finishReason, ...sampled }
  return `data: ${JSON.stringify({ id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: 'm', choices: [choice], ...root })}\n\n`
}
