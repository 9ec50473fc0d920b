/**
 * An engine that reports one kind of token data, at the size that it has in training: vLLM's wire format for a chat,
 * not streamed. As in `fake-engine.ts`, prompt and completion are spans of one endless sequence, so that each turn
 * extends the previous one.
 *
 * node token-data-engine.ts [--kind sampling_mask|top_logprobs|prompt_logprobs|routed_experts|weight_versions]
 */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import { parseArgs } from 'node:util'
import { ALTERNATIVES, EXPERTS_PER_TOKEN, LAYERS, MASK_IDS } from '../parts/token-data-sizes.ts'

const VOCABULARY = 151_000
const EXPERTS = 128
/** The approximate ratio for English text. */
const CHARS_PER_TOKEN = 4
const MODEL = 'stand-in'

interface RequestShape {
  messages: { content: string }[]
  max_tokens: number
}

interface TokenIds {
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
  process.stdout.write(`token data engine on http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})

function createResponse({ messages, max_tokens: count }: RequestShape): object {
  const chars = messages.reduce((sum, { content }) => sum + content.length, 0)
  const promptTokens = Math.ceil(chars / CHARS_PER_TOKEN)
  const ids = Array.from({ length: promptTokens + count }, (_, index) => getId(index, 0))
  const tokenIds = { prompt: ids.slice(0, promptTokens), completion: ids.slice(promptTokens) }
  const content = tokenIds.completion.map((id) => ` w${(id % 1000).toString(36)}`).join('')
  const choice = {
    index: 0,
    message: { role: 'assistant', content },
    logprobs: { content: tokenIds.completion.map(createLogprobEntry) },
    finish_reason: 'stop',
    token_ids: tokenIds.completion,
    ...createChoiceData(tokenIds),
  }
  const usage = { prompt_tokens: promptTokens, completion_tokens: count, total_tokens: promptTokens + count }
  return {
    id: 'x',
    model: MODEL,
    choices: [choice],
    usage,
    prompt_token_ids: tokenIds.prompt,
    ...createRootData(tokenIds),
  }
}

/** Returns a token of a sequence that has no pattern for compression. */
function getId(index: number, salt: number): number {
  return (Math.imul(index + 1, 2_654_435_761 + 2 * salt) >>> 0) % VOCABULARY
}

const getLogprob = (id: number) => Math.fround(-((id % 9_973) + 1) / 1_499)

function createLogprobEntry(id: number, index: number) {
  const alternatives = values.kind === 'top_logprobs' ? getAlternatives(id, index, ALTERNATIVES) : []
  const entry = (token: number) => ({
    token: `token_id:${token}`,
    logprob: getLogprob(token),
    bytes: [32, 119],
  })
  return { ...entry(id), top_logprobs: alternatives.map(entry) }
}

function getAlternatives(id: number, index: number, count: number): number[] {
  return [id, ...Array.from({ length: count - 1 }, (_, other) => getId(index, other + 1))]
}

function createChoiceData({ prompt, completion }: TokenIds): object {
  if (values.kind === 'sampling_mask')
    return { sampling_mask: completion.map((id, index) => getAlternatives(id, index, MASK_IDS)) }
  if (values.kind === 'routed_experts')
    return { routed_experts: toNpy(prompt.length + completion.length - 1) }
  return {}
}

function createRootData({ prompt, completion }: TokenIds): object {
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
    (_, index) => getId(index, 1) % EXPERTS,
  )
  return Buffer.concat([head, experts]).toString('base64')
}
