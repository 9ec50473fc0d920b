/**
 * A fake engine as fast as Node's HTTP server: vLLM's wire format with canned text, token ids and logprobs.
 * `max_tokens` is the number of tokens of a completion. It sends what vLLM sends only on request (`return_token_ids`,
 * `logprobs`, `stream_options`) also only on request, so that a client that records nothing does not pay for it.
 *
 * The ids of every prompt and completion are spans of one endless sequence: a prompt of n tokens is its first n, and
 * the completion continues from there. Therefore a longer prompt always extends a shorter one with its completion, as
 * in a conversation.
 *
 * If tools are offered, a completion always has the same text and one tool call, so that agents that replay a session
 * can echo it without having read it.
 *
 * node engine-stand-in.ts [--tokens-per-second N] [--events-per-write N] [--tokenizer FOLDER]
 *   --tokens-per-second  per stream; default: as fast as possible
 *   --events-per-write   events that one write to a stream contains, as vLLM's server under load; default: 1
 *   --tokenizer          accepts prompts of ids as well, with tokens of this model: see token-answers.ts
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { parseArgs } from 'node:util'
import { ANSWER_TOKENS, BYTES_PER_TOKEN } from '../parts/replay-job.ts'
import { ANSWER_TEXT, ANSWER_TOOL } from '../parts/replayed-session.ts'
import { TELL_ALL } from '../parts/tell-all.ts'
import { countIds, getPromptIds, tokenResponses } from './token-answers.ts'

/** Distinct tokens of the sequence, which repeats after them. */
const CYCLE = 4096
const VOCABULARY = 151_000
/** More than the longest prompt of the row `by-size`. */
const MAX_TOKENS = 1_250_000
const MODEL = 'stand-in'
/** Tokens of the tool call in a canned completion. */
const CALL_TOKENS = 20
/** The tool calls of a complete response. */
const TOOL_CALLS = `,"tool_calls":${JSON.stringify([
  {
    id: ANSWER_TOOL.id,
    type: 'function',
    function: { name: ANSWER_TOOL.name, arguments: JSON.stringify(ANSWER_TOOL.arguments) },
  },
])}`
const ROOT = `"id":"chatcmpl-stand-in","created":1700000000,"model":"${MODEL}"`

const ids = Array.from(
  { length: CYCLE },
  (_, index) => (Math.imul(index + 1, 2_654_435_761) >>> 0) % VOCABULARY,
)
const texts = ids.map((id) => ` w${(id % 4096).toString(36).padStart(3, '0')}`)
const logprobs = ids.map((id) => Math.fround(-((id % 997) + 1) / 1499))
const entries = ids.map((_, index) => {
  const bytes = [...Buffer.from(texts[index]!)]
  return JSON.stringify({ token: texts[index], logprob: logprobs[index], bytes, top_logprobs: [] })
})
/** The sequence as JSON, `id,id,id,`, and the offset of each id. */
const idsJson = Buffer.from(
  Array.from({ length: MAX_TOKENS }, (_, index) => `${ids[index % CYCLE]},`).join(''),
)
const idStarts = getStarts(idsJson)

interface RequestShape {
  promptTokens: number
  maxTokens: number
  stream: boolean
  wantsIds: boolean
  wantsLogprobs: boolean
  wantsUsage: boolean
  /** Whether the completion ends with a tool call, if it is long enough for all of it. */
  usesTool: boolean
}

interface Stream {
  response: ServerResponse
  tokens: number
  sent: number
  /**
   * Returns a chunk.
   * @param index the token's index in the completion
   */
  chunk(index: number): string | Buffer
  end(): string
}

const { values } = parseArgs({
  options: {
    'tokens-per-second': { type: 'string' },
    'events-per-write': { type: 'string', default: '1' },
    tokenizer: { type: 'string' },
  },
})
const stepMs = values['tokens-per-second'] ? 1000 / Number(values['tokens-per-second']) : 0
const eventsPerWrite = Number(values['events-per-write'])
const streams = new Set<Stream>()
const responses = values.tokenizer === undefined ? undefined : tokenResponses(ROOT, values.tokenizer)

const server = createServer((request, response) => {
  const path = request.url ?? ''
  if (request.method === 'POST' && path === '/v1/chat/completions')
    readBody(request, (body) => respond(read(body, request), response))
  else if (request.method === 'POST' && path === '/v1/completions')
    readBody(request, (body) => complete(body, response))
  else if (path === '/health') response.end()
  else if (path === '/v1/models')
    response.end(`{"object":"list","data":[{"id":"${MODEL}","object":"model","owned_by":"vllm"}]}`)
  else response.writeHead(404).end('{"detail":"Not Found"}')
})
server.keepAliveTimeout = 120_000
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`engine stand-in on http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})

function readBody(request: IncomingMessage, done: (body: Buffer) => void): void {
  const chunks: Buffer[] = []
  request.on('data', (chunk: Buffer) => chunks.push(chunk))
  request.on('end', () => done(Buffer.concat(chunks)))
}

function respond(request: RequestShape, response: ServerResponse): void {
  if (request.stream) begin(request, response)
  else if (stepMs === 0) full(request, response)
  else setTimeout(full, request.maxTokens * stepMs, request, response)
}

/** Searches the bytes without parsing, because an engine's own work is not measured. */
function read(body: Buffer, { headers }: IncomingMessage): RequestShape {
  const maxTokens = getLimit(body)
  const all = headers['x-tell'] === TELL_ALL['x-tell']
  return {
    promptTokens: Math.ceil(body.length / BYTES_PER_TOKEN),
    maxTokens,
    stream: isStreamed(body),
    wantsIds: all || says(body, '"return_token_ids":', 'true'),
    wantsLogprobs: all || says(body, '"logprobs":', 'true'),
    wantsUsage: all || says(body, '"include_usage":', 'true'),
    usesTool: maxTokens === ANSWER_TOKENS && says(body, '"tools":', '['),
  }
}

function isStreamed(body: Buffer): boolean {
  return says(body, '"stream":', 'true')
}

/** Returns whether a body contains a member. Python writes a space after the colon. */
function says(body: Buffer, name: string, value: string): boolean {
  const offset = body.indexOf(name) + name.length
  return (
    offset >= name.length &&
    body
      .toString('latin1', offset, offset + 6)
      .trimStart()
      .startsWith(value)
  )
}

/** The limit in each dialect: pass-throughs forward requests of all of them. */
const LIMITS = ['"max_tokens":', '"max_output_tokens":', '"max_completion_tokens":']

function getLimit(body: Buffer): number {
  for (const limit of LIMITS) {
    const offset = body.indexOf(limit)
    const start = offset + limit.length
    if (offset !== -1) return Number.parseInt(body.toString('latin1', start, start + 7), 10)
  }
  return 16
}

function full(request: RequestShape, response: ServerResponse): void {
  const { promptTokens, maxTokens } = request
  const positions = Array.from({ length: maxTokens }, (_, index) => (promptTokens + index) % CYCLE)
  const content = request.usesTool ? ANSWER_TEXT : positions.map((index) => texts[index]).join('')
  const logprobsJson = request.wantsLogprobs
    ? `{"content":[${positions.map((index) => entries[index]).join(',')}]}`
    : 'null'
  const body = Buffer.concat([
    Buffer.from(
      `{${ROOT},"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":${JSON.stringify(content)}${request.usesTool ? TOOL_CALLS : ''}},` +
        `"logprobs":${logprobsJson},"finish_reason":"${getFinish(request)}","stop_reason":null,"token_ids":`,
    ),
    request.wantsIds ? idList(promptTokens, promptTokens + maxTokens) : Buffer.from('null'),
    Buffer.from(`}],"usage":${usage(request)},"prompt_token_ids":`),
    request.wantsIds ? idList(0, promptTokens) : Buffer.from('null'),
    Buffer.from('}'),
  ])
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': body.length }).end(body)
}

function complete(body: Buffer, response: ServerResponse): void {
  if (responses === undefined || (isStreamed(body) && getLimit(body) !== ANSWER_TOKENS)) {
    response.writeHead(400).end('{"error":{"message":"not a replayed call"}}')
    return
  }
  const promptIds = getPromptIds(body)
  const reportedIds = says(body, '"return_token_ids":', 'true') ? promptIds : undefined
  if (!isStreamed(body)) {
    const json = responses.whole(reportedIds, countIds(promptIds), getLimit(body))
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': json.length }).end(json)
    return
  }
  open(response, {
    tokens: ANSWER_TOKENS,
    chunk: (index) => responses.chunk(reportedIds, index),
    end: () => responses.end(countIds(promptIds)),
  })
}

function begin(request: RequestShape, response: ServerResponse): void {
  const promptIds = request.wantsIds ? idList(0, request.promptTokens) : Buffer.from('null')
  const first = Buffer.concat([
    Buffer.from(
      `${chunkHead}{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":`,
    ),
    promptIds,
    Buffer.from('}\n\n'),
  ])
  open(
    response,
    { tokens: request.maxTokens, chunk: (index) => chunk(request, index), end: () => lastEvents(request) },
    first,
  )
}

function open(response: ServerResponse, fields: Omit<Stream, 'response' | 'sent'>, first?: Buffer): void {
  const stream = { ...fields, response, sent: 0 }
  response.on('close', () => streams.delete(stream))
  response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' })
  if (first) response.write(first)
  streams.add(stream)
  if (streams.size === 1) scheduleStep()
}

/** Returns the next events of a stream, for one write. */
function nextEvents(stream: Stream): string | Buffer {
  const count = Math.min(eventsPerWrite, stream.tokens - stream.sent)
  if (count === 1) return stream.chunk(stream.sent++)
  return Buffer.concat(Array.from({ length: count }, () => Buffer.from(stream.chunk(stream.sent++))))
}

/** Sends the next tokens to each open stream, as an engine's step does. */
function step(): void {
  for (const stream of streams) {
    if (stream.response.writableNeedDrain) continue
    const { tokens, response } = stream
    if (stream.sent < tokens) response.write(nextEvents(stream))
    else {
      streams.delete(stream)
      response.end(stream.end())
    }
  }
  if (streams.size > 0) scheduleStep()
}

function scheduleStep(): void {
  if (stepMs === 0) setImmediate(step)
  else setTimeout(step, stepMs)
}

const chunkHead = `data: {${ROOT},"object":"chat.completion.chunk","choices":[{"index":0,"delta":`
const chunks = new Map<number, Buffer>()

/** The deltas of a canned completion. */
const toolDeltas = createToolDeltas()

function createToolDeltas(): string[] {
  const textTokens = ANSWER_TOKENS - CALL_TOKENS
  const getStart = (index: number) => Math.floor((index * ANSWER_TEXT.length) / textTokens)
  const text = Array.from({ length: textTokens }, (_, index) => {
    return { content: ANSWER_TEXT.slice(getStart(index), getStart(index + 1)) }
  })
  const { id, name } = ANSWER_TOOL
  const call = (fields: object) => ({ tool_calls: [{ index: 0, ...fields }] })
  const complete = JSON.stringify(ANSWER_TOOL.arguments)
  const size = Math.ceil(complete.length / (CALL_TOKENS - 1))
  const chunks = Array.from({ length: CALL_TOKENS - 1 }, (_, index) =>
    call({ function: { arguments: complete.slice(index * size, (index + 1) * size) } }),
  )
  const begin = call({ id, type: 'function', function: { name, arguments: '' } })
  return [...text, begin, ...chunks].map((delta) => JSON.stringify(delta))
}

function chunk({ promptTokens, wantsIds, wantsLogprobs, usesTool }: RequestShape, sent: number): Buffer {
  const index = (promptTokens + sent) % CYCLE
  if (usesTool) return Buffer.from(chunkText(toolDeltas[sent]!, index, wantsIds, wantsLogprobs))
  const key = index * 4 + Number(wantsIds) * 2 + Number(wantsLogprobs)
  const existing = chunks.get(key)
  if (existing) return existing
  const made = Buffer.from(
    chunkText(JSON.stringify({ content: texts[index] }), index, wantsIds, wantsLogprobs),
  )
  chunks.set(key, made)
  return made
}

function chunkText(delta: string, index: number, wantsIds: boolean, wantsLogprobs: boolean): string {
  const logprobsJson = wantsLogprobs ? `{"content":[${entries[index]}]}` : 'null'
  const tokenIds = wantsIds ? `,"token_ids":[${ids[index]}]` : ''
  return `${chunkHead}${delta},"logprobs":${logprobsJson},"finish_reason":null${tokenIds}}]}\n\n`
}

function lastEvents(request: RequestShape): string {
  const end = `${chunkHead}{},"logprobs":null,"finish_reason":"${getFinish(request)}","stop_reason":null${request.wantsIds ? ',"token_ids":[]' : ''}}]}\n\n`
  const total = request.wantsUsage
    ? `data: {${ROOT},"object":"chat.completion.chunk","choices":[],"usage":${usage(request)}}\n\n`
    : ''
  return `${end}${total}data: [DONE]\n\n`
}

function getFinish({ usesTool }: RequestShape): string {
  return usesTool ? 'tool_calls' : 'stop'
}

function usage({ promptTokens, maxTokens }: RequestShape): string {
  return `{"prompt_tokens":${promptTokens},"completion_tokens":${maxTokens},"total_tokens":${promptTokens + maxTokens}}`
}

function idList(from: number, to: number): Buffer {
  const inside = idsJson.subarray(idStarts[from]!, idStarts[to]! - 1)
  return Buffer.concat([Buffer.from('['), inside, Buffer.from(']')])
}

function getStarts(json: Buffer): Uint32Array {
  const starts = new Uint32Array(MAX_TOKENS + 1)
  let index = 0
  for (let count = 1; count <= MAX_TOKENS; count += 1) {
    index = json.indexOf(',', index) + 1
    starts[count] = index
  }
  return starts
}
