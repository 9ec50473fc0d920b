/**
 * A fake of vLLM and SGLang in token mode that samples one completion, and whose requests are cut: aborted, as by a
 * trainer's pause, or disconnected. A request whose prompt ends with a part of the completion samples the
 * rest. The logprob of a token shows the weights that sampled it.
 */
import type { ServerResponse } from 'node:http'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { getUsage } from './sampled-words.ts'
import {
  type IncomingRequest,
  openEventStream,
  type ScriptedServer,
  sendJson,
  startScriptedServer,
} from './scripted-server.ts'

/**
 * `error`: a streamed request ends with an error event, as when vLLM's core dies. `paused`: a streamed request of vLLM
 * pauses, and samples the rest after {@link CuttingEngine.release}.
 */
export type CutKind = 'abort' | 'disconnect' | 'error' | 'paused'

/** Cuts one request. */
export interface Cut {
  /** The number of tokens that the request samples before the cut. */
  after: number
  kind: CutKind
  /** The weights after the cut. Default: the same. */
  version?: string
}

interface CuttingEngine extends ScriptedServer {
  /** The cuts of the next requests, in order; later requests are not cut. */
  cuts: Cut[]
  version: string
  /** The requests that sample. */
  generations(): IncomingRequest[]
  /** Continues the paused request. */
  release(): void
}

interface Sampling {
  /** The ids of this request, up to its end or its cut. */
  ids: number[]
  version: string
  prompt: number[]
  /** A finish reason; `disconnect`: the connection breaks. */
  end: 'stop' | 'length' | 'abort' | 'disconnect' | 'error'
  stop?: string | undefined
  /** The number of tokens after which the request pauses. */
  pausedAfter?: number
  released: Promise<void>
  decode: CuttingEngineOptions['decode']
}

interface CuttingEngineOptions {
  kind: 'vllm' | 'sglang'
  completion: readonly number[]
  decode(ids: readonly number[]): string
}

export async function startCuttingEngine(options: CuttingEngineOptions): Promise<CuttingEngine> {
  const { kind, completion, decode } = options
  const pause = Promise.withResolvers<void>()
  const sample = (body: IncomingRequest['body']): Sampling => {
    const prompt: number[] = kind === 'vllm' ? body.prompt : body.input_ids
    const params = kind === 'vllm' ? body : body.sampling_params
    const limit: number = (kind === 'vllm' ? params.max_tokens : params.max_new_tokens) ?? 1_000
    const rest = completion.slice(countSampled(prompt, completion))
    const stop = findStop(rest, [params.stop ?? []].flat(), decode)
    const natural = rest.slice(0, Math.min(limit, stop?.count ?? rest.length))
    const end = stop === undefined && natural.length < rest.length ? 'length' : 'stop'
    const { version } = engine
    const cut = engine.cuts.shift()
    if (cut?.version !== undefined) engine.version = cut.version
    const sampled = { version, prompt, decode, released: pause.promise }
    if (cut?.kind === 'paused')
      return { ...sampled, ids: natural, end, stop: stop?.text, pausedAfter: cut.after }
    if (cut === undefined || cut.after > natural.length)
      return { ...sampled, ids: natural, end, stop: stop?.text }
    return { ...sampled, ids: natural.slice(0, cut.after), end: cut.kind }
  }
  const paths = ['/v1/completions', '/generate']
  const server = await startScriptedServer(async (request, response) => {
    if (!paths.includes(request.path)) return respondToOthers(kind, engine.version, request, response)
    const sampling = sample(request.body)
    const write = kind === 'vllm' ? writeVllm : writeSglang
    await write(sampling, request.body, response)
  })
  const generations = () => server.requests.filter(({ path }) => paths.includes(path))
  const engine: CuttingEngine = { ...server, cuts: [], version: '1', generations, release: pause.resolve }
  return engine
}

/** Returns the logprob of a token that weights of this version sampled. */
export function logprobBy(version: string, id: number): number {
  return -Number(version) - (id % 64) / 64
}

/** Returns the length of the longest end of the prompt that is a beginning of the completion. */
function countSampled(prompt: readonly number[], completion: readonly number[]): number {
  for (let count = completion.length; count > 0; count -= 1)
    if (completion.slice(0, count).every((id, index) => prompt[prompt.length - count + index] === id))
      return count
  return 0
}

function findStop(ids: readonly number[], stops: readonly string[], decode: CuttingEngineOptions['decode']) {
  for (let count = 1; count <= ids.length; count += 1) {
    const text = decode(ids.slice(0, count))
    const found = stops.find((stop) => text.includes(stop))
    if (found !== undefined) return { count, text: found }
  }
  return undefined
}

function respondToOthers(
  kind: string,
  version: string,
  { path }: IncomingRequest,
  response: ServerResponse,
): void {
  const model = { id: 'fake', object: 'model', owned_by: kind, max_model_len: 4096 }
  const isVersion = path === '/weight_info' || path === '/get_model_info'
  const body =
    path === '/v1/models'
      ? { object: 'list', data: [model] }
      : isVersion
        ? { weight_version: version, is_generation: true }
        : {}
  sendJson(response, body, Object.keys(body).length > 0 || path === '/health' ? 200 : 404)
}

/** Returns the text of the complete characters. */
function decodeComplete(ids: readonly number[], decode: CuttingEngineOptions['decode']): string {
  return decode(ids).replace(/\uFFFD+$/, '')
}

async function writeVllm(
  { ids, version, prompt, end, stop, pausedAfter, released, decode }: Sampling,
  body: IncomingRequest['body'],
  response: ServerResponse,
): Promise<void> {
  const root = { id: 'cmpl-1', created: 1, model: 'fake' }
  const getText = (count: number) => decodeComplete(ids.slice(0, count), decode)
  const choice = (own: readonly number[], reason: string | null, before = 0) => ({
    index: 0,
    text: getText(before + own.length).slice(getText(before).length),
    logprobs: {
      tokens: own.map((id) => `token_id:${id}`),
      token_logprobs: own.map((id) => logprobBy(version, id)),
    },
    ...(body.return_token_ids && { prompt_token_ids: prompt }),
    finish_reason: reason,
    stop_reason: reason === 'stop' ? (stop ?? null) : null,
  })
  if (!body.stream) {
    if (end === 'disconnect') {
      response.destroy()
      return
    }
    return sendJson(response, { ...root, choices: [choice(ids, end)], usage: getUsage(prompt, ids) })
  }
  const send = openEventStream(response)
  for (const [index, id] of ids.entries()) {
    if (index === pausedAfter) await released
    send({ ...root, choices: [choice([id], null, index)] })
    await nextTurn()
  }
  if (end === 'disconnect') {
    response.destroy()
    return
  }
  if (end === 'error') {
    sendFailure(send, response)
    return
  }
  send({ ...root, choices: [choice([], end, ids.length)] })
  send({ ...root, choices: [], usage: getUsage(prompt, ids) })
  send('[DONE]')
  response.end()
}

/** Ends a stream as vLLM does when its core has died (`create_streaming_error_response`). */
function sendFailure(send: (data: object | string) => void, response: ServerResponse): void {
  send({ error: { message: 'EngineCore encountered an issue.', type: 'InternalServerError', code: 500 } })
  send('[DONE]')
  response.end()
}

async function writeSglang(
  { ids, version, prompt, end, stop, decode }: Sampling,
  body: IncomingRequest['body'],
  response: ServerResponse,
): Promise<void> {
  const reasons = {
    stop: { type: 'stop', matched: stop ?? 2 },
    length: { type: 'length', length: ids.length },
    abort: { type: 'abort', message: 'Aborted', status_code: null },
    disconnect: null,
    error: null,
  }
  const createResponse = (count: number, isLast: boolean) => ({
    text: decodeComplete(ids.slice(0, count), decode),
    output_ids: ids.slice(0, count),
    meta_info: {
      id: 'b3c1',
      finish_reason: isLast ? reasons[end] : null,
      prompt_tokens: prompt.length,
      completion_tokens: count,
      weight_version: version,
      output_token_logprobs: ids.slice(0, count).map((id) => [logprobBy(version, id), id, null]),
    },
  })
  if (!body.stream) {
    if (end === 'disconnect') {
      response.destroy()
      return
    }
    return sendJson(response, createResponse(ids.length, true))
  }
  const send = openEventStream(response)
  for (const index of ids.keys()) {
    send(createResponse(index + 1, !['disconnect', 'error'].includes(end) && index + 1 === ids.length))
    await nextTurn()
  }
  if (end === 'disconnect') {
    response.destroy()
    return
  }
  if (end === 'error') {
    sendFailure(send, response)
    return
  }
  if (ids.length === 0) send(createResponse(0, true))
  send('[DONE]')
  response.end()
}
