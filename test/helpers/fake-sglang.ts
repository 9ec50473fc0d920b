import type { ServerResponse } from 'node:http'
import { setImmediate as nextTurn } from 'node:timers/promises'
import {
  chatLogprobs,
  finishReason,
  getUsage,
  listLogprobs,
  sampleWords,
  type Token,
} from './sampled-words.ts'
import {
  type IncomingRequest,
  openEventStream,
  type ScriptedServer,
  sendJson,
  startScriptedServer,
} from './scripted-server.ts'

interface FakeSglang extends ScriptedServer {
  /** The number of generations in progress. */
  running(): number
}

/**
 * The content of each event of a `/generate` stream: everything so far (SGLang's default), what is new
 * (`--incremental-streaming-output`), or, as in older versions with `--stream-output`, new ids and everything else so
 * far.
 */
export const STREAMS = ['cumulative', 'incremental', 'incremental_ids'] as const
type Streams = (typeof STREAMS)[number]

interface FakeSglangOptions {
  streams?: Streams
  /** The value of `--preferred-sampling-params`. Default: the server does not report it, as old versions. */
  preferredSamplingParams?: object | null | undefined
}

type Params = Record<string, unknown> & { max_new_tokens?: number | null; ignore_eos?: boolean }

const DEFAULT_MAX_NEW_TOKENS = 128
const KNOWN_PARAMS = new Set(
  (
    'max_new_tokens min_new_tokens temperature top_p top_k min_p frequency_penalty presence_penalty repetition_penalty ' +
    'stop stop_token_ids stop_regex ignore_eos skip_special_tokens spaces_between_special_tokens no_stop_trim ' +
    'json_schema regex ebnf structural_tag n logit_bias custom_params sampling_seed'
  ).split(' '),
)

/**
 * Starts a server with SGLang's wire format of 0.5.23: `/generate`, and a chat route that returns ids only when it does
 * not stream, as `response_token_ids`. It samples the same words each time, up to the limit; `ignore_eos` makes it
 * continue without end. Responses are written in chunks that end anywhere.
 */
export async function startFakeSglang(options: FakeSglangOptions = {}): Promise<FakeSglang> {
  let running = 0
  const server = await startScriptedServer(async (request, response) => {
    if (request.method === 'GET') return respondToGet(request, response, options)
    running += 1
    response.once('close', () => {
      running -= 1
    })
    if (request.path === '/generate') await generate(request.body, response, options.streams ?? 'cumulative')
    else await complete(request, response)
  })
  return { ...server, running: () => running }
}

function respondToGet(
  { path }: IncomingRequest,
  response: ServerResponse,
  { preferredSamplingParams: preferred_sampling_params }: FakeSglangOptions,
): void {
  if (path === '/v1/models') {
    const model = { id: 'fake', object: 'model', owned_by: 'sglang', root: 'fake', max_model_len: 4096 }
    sendJson(response, { object: 'list', data: [model] })
  } else if (path === '/health') response.end()
  else if (path === '/get_model_info') {
    const info = { model_path: '/fake', is_generation: true, weight_version: 'default' }
    sendJson(response, { ...info, preferred_sampling_params })
  } else sendJson(response, { detail: 'Not Found' }, 404)
}

/** Samples tokens, including the end-of-turn token if the limit allows it. */
export function sample({ max_new_tokens: max, ignore_eos }: Params): Generator<Token> {
  return sampleWords(
    max === undefined ? DEFAULT_MAX_NEW_TOKENS : (max ?? Number.POSITIVE_INFINITY),
    ignore_eos,
  )
}

// biome-ignore lint/suspicious/noExplicitAny: a request body of any shape
async function generate(body: any, response: ServerResponse, streams: Streams) {
  const params: Params = body.sampling_params ?? {}
  const unknown = Object.keys(params).find((name) => !KNOWN_PARAMS.has(name))
  if (unknown !== undefined) {
    const message = `SamplingParams.__init__() got an unexpected keyword argument '${unknown}'`
    return sendJson(response, { error: { message } }, 400)
  }
  const tokens: Token[] = []
  const createResponse = (from: number, done: boolean) =>
    createGenerateResponse(tokens, { from, done, streams, body })
  if (!body.stream) {
    if (params.ignore_eos) return
    tokens.push(...sample(params))
    return sendJson(
      response,
      createGenerateResponse(tokens, { from: 0, done: true, streams: 'cumulative', body }),
    )
  }
  response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' })
  for (const token of sample(params)) {
    tokens.push(token)
    const done = finishReason(tokens) === 'stop' || tokens.length === params.max_new_tokens
    if (!(await writeCut(response, `data: ${JSON.stringify(createResponse(tokens.length - 1, done))}\n\n`)))
      return
  }
  response.end('data: [DONE]\n\n')
}

interface ResponseShape {
  /** Tokens before this index have been sent. */
  from: number
  done: boolean
  streams: Streams
  // biome-ignore lint/suspicious/noExplicitAny: a request body of any shape
  body: any
}

/** Builds the response of `/generate` for the tokens so far. */
export function createGenerateResponse(
  tokens: readonly Token[],
  { from, done, streams, body }: ResponseShape,
): object {
  const ids = tokens.slice(streams === 'cumulative' ? 0 : from)
  const rest = tokens.slice(streams === 'incremental' ? from : 0)
  const entry = ({ id, text }: Token) => [-id / 1_000, id, body.return_text_in_logprobs ? text : null]
  return {
    text: rest.map((token) => token.text).join(''),
    output_ids: ids.map((token) => token.id),
    meta_info: {
      id: 'b3c1',
      finish_reason: done
        ? finishReason(tokens) === 'stop'
          ? { type: 'stop', matched: 2 }
          : { type: 'length', length: tokens.length }
        : null,
      prompt_tokens: body.input_ids.length,
      weight_version: 'default',
      completion_tokens: tokens.length,
      cached_tokens: 1,
      ...(body.return_logprob && {
        input_token_logprobs: [],
        output_token_logprobs: rest.map(entry),
        ...(body.top_logprobs_num > 0 && { output_top_logprobs: rest.map((token) => [entry(token)]) }),
      }),
    },
  }
}

/**
 * Writes a text in two chunks, split at a random byte.
 * @returns whether the client is still connected
 */
async function writeCut(response: ServerResponse, text: string): Promise<boolean> {
  const bytes = Buffer.from(text)
  const cut = Math.floor(Math.random() * bytes.length)
  response.write(bytes.subarray(0, cut))
  await nextTurn()
  if (!response.write(bytes.subarray(cut))) {
    const closed = new Promise((resolve) => response.once('close', resolve))
    await Promise.race([new Promise((resolve) => response.once('drain', resolve)), closed])
  }
  return !response.destroyed
}

/** Serves `/v1/chat/completions` and `/v1/completions`. */
async function complete({ path, body }: IncomingRequest, response: ServerResponse): Promise<void> {
  const chat = path.endsWith('/chat/completions')
  if (chat && body.stream && body.return_token_ids) {
    const message = 'return_token_ids is not supported with streaming on /v1/chat/completions.'
    return sendJson(
      response,
      { object: 'error', message, type: 'BadRequestError', param: null, code: 400 },
      400,
    )
  }
  if (body.ignore_eos) return
  const promptIds = Array.isArray(body.prompt) ? body.prompt : [101, 102, 103]
  const tokens = [...sample({ max_new_tokens: body.max_tokens ?? 16 })]
  const text = tokens.map((token) => token.text).join('')
  const choice = {
    index: 0,
    ...(chat
      ? { message: { role: 'assistant', content: text, reasoning_content: null, tool_calls: null } }
      : { text }),
    logprobs: chat ? chatLogprobs(tokens) : { ...listLogprobs(tokens), top_logprobs: [] },
    finish_reason: finishReason(tokens),
    matched_stop: null,
    ...(body.return_token_ids && {
      prompt_token_ids: promptIds,
      [chat ? 'response_token_ids' : 'token_ids']: tokens.map((token) => token.id),
    }),
  }
  const usage = { ...getUsage(promptIds, tokens), reasoning_tokens: 0 }
  const common = {
    id: 'x',
    created: 1,
    model: 'fake',
    choices: [choice],
    metadata: { weight_version: 'default' },
  }
  if (!body.stream) return sendJson(response, { ...common, usage })
  const send = openEventStream(response)
  send({ ...common, usage: null })
  send({ ...common, choices: [], usage })
  send('[DONE]')
  response.end()
}
