/**
 * An engine that reports all token data that any engine reports, in the formats of vLLM and SGLang, and samples at
 * random. `reported-details.ts` derives a token's data from the token, so that any reader can verify it. A chat's
 * prompt begins with the prompt and completion of the turn that it continues.
 */
import type { ServerResponse } from 'node:http'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { loadEmbeddedTokenizer } from '../../src/embedded/engine/embedded-model.ts'
import {
  EXPERTS_PER_TOKEN,
  getExperts,
  getLogprob,
  getMask,
  getMaskLogprobs,
  getPrompt,
  getTop,
  getVersionSpans,
  LAYERS,
} from './reported-details.ts'
import { getUsage } from './sampled-words.ts'
import {
  type IncomingRequest,
  openEventStream,
  type ScriptedServer,
  sendJson,
  startScriptedServer,
} from './scripted-server.ts'

export interface DetailedEngineOptions {
  /** The seed of the random tokens. */
  seed: number
  /** The tokens that are sampled. Default: ids from 300 to 60,300. */
  tokens?: readonly number[]
  /** Returns the number of tokens after which the stream ends early. */
  cutAfter?: () => number | undefined
}

const tokenizer = loadEmbeddedTokenizer()

const ROLE_TOKENS = { user: 7, assistant: 9 } as const

export async function startDetailedEngine(options: DetailedEngineOptions): Promise<ScriptedServer> {
  const draw = createDraw(options.seed)
  const sample = () => {
    const { tokens } = options
    const token = () => (tokens ? tokens[draw(tokens.length)]! : 300 + draw(60_000))
    return Array.from({ length: 2 + draw(6) }, token)
  }
  return await startScriptedServer(async ({ method, path, body }, response) => {
    if (method === 'GET') return respondToGet(path, response)
    // This engine samples arbitrary ids and has no chat template, so it rejects messages.
    if (path === '/tokenize' && body.messages) return sendJson(response, {}, 400)
    if (path === '/tokenize') return sendJson(response, { tokens: tokenizer.encode(body.prompt) })
    const cutAfter = options.cutAfter?.()
    if (path === '/generate') return await generate(body, sample(), response)
    if (path === '/inference/v1/generate') return sendJson(response, createTokenResponse(body, sample()))
    const prompt: number[] = body.messages ? renderPrompt(body.messages) : body.prompt
    const sampled = { body, prompt, completion: sample(), isChat: body.messages !== undefined }
    if (body.stream) await streamResponse(sampled, response, cutAfter)
    else sendJson(response, createResponseBody(sampled))
  })
}

/** Creates a generator of numbers from 0 up to a limit: a linear congruential generator. */
function createDraw(seed: number): (limit: number) => number {
  let state = seed >>> 0
  return (limit) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((state / 0x1_0000_0000) * limit)
  }
}

function respondToGet(path: string, response: ServerResponse): void {
  if (path === '/v1/models')
    sendJson(response, { object: 'list', data: [{ id: 'detailed', max_model_len: 100_000 }] })
  else if (path === '/health') response.end()
  else sendJson(response, { detail: 'Not Found' }, 404)
}

function renderPrompt(messages: { role: string; content: string }[]): number[] {
  return messages.flatMap(({ role, content }) =>
    role === 'assistant'
      ? content.split(' ').map(Number)
      : [ROLE_TOKENS.user, ...Buffer.from(content).map((byte) => byte), ROLE_TOKENS.assistant],
  )
}

interface SampledResponse {
  body: IncomingRequest['body']
  prompt: number[]
  completion: number[]
  isChat: boolean
}

/** Builds vLLM's complete response; it contains masks and experts whether they are requested or not. */
function createResponseBody({ body, prompt, completion, isChat }: SampledResponse): object {
  const logprobs = getLogprobs(completion, body, isChat)
  const text = completion.join(' ')
  const promptLogprobs =
    body.prompt_logprobs === undefined
      ? undefined
      : prompt.map((token, index) =>
          index === 0 ? null : createPromptEntry(token, Number(body.prompt_logprobs)),
        )
  const choice = {
    index: 0,
    ...(isChat ? { message: { role: 'assistant', content: text } } : { text, prompt_token_ids: prompt }),
    logprobs,
    finish_reason: 'stop',
    token_ids: completion,
    sampling_mask: completion.map(getMask),
    sampling_mask_logprobs: completion.map(getMaskLogprobs),
    routed_experts: toNpy(
      [...prompt, ...completion].slice(Number(body.routed_experts_prompt_start ?? 0), -1),
    ),
    ...(!isChat && promptLogprobs && { prompt_logprobs: promptLogprobs }),
  }
  const usage = getUsage(prompt, completion)
  const root = isChat ? { prompt_token_ids: prompt, prompt_logprobs: promptLogprobs } : {}
  return { id: 'x', model: 'detailed', choices: [choice], usage, ...root }
}

/**
 * Builds the response of vLLM's `/inference/v1/generate`: `GenerateTokensResponse` of
 * `vllm/entrypoints/scale_out/token_in_token_out/protocol.py` at 006ebac2. It has neither texts nor a stop reason.
 */
function createTokenResponse(body: IncomingRequest['body'], completion: number[]): object {
  const prompt: number[] = body.token_ids
  const { logprobs: count, prompt_logprobs: others } = body.sampling_params
  const entry = (id: number, logprob: number) => ({ token_id: id, logprob, rank: 1 })
  const content = completion.map((token) => ({
    ...entry(token, getLogprob(token, 0)),
    top_logprobs: getTop(token, count).map(([id, logprob]) => entry(id, logprob)),
  }))
  const choice = {
    index: 0,
    finish_reason: 'stop',
    token_ids: completion,
    routed_experts: toNpy([...prompt, ...completion].slice(0, -1)),
    sampling_mask: completion.map(getMask),
    weight_versions: getVersionSpans(completion),
    logprobs: { content },
  }
  return {
    request_id: 'x',
    model: 'detailed',
    usage: getUsage(prompt, completion),
    prompt_logprobs:
      others === undefined
        ? null
        : prompt.map((token, index) => (index === 0 ? null : createPromptEntry(token, Number(others)))),
    prompt_token_ids: body.return_token_ids ? prompt : null,
    output_mode: 'tokens',
    choices: [choice],
  }
}

async function streamResponse(
  sampled: SampledResponse,
  response: ServerResponse,
  cutAfter: number | undefined,
): Promise<void> {
  const { body, prompt, completion, isChat } = sampled
  const send = openEventStream(response)
  const chunk = (choice: object, root: object = {}) =>
    send({ id: 'x', model: 'detailed', choices: [choice], ...root })
  const root = isChat ? { prompt_token_ids: prompt } : {}
  chunk(
    {
      index: 0,
      ...(isChat ? { delta: { role: 'assistant', content: '' } } : { text: '', prompt_token_ids: prompt }),
    },
    root,
  )
  for (let index = 0; index < completion.length; index += 2) {
    if (cutAfter !== undefined && index >= cutAfter) return void response.end()
    await nextTurn()
    const tokens = completion.slice(index, index + 2)
    const text = `${index > 0 ? ' ' : ''}${tokens.join(' ')}`
    chunk({
      index: 0,
      ...(isChat ? { delta: { content: text } } : { text }),
      token_ids: tokens,
      logprobs: getLogprobs(tokens, body, isChat),
      sampling_mask: tokens.map(getMask),
      sampling_mask_logprobs: tokens.map(getMaskLogprobs),
    })
  }
  chunk({ index: 0, ...(isChat ? { delta: {} } : { text: '' }), finish_reason: 'stop' })
  send({ id: 'x', model: 'detailed', choices: [], usage: getUsage(prompt, completion) })
  send('[DONE]')
  response.end()
}

function getLogprobs(tokens: readonly number[], body: IncomingRequest['body'], isChat: boolean): object {
  const write = (id: number) => (body.return_tokens_as_token_ids ? `token_id:${id}` : `t${id}`)
  const bytes = (id: number) => [...Buffer.from(`t${id}`)]
  const count = Number((isChat ? body.top_logprobs : body.logprobs) ?? 0)
  if (!isChat) {
    return {
      tokens: tokens.map(write),
      token_logprobs: tokens.map((token) => getLogprob(token, 0)),
      top_logprobs: tokens.map((token) =>
        Object.fromEntries(getTop(token, count).map(([id, lp]) => [write(id), lp])),
      ),
    }
  }
  const entry = (id: number, logprob: number) => ({ token: write(id), logprob, bytes: bytes(id) })
  return {
    content: tokens.map((token) => ({
      ...entry(token, getLogprob(token, 0)),
      top_logprobs: getTop(token, count).map(([id, logprob]) => entry(id, logprob)),
    })),
  }
}

function createPromptEntry(token: number, others: number): object {
  return Object.fromEntries(
    getPrompt(token, others).map(([id, logprob], rank) => [id, { logprob, rank, decoded_token: `t${id}` }]),
  )
}

function toNpy(tokens: readonly number[]): string {
  const shape = `(${tokens.length}, ${LAYERS}, ${EXPERTS_PER_TOKEN})`
  const header = `{'descr': '|u1', 'fortran_order': False, 'shape': ${shape}, }`.padEnd(117)
  const head = Buffer.concat([Buffer.from('\x93NUMPY\x01\x00', 'latin1'), Buffer.from([118, 0])])
  return Buffer.concat([head, Buffer.from(`${header}\n`), Buffer.from(tokens.flatMap(getExperts))]).toString(
    'base64',
  )
}

/** Serves SGLang's `/generate`; each event contains everything from the start. */
async function generate(
  body: IncomingRequest['body'],
  completion: number[],
  response: ServerResponse,
): Promise<void> {
  const createResponse = (count: number) => {
    const tokens = completion.slice(0, count)
    const isLast = count === completion.length
    return { text: '', output_ids: tokens, meta_info: getMeta(body, tokens, isLast) }
  }
  if (!body.stream) return sendJson(response, createResponse(completion.length))
  const send = openEventStream(response)
  for (let count = 1; count <= completion.length; count += 1) {
    await nextTurn()
    send(createResponse(count))
  }
  send('[DONE]')
  response.end()
}

function getMeta(body: IncomingRequest['body'], tokens: number[], isLast: boolean): object {
  const prompt: number[] = body.input_ids
  const alternatives = Number(body.top_logprobs_num)
  const read = [...prompt, ...tokens].slice(Number(body.routed_experts_start_len ?? 0), -1)
  const experts = Buffer.from(Int32Array.from(read.flatMap(getExperts)).buffer).toString('base64')
  const entry = ([id, logprob]: readonly [number, number]) => [logprob, id, null]
  return {
    id: 'x',
    prompt_tokens: prompt.length,
    completion_tokens: tokens.length,
    finish_reason: isLast ? { type: 'stop', matched: tokens.at(-1) } : null,
    output_token_logprobs: tokens.map((token) => [getLogprob(token, 0), token, null]),
    ...(alternatives > 0 && {
      output_top_logprobs: tokens.map((token) => getTop(token, alternatives).map(entry)),
    }),
    ...(body.logprob_start_len === 0 && {
      input_token_logprobs: prompt.map((token, index) =>
        index === 0 ? [null, token, null] : entry(getPrompt(token, 0)[0]!),
      ),
      input_top_logprobs: prompt.map((token, index) =>
        index === 0 ? null : getPrompt(token, 1).slice(1).map(entry),
      ),
    }),
    ...(body.return_sampling_mask && {
      output_token_sampling_mask: tokens.map(getMask),
      output_token_sampling_logprobs: tokens.map((token) => getLogprob(token, 5)),
    }),
    ...(body.return_routed_experts && isLast && { routed_experts: experts }),
    weight_versions: getVersionSpans(tokens),
    weight_version: getVersionSpans(tokens).at(-1)?.version,
  }
}
