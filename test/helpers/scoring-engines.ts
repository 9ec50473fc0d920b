/**
 * Fake engines that score tokens in the wire formats of vLLM and SGLang. Their model is a table of logits that any two
 * tokens select: a test can easily make it wrong in one way at a time.
 */
import type { Test } from 'tap'
import { type ScriptedServer, sendJson, startScriptedServer } from './scripted-server.ts'

const VOCABULARY = 40

/** A model whose next token depends on the last two. */
export class TableModel {
  readonly #seed: number

  /** @param seed determines its weights */
  constructor(seed: number) {
    this.#seed = seed
  }

  /** Returns the logprobs of the next token, before temperature. */
  next(ids: readonly number[]): number[] {
    const [before = 0, last = 0] = [ids.at(-2), ids.at(-1)]
    const logits = Array.from({ length: VOCABULARY }, (_, id) => 3 * noise(this.#seed, before, last, id))
    return logSoftmax(logits)
  }

  /**
   * Samples a completion and its logprobs as an engine reports them.
   * @param rng numbers from 0 to 1
   */
  sample(prompt: readonly number[], length: number, { temperature = 1, topP = 1, random }: Sampling) {
    const ids = [...prompt]
    const raw: number[] = []
    const scaled: number[] = []
    const filtered: number[] = []
    const masks: number[][] = []
    for (let count = 0; count < length; count += 1) {
      const logprobs = this.next(ids)
      const warm = logSoftmax(logprobs.map((logprob) => logprob / temperature))
      const allowed = nucleus(warm, topP)
      const id = draw(allowed, random())
      ids.push(id)
      raw.push(logprobs[id]!)
      scaled.push(warm[id]!)
      filtered.push(allowed[id]!)
      masks.push(allowed.flatMap((logprob, other) => (logprob > Number.NEGATIVE_INFINITY ? [other] : [])))
    }
    return { ids: ids.slice(prompt.length), raw, scaled, filtered, masks }
  }
}

interface Sampling {
  temperature?: number
  topP?: number
  random: () => number
}

/** Returns a generator of the same numbers each time. */
export function createRandom(seed: number): () => number {
  let count = 0
  return () => (noise(seed, 7, 11, count++) + 1) / 2
}

/** Returns a number from -1 to 1 that is unrelated to its neighbours (the finaliser of MurmurHash3). */
function noise(...parts: readonly number[]): number {
  let hash = 0
  for (const part of parts) {
    hash = Math.imul(hash ^ (part + 0x9e37), 0x85ebca6b)
    hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
    hash ^= hash >>> 16
  }
  return (hash >>> 0) / 2 ** 31 - 1
}

function logSoftmax(logits: readonly number[]): number[] {
  const sum = Math.log(logits.reduce((total, logit) => total + Math.exp(logit), 0))
  return logits.map((logit) => logit - sum)
}

/** Renormalizes over the smallest set of tokens with this probability; the others become impossible. */
function nucleus(logprobs: readonly number[], topP: number): number[] {
  if (topP >= 1) return [...logprobs]
  const order = [...logprobs.keys()].sort((a, b) => logprobs[b]! - logprobs[a]!)
  let mass = 0
  const allowed = new Set<number>()
  for (const id of order) {
    if (mass >= topP) break
    allowed.add(id)
    mass += Math.exp(logprobs[id]!)
  }
  return logprobs.map((logprob, id) =>
    allowed.has(id) ? logprob - Math.log(mass) : Number.NEGATIVE_INFINITY,
  )
}

function draw(logprobs: readonly number[], index: number): number {
  let left = index
  for (const [id, logprob] of logprobs.entries()) {
    left -= Math.exp(logprob)
    if (left < 0) return id
  }
  return logprobs.findLastIndex((logprob) => logprob > Number.NEGATIVE_INFINITY)
}

interface State {
  /** The models that score, by name. */
  models: Record<string, TableModel>
  weightVersion: string
  /** Whether vLLM's chats report the sampling mask. */
  reportsMasks: boolean
}

export interface ScoringEngine extends ScriptedServer {
  readonly state: State
}

/**
 * Starts a scoring engine.
 * @param kind the wire format
 * @param models the first one is the default
 */
export async function startScoringEngine(
  t: Test,
  kind: 'vllm' | 'sglang',
  models: Record<string, TableModel>,
): Promise<ScoringEngine> {
  const state: State = { models, weightVersion: '1', reportsMasks: true }
  const server = await startScriptedServer(({ method, path, body }, response) => {
    if (method === 'GET') {
      const info = getResource(path, kind, state)
      return sendJson(response, info ?? { detail: 'Not Found' }, info === undefined ? 404 : 200)
    }
    if (body.messages !== undefined) return sendJson(response, vllmChat(body, state))
    const scored = kind === 'vllm' ? vllmScores(body, state.models) : sglangScores(body, state.models)
    sendJson(response, scored)
  })
  t.teardown(() => server.close())
  return { ...server, state }
}

function getResource(path: string, kind: string, { models, weightVersion }: State) {
  if (path === '/v1/models') {
    const data = Object.keys(models).map((id) => ({ id, object: 'model', owned_by: kind, root: id }))
    return { object: 'list', data }
  }
  if (path === '/health') return {}
  if (path === '/weight_info' && kind === 'vllm') return { weight_version: weightVersion }
  if (path === '/model_info' && kind === 'sglang')
    return { weight_version: weightVersion, is_generation: true }
  return undefined
}

interface TokenScore {
  id: number
  logprob: number
  top: [id: number, logprob: number][]
}

/** Scores each token except the first. */
function scoreTokens(model: TableModel, ids: readonly number[], count: number): TokenScore[] {
  return ids.slice(1).map((id, index) => {
    const logprobs = model.next(ids.slice(0, index + 1))
    const order = [...logprobs.keys()].sort((a, b) => logprobs[b]! - logprobs[a]!)
    return {
      id,
      logprob: logprobs[id] ?? Number.NEGATIVE_INFINITY,
      top: order.slice(0, count).map((other) => [other, logprobs[other]!]),
    }
  })
}

const getDefaultModel = (models: Record<string, TableModel>) => Object.values(models)[0]!

// biome-ignore lint/suspicious/noExplicitAny: a request body of any shape
function vllmScores(body: any, models: Record<string, TableModel>): object {
  const model = models[body.model] ?? getDefaultModel(models)
  const entries = scoreTokens(model, body.prompt, body.prompt_logprobs).map(({ id, logprob, top }) =>
    Object.fromEntries(
      [...top, [id, logprob] as const].map(([other, value]) => [
        other,
        { logprob: value, rank: 1, decoded_token: `<${other}>` },
      ]),
    ),
  )
  const choice = {
    index: 0,
    text: '',
    finish_reason: 'length',
    token_ids: [0],
    prompt_token_ids: body.prompt,
    prompt_logprobs: [null, ...entries],
  }
  return { id: 'cmpl-1', object: 'text_completion', created: 1, model: body.model ?? 'm', choices: [choice] }
}

/**
 * Responds as with `--return-sampling-mask` and `--logprobs-mode processed_logprobs`; every prompt has the same ids.
 */
// biome-ignore lint/suspicious/noExplicitAny: a request body of any shape
function vllmChat(body: any, { models, reportsMasks }: State): object {
  const model = models[body.model] ?? getDefaultModel(models)
  const prompt = [3, 1, 4, 1, 5, 9, 2, 6]
  const { temperature, top_p: topP, max_tokens: length, seed } = body
  const { ids, filtered, masks } = model.sample(prompt, length, {
    temperature,
    topP,
    random: createRandom(seed),
  })
  const choice = {
    index: 0,
    message: { role: 'assistant', content: ids.join(' ') },
    finish_reason: 'stop',
    token_ids: ids,
    logprobs: { content: ids.map((id, index) => ({ token: `<${id}>`, logprob: filtered[index] })) },
    ...(reportsMasks && { sampling_mask: masks }),
  }
  return { id: 'x', model: 'policy', prompt_token_ids: prompt, choices: [choice] }
}

// biome-ignore lint/suspicious/noExplicitAny: a request body of any shape
function sglangScores(body: any, models: Record<string, TableModel>): object {
  const model = models[body.lora_path] ?? getDefaultModel(models)
  const ids: number[] = body.input_ids
  const start: number = body.logprob_start_len
  const scored = scoreTokens(model, ids, body.top_logprobs_num).slice(start)
  const meta_info = {
    id: 'r',
    prompt_tokens: ids.length,
    completion_tokens: 0,
    input_token_logprobs: [[null, ids[start], null], ...scored.map(({ id, logprob }) => [logprob, id, null])],
    ...(body.top_logprobs_num > 0 && {
      input_top_logprobs: [null, ...scored.map(({ top }) => top.map(([id, logprob]) => [logprob, id, null]))],
    }),
    output_token_logprobs: [],
  }
  return { text: '', output_ids: [], meta_info }
}
