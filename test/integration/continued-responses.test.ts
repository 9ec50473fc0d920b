/** Responses in token mode whose engine requests are cut: one response, one stream, one turn. */
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { tableFromIPC } from 'apache-arrow'
import t, { type Test } from 'tap'
import { writeExportColumns } from '../../src/cli/export/export-columns.ts'
import { loadEmbeddedTokenizer } from '../../src/embedded/engine/embedded-model.ts'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { TokenForest } from '../../src/proxy/http/trainer/sessions/read-schemas.ts'
import { Trajectories } from '../../src/proxy/http/trainer/sessions/schemas.ts'
import { readParquet } from '../../src/rollout/datasets/parquet-file.ts'
import { type Cut, type CutKind, logprobBy, startCuttingEngine } from '../helpers/cutting-engine.ts'
import { Forwarder } from '../helpers/forwarder.ts'
import { startProxy } from '../helpers/proxy.ts'
import { joinWorker, untilWorkers } from '../helpers/relay-rig.ts'
import { schemaErrors } from '../helpers/sessions-api.ts'
import { IS_FULL } from '../helpers/tier.ts'
import { until } from '../helpers/until.ts'

const tokenizer = loadEmbeddedTokenizer()
const decode = (ids: readonly number[]) => tokenizer.decode(ids, { skipSpecialTokens: true })
/** Reasoning, a text with a character of four bytes, and a tool call. */
const TEXT =
  '<think>\nNaïve 🙂 thought.\n</think>\n\nThe end is 🙃 near.\n<tool_call>\n{"name": "f", "arguments": {"a": "ü"}}\n</tool_call>'
const COMPLETION = [...tokenizer.encode(TEXT), tokenizer.eosTokenId!]
const LENGTH = COMPLETION.length

/** Cuts after these numbers of tokens; with FULL, after each. */
const EVERYWHERE = [...Array(LENGTH - 2).keys()].filter((after) => IS_FULL || after % 5 === 0)
/** For the other dialects, which write what one list of events tells them; the engine's request is the same. */
const ELSEWHERE = IS_FULL ? [5, 17] : [17]

const tool = {
  name: 'f',
  description: 'A function',
  parameters: { type: 'object', properties: { a: { type: 'string' } } },
}
const messages = [{ role: 'user', content: 'Hello!' }]
const BODIES: Record<string, (id: string, stream: boolean) => { path: string; body: object }> = {
  chat: (id, stream) => ({
    path: `/${id}/v1/chat/completions`,
    body: {
      model: 'fake',
      messages,
      tools: [{ type: 'function', function: tool }],
      stream,
      ...(stream && { stream_options: { include_usage: true } }),
    },
  }),
  responses: (id, stream) => ({
    path: `/${id}/v1/responses`,
    body: { model: 'fake', input: 'Hello!', tools: [{ type: 'function', ...tool, strict: false }], stream },
  }),
  messages: (id, stream) => ({
    path: `/${id}/v1/messages`,
    body: {
      model: 'fake',
      max_tokens: 500,
      messages,
      tools: [{ name: 'f', input_schema: tool.parameters }],
      stream,
    },
  }),
  gemini: (id, stream) => ({
    path: `/${id}/v1beta/models/fake:${stream ? 'streamGenerateContent?alt=sse' : 'generateContent'}`,
    body: {
      contents: [{ role: 'user', parts: [{ text: 'Hello!' }] }],
      tools: [{ functionDeclarations: [tool] }],
    },
  }),
  completions: (id, stream) => ({
    path: `/${id}/v1/completions`,
    body: { model: 'fake', prompt: tokenizer.encode('Hello!'), max_tokens: 500, stream },
  }),
}

/**
 * Starts an engine and a proxy, in relay mode with a worker between them.
 * @param linkTo returns the URL at which the worker reaches the proxy. Default: the proxy's
 */
async function rig(
  t: Test,
  kind: 'vllm' | 'sglang',
  overrides: Partial<ServeConfig> = {},
  linkTo = async (url: string) => url,
) {
  const engine = await startCuttingEngine({ kind, completion: COMPLETION, decode })
  t.teardown(() => engine.close())
  const engines = { engineUrls: [engine.url], engineKind: kind }
  const isRelay = overrides.mode === 'relay'
  const proxy = await startProxy(t, {
    tokenizer: 'embedded',
    contextLength: 4_096,
    continueResponses: true,
    ...(!isRelay && engines),
    ...overrides,
  })
  if (isRelay) {
    joinWorker(t, { ...engines, proxyUrls: [await linkTo(proxy.url)], workerId: 'w1' })
    await untilWorkers(proxy, 'w1')
  }
  let sessions = 0
  /** Sends a request whose engine requests are cut. @returns what its agent receives, and its turn */
  const sendRequest = async (dialect: string, stream: boolean, cuts: readonly Cut[], fields: object = {}) => {
    engine.cuts = [...cuts]
    sessions += 1
    const id = `s${sessions}`
    const { path, body } = BODIES[dialect]!(id, stream)
    const response = await fetch(proxy.url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ...body, ...fields }),
    })
    const text = await response.text()
    const { turns } = await proxy.get(`/sessions/${id}`)
    return { id, status: response.status, text, turn: turns.at(-1), turns }
  }
  return { engine, engines, proxy, sendRequest }
}

/** The agent's response without ids and times; the texts of a stream are joined. */
function received(text: string, stream: boolean): unknown {
  if (!stream) return withoutIds(JSON.parse(text))
  const events = [...text.matchAll(/^data: (\{.*\})$/gm)].map(([, json]) => JSON.parse(json!))
  const strings: Record<string, string> = {}
  for (const event of events) addStrings(withoutIds(event), '', strings)
  return strings
}

// biome-ignore lint/suspicious/noExplicitAny: tests look into turns of any shape
type Json = any

const VARIES =
  /^(id|.*_id|call_id|created|created_at|completed_at|responseId|createTime|sequence_number|encrypted_content|signature|type|obfuscation|role|modelVersion)$/

function withoutIds(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutIds)
  if (typeof value !== 'object' || value === null) return value
  const kept = Object.entries(value).filter(([key]) => !VARIES.test(key))
  return Object.fromEntries(kept.map(([key, member]) => [key, withoutIds(member)]))
}

function addStrings(value: unknown, path: string, strings: Record<string, string>): void {
  if (typeof value === 'string') strings[path] = (strings[path] ?? '') + value
  else if (typeof value === 'object' && value !== null)
    for (const [key, member] of Object.entries(value)) addStrings(member, `${path}.${key}`, strings)
}

/** Returns what a turn must have: each token once, with the logprob of the weights that sampled it. */
function expectedTurn({
  turn,
  parts,
  reasons,
}: {
  turn: Json
  parts: Json[]
  reasons: readonly string[]
}): object {
  const versions = parts.flatMap(({ start, end, weight_version: version }) =>
    Array(end - start).fill(version),
  )
  return {
    status: 'completed',
    exact: true,
    ids: COMPLETION,
    logprobs: COMPLETION.map((id, index) => logprobBy(versions[index], id)),
    reasons,
    starts: [0, ...parts.slice(0, -1).map(({ end }) => end)],
    requests: reasons.length,
    counted: [turn.prompt_token_ids.length, LENGTH],
  }
}

const END_REASONS = {
  abort: 'abort',
  lost: 'engine_lost',
  error: 'engine_lost',
  held: 'worker_lost',
} as const

function checkTurn(t: Test, turn: Json, kinds: readonly CutKind[], what: string): void {
  const parts: Json[] = turn.annotations.engine_requests ?? []
  const reasons = [...kinds.map((kind) => END_REASONS[kind]), 'stop']
  const { prompt_tokens: prompt, completion_tokens: completion } = turn.usage
  const actual = {
    status: turn.status,
    exact: turn.exact,
    ids: turn.completion_token_ids,
    logprobs: turn.completion_logprobs,
    reasons: parts.map(({ end_reason: reason }) => reason),
    starts: parts.map(({ start }) => start),
    requests: new Set(parts.map(({ request_id: id }) => id)).size,
    counted: [prompt, completion],
  }
  t.strictSame(actual, expectedTurn({ turn, parts, reasons }), what)
}

for (const kind of ['vllm', 'sglang'] as const)
  t.test(`${kind}: a response that is cut anywhere is the one that was not cut`, async (t) => {
    const { sendRequest, engine } = await rig(t, kind)
    // SGLang's completions route reports no ids.
    for (const dialect of Object.keys(BODIES).filter((name) => kind === 'vllm' || name !== 'completions'))
      for (const stream of [true, false]) {
        const full = await sendRequest(dialect, stream, [])
        t.equal(full.turn.annotations.engine_requests, undefined)
        const isEverywhere = kind === 'vllm' && dialect === 'chat' && stream
        for (const after of isEverywhere ? EVERYWHERE : ELSEWHERE) {
          // The connection of a response that is not streamed brings all tokens or none.
          const kinds: CutKind[] = stream && after % 2 === 1 ? ['lost', 'abort'] : ['abort']
          const version = String(Number(engine.version) + 1)
          const cuts = kinds.map((kind, index) => ({ kind, after: index === 0 ? after : 1, version }))
          const what = `${dialect} ${stream ? 'streamed' : 'complete'} cut after ${after}`
          const cut = await sendRequest(dialect, stream, cuts)
          t.strictSame(received(cut.text, stream), received(full.text, stream), what)
          checkTurn(t, cut.turn, kinds, what)
        }
      }
  })

for (const kind of ['vllm', 'sglang'] as const)
  t.test(`${kind}: an error event after tokens is the loss of the engine`, async (t) => {
    const { sendRequest } = await rig(t, kind)
    const full = await sendRequest('chat', true, [])
    const { text, turn } = await sendRequest('chat', true, [{ kind: 'error', after: 9 }])
    t.strictSame(received(text, true), received(full.text, true))
    checkTurn(t, turn, ['error'], 'cut after 9')
  })

t.test('through a worker, too', async (t) => {
  const { sendRequest, engine } = await rig(t, 'vllm', { mode: 'relay' })
  for (const stream of [true, false]) {
    const full = await sendRequest('chat', stream, [])
    for (const after of [1, 8, 20]) {
      const kinds: CutKind[] = stream ? ['lost', 'abort'] : ['abort']
      const version = String(Number(engine.version) + 1)
      const cut = await sendRequest(
        'chat',
        stream,
        kinds.map((kind) => ({ kind, after, version })),
      )
      t.strictSame(received(cut.text, stream), received(full.text, stream))
      checkTurn(t, cut.turn, kinds, `cut after ${after}`)
    }
  }
})

t.test(
  'after the loss of a worker, another one continues, and what the first returns with is dropped',
  async (t) => {
    let link: Forwarder | undefined
    const options = { mode: 'relay', workerGraceMs: 200 } as const
    const { sendRequest, engine, engines, proxy } = await rig(t, 'vllm', options, async (url) => {
      link = await Forwarder.to(t, Number(new URL(url).port))
      return `http://127.0.0.1:${link.port}`
    })
    const full = await sendRequest('chat', true, [])
    const before = engine.generations().length
    const cut = sendRequest('chat', true, [{ kind: 'held', after: 9 }])
    await until(async () => (await proxy.get('/admin/turns')).turns[0]?.sampled_tokens === 9)
    link!.refuse(true)
    link!.cut()
    // The first worker receives the rest while it is disconnected.
    engine.release()
    joinWorker(t, { ...engines, proxyUrls: [proxy.url], workerId: 'w2' })
    const { text, turn } = await cut
    link!.refuse(false)
    await untilWorkers(proxy, 'w1', 'w2')
    t.strictSame(received(text, true), received(full.text, true))
    checkTurn(t, turn, ['held'], 'cut after 9')
    t.strictSame(
      turn.annotations.engine_requests.map(({ end }: Json) => end),
      [9, LENGTH],
    )
    t.equal(engine.generations().length - before, 2, 'one request continues')
  },
)

t.test('a stop string and the token limit apply to the complete response', async (t) => {
  const { sendRequest, engine } = await rig(t, 'vllm')
  for (const fields of [{ stop: ['end is 🙃'] }, { stop: 'near' }, { max_completion_tokens: 30 }]) {
    const full = await sendRequest('chat', true, [], fields)
    const { completion_token_ids: ids, finish_reason: reason } = full.turn
    t.ok(ids.length < LENGTH - 10)
    for (let after = 1; after < ids.length; after += 2) {
      const { turn, text } = await sendRequest('chat', true, [{ kind: 'abort', after }], fields)
      const what = `${JSON.stringify(fields)} cut after ${after}`
      t.strictSame([turn.completion_token_ids, turn.finish_reason, turn.exact], [ids, reason, true], what)
      t.strictSame(received(text, true), received(full.text, true), what)
    }
  }
  t.equal(engine.generations().at(-1)!.body.max_tokens, 1, 'the rest of the limit is requested')
})

t.test('a response whose tokens are complete when its connection is lost is complete', async (t) => {
  const { sendRequest, engine } = await rig(t, 'vllm')
  const before = engine.generations().length
  for (const [after, fields, reason] of [
    [LENGTH, {}, 'tool_calls'],
    [20, { max_completion_tokens: 20 }, 'length'],
  ] as const) {
    const { turn } = await sendRequest('chat', true, [{ kind: 'lost', after }], fields)
    t.match(turn, { status: 'completed', exact: true, finish_reason: reason })
    t.equal(turn.completion_token_ids.length, after)
  }
  t.equal(engine.generations().length - before, 2, 'and no engine request follows')
})

t.test('a response that cannot be continued fails as before, with the reason in the turn', async (t) => {
  const { sendRequest } = await rig(t, 'vllm')
  const schema = { type: 'object', properties: {} }
  const strict = { type: 'function', function: { ...tool, strict: true } }
  for (const [fields, reason, dialect = 'chat'] of [
    [{ seed: 1 }, 'seed'],
    [{ response_format: { type: 'json_object' } }, 'response_format'],
    [{ structured_outputs: { json: schema } }, 'structured_outputs'],
    [{ presence_penalty: 1 }, 'presence_penalty'],
    [{ repetition_penalty: 1.1 }, 'repetition_penalty'],
    [{ min_tokens: 3 }, 'min_tokens'],
    [{ tool_choice: 'required' }, 'forces a tool call'],
    [{ tools: [strict] }, 'strict tools'],
    [{ n: 2 }, 'several choices'],
    [{ max_tokens: null }, "does not set 'max_tokens'", 'completions'],
    [{ suffix: 'end' }, "sets 'suffix'", 'completions'],
  ] as const) {
    const { turn, turns } = await sendRequest(dialect, true, [{ kind: 'abort', after: 3 }], fields)
    const failed = turns.find(({ error }: Json) => error?.code === 'engine_aborted') ?? turn
    t.match(failed, { status: 'failed', error: { code: 'engine_aborted', message: `does not continue: it` } })
    t.match(failed.error.message, reason)
    t.equal(failed.completion_token_ids.length, 3)
  }
  const neutral = { seed: -1, presence_penalty: 0, repetition_penalty: 1, response_format: { type: 'text' } }
  t.match((await sendRequest('chat', true, [{ kind: 'abort', after: 3 }], neutral)).turn, {
    status: 'completed',
  })
})

t.test('a request that engines lose before its response is not continued', async (t) => {
  const { sendRequest, engine } = await rig(t, 'vllm')
  const lost = { kind: 'lost', after: 0 } as const
  const before = engine.generations().length
  const { turn } = await sendRequest('chat', false, Array(20).fill(lost))
  t.match(turn, { status: 'failed', error: { code: 'engine_lost' } })
  t.equal(engine.generations().length - before, 2, 'fail-over limits its attempts')
})

t.test('a response has at most eight engine requests', async (t) => {
  const { sendRequest, engine } = await rig(t, 'vllm')
  const cut = { kind: 'abort', after: 1 } as const
  const { turn } = await sendRequest('chat', true, Array(7).fill(cut))
  t.match(turn, { status: 'completed', completion_token_ids: COMPLETION })
  const before = engine.generations().length
  const failed = await sendRequest('chat', true, Array(8).fill(cut))
  t.match(failed.turn, { status: 'failed', error: { message: /it had 8 engine requests/ } })
  t.equal(failed.turn.completion_token_ids.length, 8)
  t.equal(engine.generations().length - before, 8)
})

t.test('without --continue-responses an aborted response fails', async (t) => {
  const { sendRequest } = await rig(t, 'sglang', { continueResponses: false })
  const { turn } = await sendRequest('chat', true, [{ kind: 'abort', after: 3 }])
  t.match(turn, { status: 'failed', error: { code: 'engine_aborted' } })
  t.equal(turn.completion_token_ids.length, 3)
  t.notMatch(turn.error.message, /continue/)
  const complete = await sendRequest('chat', false, [{ kind: 'abort', after: 3 }])
  t.equal(complete.turn.completion_token_ids.length, 3, 'tokens of a complete response are recorded, too')
})

t.test('tokens of older weights are masked on request, and by the code in the docs', async (t) => {
  const { sendRequest, proxy } = await rig(t, 'vllm')
  const { id } = await sendRequest('chat', true, [{ kind: 'abort', after: 7, version: '2' }])
  const getRow = async (query: string) =>
    (await proxy.get(`/sessions/${id}/trajectories${query}`)).trajectories[0]
  const row = await getRow('')
  const ones = (count: number) => Array(count).fill(1)
  const masked = [...Array(7).fill(0), ...ones(LENGTH - 7)]
  t.strictSame(row.response_mask, ones(LENGTH))
  const fresh = await getRow('?mask_stale_tokens=true')
  t.strictSame(fresh.response_mask, masked)
  t.strictSame(fresh.response_logprobs.slice(0, 7), Array(7).fill(0))
  await proxy.post(`/sessions/${id}/complete`)
  await proxy.post('/consumers/c', {})
  const { sessions } = await proxy.post('/consumers/c/fetch', { mask_stale_tokens: true })
  t.strictSame(sessions[0].trajectories[0].response_mask, masked)
  const docs = readFileSync(join(import.meta.dirname, '../../docs/token-mode.md'), 'utf8')
  const code = /```python parts\n(.*?)```/s.exec(docs)![1]!
  const logprobs = row.response_logprobs.map((logprob: number) => logprob + Math.log(2))
  const correct = (lag: number) =>
    JSON.parse(
      execFileSync(
        'python3',
        ['-c', `import json, sys\n${code}\nprint(json.dumps(correct(*json.load(sys.stdin))))`],
        {
          input: JSON.stringify([row, logprobs, 2, lag]),
        },
      ).toString(),
    )
  const [mask, ratios] = correct(0)
  t.strictSame(mask, masked)
  t.ok(ratios.every((ratio: number, index: number) => Math.abs(ratio - (masked[index] ? 2 : 1)) < 1e-9))
  t.strictSame(correct(1)[0], ones(LENGTH))
})

t.test('a session overrides the option in both directions', async (t) => {
  for (const [continueResponses, ofSession, expected] of [
    [false, true, 'completed'],
    [true, false, 'failed'],
    [true, undefined, 'completed'],
  ] as const) {
    const { sendRequest, proxy } = await rig(t, 'vllm', { continueResponses })
    await proxy.post('/sessions', { session_id: 's1', continue_responses: ofSession })
    const { turn } = await sendRequest('chat', true, [{ kind: 'abort', after: 3 }])
    t.equal(turn.status, expected)
    t.match(await proxy.get('/sessions/s1'), { continue_responses: ofSession ?? null })
  }
})

t.test('rows, the forest and files have the engine requests of each turn', async (t) => {
  const { sendRequest, proxy } = await rig(t, 'vllm')
  const { id, turn } = await sendRequest('chat', true, [{ kind: 'abort', after: 7, version: '2' }])
  const parts = turn.annotations.engine_requests
  const body = await proxy.get(`/sessions/${id}/trajectories`)
  t.strictSame(schemaErrors(Trajectories, body), [])
  t.strictSame(body.trajectories[0].turns[0].engine_requests, parts)
  const forest = await proxy.get(`/sessions/${id}/forest`)
  t.strictSame(schemaErrors(TokenForest, forest), [])
  t.strictSame(forest.nodes[1].engine_requests, parts)
  for (const ending of ['parquet', 'arrow']) {
    const path = join(t.testdir(), `rows.${ending}`)
    const lines = body.trajectories.map((row: object) => `${JSON.stringify({ session_id: id, ...row })}\n`)
    await writeExportColumns(path, { format: 'trajectories', details: [] }, lines)
    const [row] =
      ending === 'parquet'
        ? await Array.fromAsync(readParquet(path))
        : tableFromIPC(readFileSync(path)).toArray()
    const stored = JSON.parse(
      JSON.stringify(row, (_, value) => (typeof value === 'bigint' ? Number(value) : value)),
    )
    t.strictSame(stored.turns[0].engine_requests, parts, ending)
  }
})

t.test('a row has the weights that sampled each of its tokens', async (t) => {
  const { sendRequest, proxy } = await rig(t, 'vllm')
  const { id } = await sendRequest('chat', true, [{ kind: 'abort', after: 7, version: '2' }])
  const { trajectories: rows } = await proxy.get(`/sessions/${id}/trajectories?details=weight_versions`)
  const versions = [
    { version: '1', start: 0, end: 7 },
    { version: '2', start: 7, end: LENGTH },
  ]
  t.match(rows, [{ response_ids: COMPLETION, weight_versions: versions, weight_version_min: '1' }])
})
