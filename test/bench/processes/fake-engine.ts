/**
 * A fake engine as fast as Node's HTTP server: vLLM's wire format with fixed text, token ids and logprobs.
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
 * node fake-engine.ts [--tokens-per-second N] [--events-per-write N] [--tokenizer FOLDER]
 *   --tokens-per-second  per stream; default: as fast as possible
 *   --events-per-write   events that one write to a stream contains, as vLLM's server under load; default: 1
 *   --tokenizer          accepts prompts of ids as well, with tokens of this model: see token-responses.ts
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { parseArgs } from 'node:util'
import { BYTES_PER_TOKEN, COMPLETION_TOKENS } from '../parts/replay-job.ts'
import { COMPLETION_TEXT, TOOL_CALL } from '../parts/replayed-conversation.ts'
import { REPORT_ALL } from '../parts/report-all.ts'
import { countIds, createTokenResponses, getPromptIds } from './token-responses.ts'

/** Distinct tokens of the sequence, which repeats after them. */
const CYCLE = 4096
const VOCABULARY = 151_000
/** The length of the sequence: more than the longest prompt of the row `by-size`. */
const MAX_TOKENS = 1_250_000
const MODEL = 'stand-in'
/** Tokens of the tool call in a canned completion. */
const TOOL_CALL_TOKENS = 20
/** The tool calls of a complete response. */
const TOOL_CALLS_JSON = `,"tool_calls":${JSON.stringify([
  {
    id: TOOL_CALL.id,
    type: 'function',
    function: { name: TOOL_CALL.name, arguments: JSON.stringify(TOOL_CALL.arguments) },
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
  returnsIds: boolean
  returnsLogprobs: boolean
  returnsUsage: boolean
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
  getChunk(index: number): string | Buffer
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
const responses = values.tokenizer === undefined ? undefined : createTokenResponses(ROOT, values.tokenizer)

const server = createServer((request, response) => {
  const path = request.url ?? ''
  if (request.method === 'POST' && path === '/v1/chat/completions')
    readBody(request, (body) => respond(parseRequest(body, request), response))
  else if (request.method === 'POST' && path === '/v1/completions')
    readBody(request, (body) => respondToCompletion(body, response))
  else if (path === '/health') response.end()
  else if (path === '/v1/models')
    response.end(`{"object":"list","data":[{"id":"${MODEL}","object":"model","owned_by":"vllm"}]}`)
  else response.writeHead(404).end('{"detail":"Not Found"}')
})
server.keepAliveTimeout = 120_000
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`fake engine on http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})

function readBody(request: IncomingMessage, done: (body: Buffer) => void): void {
  const chunks: Buffer[] = []
  request.on('data', (chunk: Buffer) => chunks.push(chunk))
  request.on('end', () => done(Buffer.concat(chunks)))
}

function respond(request: RequestShape, response: ServerResponse): void {
  if (request.stream) openChatStream(request, response)
  else if (stepMs === 0) sendComplete(request, response)
  else setTimeout(sendComplete, request.maxTokens * stepMs, request, response)
}

/** Searches the bytes without parsing, because an engine's own work is not measured. */
function parseRequest(body: Buffer, { headers }: IncomingMessage): RequestShape {
  const maxTokens = parseMaxTokens(body)
  const returnsAll = headers['x-tell'] === REPORT_ALL['x-tell']
  return {
    promptTokens: Math.ceil(body.length / BYTES_PER_TOKEN),
    maxTokens,
    stream: isStreamed(body),
    returnsIds: returnsAll || hasMember(body, '"return_token_ids":', 'true'),
    returnsLogprobs: returnsAll || hasMember(body, '"logprobs":', 'true'),
    returnsUsage: returnsAll || hasMember(body, '"include_usage":', 'true'),
    usesTool: maxTokens === COMPLETION_TOKENS && hasMember(body, '"tools":', '['),
  }
}

function isStreamed(body: Buffer): boolean {
  return hasMember(body, '"stream":', 'true')
}

/** Returns whether a body contains a member; Python writes a space after the colon. */
function hasMember(body: Buffer, name: string, value: string): boolean {
  const offset = body.indexOf(name) + name.length
  return (
    offset >= name.length &&
    body
      .toString('latin1', offset, offset + 6)
      .trimStart()
      .startsWith(value)
  )
}

/** The token limit in each dialect: pass-throughs forward requests of all dialects. */
const MAX_TOKENS_FIELDS = ['"max_tokens":', '"max_output_tokens":', '"max_completion_tokens":']

function parseMaxTokens(body: Buffer): number {
  for (const field of MAX_TOKENS_FIELDS) {
    const offset = body.indexOf(field)
    const start = offset + field.length
    if (offset !== -1) return Number.parseInt(body.toString('latin1', start, start + 7), 10)
  }
  return 16
}

function sendComplete(request: RequestShape, response: ServerResponse): void {
  const { promptTokens, maxTokens } = request
  const positions = Array.from({ length: maxTokens }, (_, index) => (promptTokens + index) % CYCLE)
  const content = request.usesTool ? COMPLETION_TEXT : positions.map((index) => texts[index]).join('')
  const logprobsJson = request.returnsLogprobs
    ? `{"content":[${positions.map((index) => entries[index]).join(',')}]}`
    : 'null'
  const body = Buffer.concat([
    Buffer.from(
      `{${ROOT},"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":${JSON.stringify(content)}${request.usesTool ? TOOL_CALLS_JSON : ''}},` +
        `"logprobs":${logprobsJson},"finish_reason":"${getFinishReason(request)}","stop_reason":null,"token_ids":`,
    ),
    request.returnsIds ? serializeIds(promptTokens, promptTokens + maxTokens) : Buffer.from('null'),
    Buffer.from(`}],"usage":${serializeUsage(request)},"prompt_token_ids":`),
    request.returnsIds ? serializeIds(0, promptTokens) : Buffer.from('null'),
    Buffer.from('}'),
  ])
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': body.length }).end(body)
}

function respondToCompletion(body: Buffer, response: ServerResponse): void {
  if (responses === undefined || (isStreamed(body) && parseMaxTokens(body) !== COMPLETION_TOKENS)) {
    response.writeHead(400).end('{"error":{"message":"not a replayed request"}}')
    return
  }
  const promptIds = getPromptIds(body)
  const reportedIds = hasMember(body, '"return_token_ids":', 'true') ? promptIds : undefined
  if (!isStreamed(body)) {
    const json = responses.complete(reportedIds, countIds(promptIds), parseMaxTokens(body))
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': json.length }).end(json)
    return
  }
  openStream(response, {
    tokens: COMPLETION_TOKENS,
    getChunk: (index) => responses.chunk(reportedIds, index),
    end: () => responses.end(countIds(promptIds)),
  })
}

function openChatStream(request: RequestShape, response: ServerResponse): void {
  const promptIds = request.returnsIds ? serializeIds(0, request.promptTokens) : Buffer.from('null')
  const first = Buffer.concat([
    Buffer.from(
      `${chunkHead}{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":`,
    ),
    promptIds,
    Buffer.from('}\n\n'),
  ])
  openStream(
    response,
    {
      tokens: request.maxTokens,
      getChunk: (index) => getChunk(request, index),
      end: () => createLastEvents(request),
    },
    first,
  )
}

function openStream(
  response: ServerResponse,
  fields: Omit<Stream, 'response' | 'sent'>,
  first?: Buffer,
): void {
  const stream = { ...fields, response, sent: 0 }
  response.on('close', () => streams.delete(stream))
  response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' })
  if (first) response.write(first)
  streams.add(stream)
  if (streams.size === 1) scheduleStep()
}

/** Returns the next events of a stream, for one write. */
function takeEvents(stream: Stream): string | Buffer {
  const count = Math.min(eventsPerWrite, stream.tokens - stream.sent)
  if (count === 1) return stream.getChunk(stream.sent++)
  return Buffer.concat(Array.from({ length: count }, () => Buffer.from(stream.getChunk(stream.sent++))))
}

/** Sends the next tokens to each open stream, as an engine's step does. */
function step(): void {
  for (const stream of streams) {
    if (stream.response.writableNeedDrain) continue
    const { tokens, response } = stream
    if (stream.sent < tokens) response.write(takeEvents(stream))
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
  const textTokens = COMPLETION_TOKENS - TOOL_CALL_TOKENS
  const getStart = (index: number) => Math.floor((index * COMPLETION_TEXT.length) / textTokens)
  const text = Array.from({ length: textTokens }, (_, index) => {
    return { content: COMPLETION_TEXT.slice(getStart(index), getStart(index + 1)) }
  })
  const { id, name } = TOOL_CALL
  const createDelta = (fields: object) => ({ tool_calls: [{ index: 0, ...fields }] })
  const argumentsJson = JSON.stringify(TOOL_CALL.arguments)
  const size = Math.ceil(argumentsJson.length / (TOOL_CALL_TOKENS - 1))
  const chunks = Array.from({ length: TOOL_CALL_TOKENS - 1 }, (_, index) =>
    createDelta({ function: { arguments: argumentsJson.slice(index * size, (index + 1) * size) } }),
  )
  const start = createDelta({ id, type: 'function', function: { name, arguments: '' } })
  return [...text, start, ...chunks].map((delta) => JSON.stringify(delta))
}

function getChunk(
  { promptTokens, returnsIds, returnsLogprobs, usesTool }: RequestShape,
  sent: number,
): Buffer {
  const index = (promptTokens + sent) % CYCLE
  if (usesTool) return Buffer.from(serializeChunk(toolDeltas[sent]!, index, returnsIds, returnsLogprobs))
  const key = index * 4 + Number(returnsIds) * 2 + Number(returnsLogprobs)
  const cached = chunks.get(key)
  if (cached) return cached
  const created = Buffer.from(
    serializeChunk(JSON.stringify({ content: texts[index] }), index, returnsIds, returnsLogprobs),
  )
  chunks.set(key, created)
  return created
}

function serializeChunk(delta: string, index: number, returnsIds: boolean, returnsLogprobs: boolean): string {
  const logprobsJson = returnsLogprobs ? `{"content":[${entries[index]}]}` : 'null'
  const tokenIds = returnsIds ? `,"token_ids":[${ids[index]}]` : ''
  return `${chunkHead}${delta},"logprobs":${logprobsJson},"finish_reason":null${tokenIds}}]}\n\n`
}

function createLastEvents(request: RequestShape): string {
  const end = `${chunkHead}{},"logprobs":null,"finish_reason":"${getFinishReason(request)}","stop_reason":null${request.returnsIds ? ',"token_ids":[]' : ''}}]}\n\n`
  const total = request.returnsUsage
    ? `data: {${ROOT},"object":"chat.completion.chunk","choices":[],"usage":${serializeUsage(request)}}\n\n`
    : ''
  return `${end}${total}data: [DONE]\n\n`
}

function getFinishReason({ usesTool }: RequestShape): string {
  return usesTool ? 'tool_calls' : 'stop'
}

function serializeUsage({ promptTokens, maxTokens }: RequestShape): string {
  return `{"prompt_tokens":${promptTokens},"completion_tokens":${maxTokens},"total_tokens":${promptTokens + maxTokens}}`
}

function serializeIds(from: number, to: number): Buffer {
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
