/**
 * An engine that reports one kind of token data, at the size that it has in training: vLLM's wire format for a chat,
 * not streamed. As in `engine-stand-in.ts` prompt and completion are spans of one endless sequence, so that each turn
 * extends the previous one.
 *
 * node detail-engine.ts [--kind sampling_mask|top_logprobs|prompt_logprobs|routed_experts|weight_versions]
 */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import { parseArgs } from 'node:util'
import { ALTERNATIVES, EXPERTS_PER_TOKEN, LAYERS, MASK_IDS } from '../parts/detail-sizes.ts'

const VOCABULARY = 151_000
const EXPERTS = 128
/** The approximate ratio for English text. */
const CHARS_PER_TOKEN = 4
const MODEL = 'stand-in'

interface RequestShape {
  messages: { content: string }[]
  max_tokens: number
}

interface Answer {
  prompt: number[]
  completion: number[]
}

const { values } = parseArgs({ options: { kind: { type: 'string' } } })

const server = createServer(async (request, response) => {
  const path = request.url ?? ''
  if (request.method === 'POST' && path === '/v1/chat/completions') {
    const body = JSON.stringify(createResponse(JSON.parse(await text(request)) as RequestShape))
    response.writeHead(200, { 'content-type': 'application/json' }).end(body)
  } else if (path === '/health') response.end()
  else if (path === '/v1/models')
    response.end(`{"object":"list","data":[{"id":"${MODEL}","object":"model","owned_by":"vllm"}]}`)
  else response.writeHead(404).end('{"detail":"Not Found"}')
})
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`detail engine on http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})

function createResponse({ messages, max_tokens: count }: RequestShape): object {
  const chars = messages.reduce((sum, { content }) => sum + content.length, 0)
  const promptTokens = Math.ceil(chars / CHARS_PER_TOKEN)
  const ids = Array.from({ length: promptTokens + count }, (_, index) => idAt(index, 0))
  const response = { prompt: ids.slice(0, promptTokens), completion: ids.slice(promptTokens) }
  const content = response.completion.map((id) => ` w${(id % 1000).toString(36)}`).join('')
  const choice = {
    index: 0,
    message: { role: 'assistant', content },
    logprobs: { content: response.completion.map(getEntry) },
    finish_reason: 'stop',
    token_ids: response.completion,
    ...choiceDetails(response),
  }
  const usage = { prompt_tokens: promptTokens, completion_tokens: count, total_tokens: promptTokens + count }
  return {
    id: 'x',
    model: MODEL,
    choices: [choice],
    usage,
    prompt_token_ids: response.prompt,
    ...rootDetails(response),
  }
}

/** Returns tokens without a pattern that compression could use. */
function idAt(index: number, salt: number): number {
  return (Math.imul(index + 1, 2_654_435_761 + 2 * salt) >>> 0) % VOCABULARY
}

const getLogprob = (id: number) => Math.fround(-((id % 9_973) + 1) / 1_499)

function getEntry(id: number, index: number) {
  const tops = values.kind === 'top_logprobs' ? idsBeside(id, index, ALTERNATIVES) : []
  const entry = (token: number) => ({
    token: `token_id:${token}`,
    logprob: getLogprob(token),
    bytes: [32, 119],
  })
  return { ...entry(id), top_logprobs: tops.map(entry) }
}

function idsBeside(id: number, index: number, count: number): number[] {
  return [id, ...Array.from({ length: count - 1 }, (_, other) => idAt(index, other + 1))]
}

function choiceDetails({ prompt, completion }: Answer): object {
  if (values.kind === 'sampling_mask')
    return { sampling_mask: completion.map((id, index) => idsBeside(id, index, MASK_IDS)) }
  if (values.kind === 'routed_experts')
    return { routed_experts: toNpy(prompt.length + completion.length - 1) }
  return {}
}

function rootDetails({ prompt, completion }: Answer): object {
  if (values.kind === 'prompt_logprobs') {
    const promptLogprobs = prompt.map((id) => ({
      [id]: { logprob: getLogprob(id), rank: 1, decoded_token: ' w' },
    }))
    return { prompt_logprobs: [null, ...promptLogprobs.slice(1)] }
  }
  if (values.kind === 'weight_versions') {
    const half = completion.length >> 1
    const spans = [
      { version: '7', start: 0, end: half },
      { version: '8', start: half, end: completion.length },
    ]
    return { metadata: { weight_versions: spans } }
  }
  return {}
}

/** Builds a `.npy` file of version 1 with a byte per expert, in base64. */
function toNpy(rows: number): string {
  const shape = `(${rows}, ${LAYERS}, ${EXPERTS_PER_TOKEN})`
  const header = `{'descr': '|u1', 'fortran_order': False, 'shape': ${shape}, }`.padEnd(117)
  const head = Buffer.from(`\x93NUMPY\x01\x00\x76\x00${header}\n`, 'latin1')
  const experts = Uint8Array.from(
    { length: rows * LAYERS * EXPERTS_PER_TOKEN },
    (_, index) => idAt(index, 1) % EXPERTS,
  )
  return Buffer.concat([head, experts]).toString('base64')
}
