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

export interface FakeVllm extends ScriptedServer {
  /** The number of generations in progress. */
  running(): number
  /** Rejects this number of next requests with 400, whatever they contain. */
  rejectNext(count: number): void
  /** Sets whether requests for token ids are rejected with 400. */
  rejectIds(rejects: boolean): void
  /** Sets whether every GET fails with 500. */
  fail(isFailing: boolean): void
}

export interface FakeVllmOptions {
  model?: string
  port?: number
  /** Whether it rejects fields that OpenAI does not have, as OpenAI does, and lists another owner of the model. */
  strict?: boolean
  /** The prompt ids that it reports when it receives ids. Default: the received ids. */
  reportedPromptIds?: number[]
  /** Tokenizes a text. Default: there is no `/tokenize`. */
  textIds?: (text: string) => number[]
  /** Tokenizes a chat's body with its template. Default: `/tokenize` rejects chats. */
  chatIds?: (body: Record<string, unknown>) => number[]
  /** Returns the text of a token, beside its logprob in a prompt. Default: no texts are reported. */
  idText?: (id: number) => string
  /** Returns the message of its template's error for a chat's body. Default: its template accepts every chat. */
  templateError?: (body: Record<string, unknown>) => string | undefined
}

const PROMPT_IDS = [101, 102, 103]
/**
 * Starts a server with vLLM's wire format of 0.32.0: ids and logprobs only on request, prompt ids at the root in chat
 * and on the choice in completions. It samples the same words each time, up to `max_tokens`; `ignore_eos` makes it
 * continue without end.
 */
export async function startFakeVllm(options: FakeVllmOptions = {}): Promise<FakeVllm> {
  const model = options.model ?? 'fake'
  let running = 0
  let rejections = 0
  let rejectsIds = false
  let fails = false
  const server = await startScriptedServer(async (request, response) => {
    if (request.method === 'GET' && fails) return sendJson(response, {}, 500)
    if (request.method === 'GET') return respondToGet(request, response, options, model)
    if (request.path === '/tokenize') return respondToTokenize(request, response, options)
    if (request.body.prompt_logprobs === 0 && options.idText)
      return sendJson(response, getScores(request.body.prompt, options.idText))
    rejections -= 1
    const isBusy = rejections >= 0 || (rejectsIds && request.body.return_token_ids)
    const isChat = request.path.endsWith('/chat/completions')
    const templateError = isChat ? options.templateError?.(request.body) : undefined
    const message = isBusy
      ? 'weights are being updated'
      : (templateError ?? findRejection(request.body, options))
    if (message) return sendJson(response, { error: { message, type: 'BadRequestError', code: 400 } }, 400)
    running += 1
    response.once('close', () => {
      running -= 1
    })
    await generate(request, response, model, options.reportedPromptIds)
  }, options.port)
  return {
    ...server,
    running: () => running,
    rejectNext(count) {
      rejections = count
    },
    rejectIds(rejects) {
      rejectsIds = rejects
    },
    fail(isFailing) {
      fails = isFailing
    },
  }
}

function respondToGet(
  { path }: IncomingRequest,
  response: ServerResponse,
  options: FakeVllmOptions,
  model: string,
): void {
  const owner = options.strict ? 'somebody' : 'vllm'
  if (path === '/v1/models') {
    sendJson(response, {
      object: 'list',
      data: [{ id: model, object: 'model', owned_by: owner, max_model_len: 4096 }],
    })
  } else if (path === '/health' && !options.strict) response.end()
  else if (path === '/version' && !options.strict) sendJson(response, { version: '0.32.0' })
  else sendJson(response, { detail: 'Not Found' }, 404)
}

function respondToTokenize(
  { body }: IncomingRequest,
  response: ServerResponse,
  { textIds, chatIds, templateError }: FakeVllmOptions,
): void {
  const message = body.messages && templateError?.(body)
  if (message) {
    sendJson(response, { error: { message, type: 'BadRequestError', code: 400 } }, 400)
    return
  }
  const tokens = body.messages ? chatIds?.(body) : textIds?.(body.prompt)
  sendJson(response, tokens ? { count: tokens.length, tokens } : { detail: 'Not Found' }, tokens ? 200 : 404)
}

function getScores(prompt: number[], decoded: (id: number) => string) {
  const entry = (id: number) => ({ [id]: { logprob: -1, rank: 1, decoded_token: decoded(id) } })
  const prompt_logprobs = prompt.map((id, index) => (index === 0 ? null : entry(id)))
  return { choices: [{ index: 0, text: '', finish_reason: 'length', prompt_logprobs }] }
}

function findRejection(body: Record<string, unknown>, { strict }: FakeVllmOptions): string | undefined {
  if (body.stream_options && !body.stream) return 'Stream options can only be defined when `stream=True`.'
  if (Array.isArray(body.tools) && body.tools.length === 0) return '`tools` must not be an empty array'
  const unknown = ['return_token_ids', 'return_tokens_as_token_ids', 'include_reasoning'].find(
    (field) => field in body,
  )
  if (strict && unknown) return `Unrecognized request argument supplied: ${unknown}`
  if (typeof body.temperature === 'number' && body.temperature < 0) return 'temperature must be non-negative'
  return undefined
}

function sample({ max_tokens = 1_000, ignore_eos }: { max_tokens?: number; ignore_eos?: boolean }) {
  return sampleWords(max_tokens, ignore_eos)
}

async function generate(
  { path, body }: IncomingRequest,
  response: ServerResponse,
  model: string,
  reportedPromptIds: number[] | undefined,
): Promise<void> {
  const chat = path.endsWith('/chat/completions')
  const promptIds = Array.isArray(body.prompt) ? (reportedPromptIds ?? body.prompt) : PROMPT_IDS
  const prompt = body.return_token_ids ? { prompt_token_ids: promptIds } : {}
  const root = { id: 'cmpl-1', created: 1, model }
  if (!body.stream) {
    if (body.ignore_eos) return
    const tokens = [...sample(body)]
    const text = tokens.map((token) => token.text).join('')
    const choice = {
      index: 0,
      ...(chat ? { message: { role: 'assistant', content: text } } : { text, ...prompt }),
      ...tokenFields(tokens, body, chat),
      finish_reason: finishReason(tokens),
    }
    return sendJson(response, {
      ...root,
      choices: [choice],
      usage: getUsage(promptIds, tokens),
      ...(chat && prompt),
    })
  }
  const send = openEventStream(response)
  if (chat) send({ ...root, choices: [{ index: 0, delta: { role: 'assistant', content: '' } }], ...prompt })
  const tokens: Token[] = []
  for (const token of sample(body)) {
    tokens.push(token)
    const chunk = chat
      ? { delta: { content: token.text } }
      : { text: token.text, ...(tokens.length === 1 && prompt) }
    const hasCapacity = send({
      ...root,
      choices: [{ index: 0, ...chunk, ...tokenFields([token], body, chat) }],
    })
    if (!hasCapacity)
      await Promise.race([new Promise((resolve) => response.once('drain', resolve)), closed(response)])
    if (response.destroyed) return
    await nextTurn()
  }
  send({
    ...root,
    choices: [{ index: 0, ...(chat ? { delta: {} } : { text: '' }), finish_reason: finishReason(tokens) }],
  })
  if (body.stream_options?.include_usage) send({ ...root, choices: [], usage: getUsage(promptIds, tokens) })
  send('[DONE]')
  response.end()
}

function closed(response: ServerResponse): Promise<unknown> {
  return new Promise((resolve) => response.once('close', resolve))
}

// biome-ignore lint/suspicious/noExplicitAny: a request body of any shape
function tokenFields(tokens: Token[], body: any, chat: boolean): object {
  const name = (token: Token) => (body.return_tokens_as_token_ids ? `token_id:${token.id}` : token.text)
  const wantsLogprobs = chat ? body.logprobs === true : typeof body.logprobs === 'number'
  return {
    logprobs: wantsLogprobs ? (chat ? chatLogprobs : listLogprobs)(tokens, name) : null,
    ...(body.return_token_ids && { token_ids: tokens.map((token) => token.id) }),
  }
}
