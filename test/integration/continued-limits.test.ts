/** Responses in token mode that are continued: their limits, what prevents it, and what is recorded and exported. */
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { tableFromIPC } from 'apache-arrow'
import t from 'tap'
import { writeExportColumns } from '../../src/cli/export/export-columns.ts'
import { TokenForest } from '../../src/proxy/http/trainer/sessions/read-schemas.ts'
import { Trajectories } from '../../src/proxy/http/trainer/sessions/schemas.ts'
import { readParquet } from '../../src/rollout/datasets/parquet-file.ts'
import { COMPLETION, type Json, LENGTH, normalizeResponse, startCutRig, tool } from '../helpers/cut-rig.ts'
import { findSchemaErrors } from '../helpers/sessions-api.ts'
import { IS_FULL } from '../helpers/tier.ts'

t.test('a stop string and the token limit apply to the complete response', async (t) => {
  const { sendRequest, engine } = await startCutRig(t, 'vllm')
  for (const fields of [{ stop: ['end is 🙃'] }, { stop: 'near' }, { max_completion_tokens: 30 }]) {
    const full = await sendRequest('chat', true, [], fields)
    const { completion_token_ids: ids, finish_reason: reason } = full.turn
    t.ok(ids.length < LENGTH - 10)
    for (let after = 0; after < ids.length; after += IS_FULL || after === 0 ? 1 : 4) {
      const { turn, text } = await sendRequest('chat', true, [{ kind: 'abort', after }], fields)
      const what = `${JSON.stringify(fields)} cut after ${after}`
      t.strictSame([turn.completion_token_ids, turn.finish_reason, turn.exact], [ids, reason, true], what)
      t.strictSame(normalizeResponse(text, true), normalizeResponse(full.text, true), what)
      const parts = turn.annotations.engine_requests.map(({ start, end }: Json) => [start, end])
      t.strictSame(
        parts,
        [
          [0, after],
          [after, ids.length],
        ],
        what,
      )
    }
  }
  t.equal(engine.generations().at(-1)!.body.max_tokens, 1, 'the rest of the limit is requested')
})

t.test('a response whose tokens are complete when its connection is lost is complete', async (t) => {
  const { sendRequest, engine } = await startCutRig(t, 'vllm')
  const before = engine.generations().length
  for (const [after, fields, reason] of [
    [LENGTH, {}, 'tool_calls'],
    [20, { max_completion_tokens: 20 }, 'length'],
  ] as const) {
    const { turn } = await sendRequest('chat', true, [{ kind: 'disconnect', after }], fields)
    t.match(turn, { status: 'completed', exact: true, finish_reason: reason })
    t.equal(turn.completion_token_ids.length, after)
  }
  t.equal(engine.generations().length - before, 2, 'and no engine request follows')
})

t.test('a response that cannot be continued fails as before, with the reason in the turn', async (t) => {
  const { sendRequest } = await startCutRig(t, 'vllm')
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

t.test('a request whose engines disconnect before its response is not continued', async (t) => {
  const { sendRequest, engine } = await startCutRig(t, 'vllm')
  const lost = { kind: 'disconnect', after: 0 } as const
  const before = engine.generations().length
  const { turn } = await sendRequest('chat', false, Array(20).fill(lost))
  t.match(turn, { status: 'failed', error: { code: 'engine_lost' } })
  t.equal(engine.generations().length - before, 2, 'fail-over limits its attempts')
})

t.test('a response has at most eight engine requests', async (t) => {
  const { sendRequest, engine } = await startCutRig(t, 'vllm')
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
  const { sendRequest } = await startCutRig(t, 'sglang', { continueResponses: false })
  const { turn } = await sendRequest('chat', true, [{ kind: 'abort', after: 3 }])
  t.match(turn, { status: 'failed', error: { code: 'engine_aborted' } })
  t.equal(turn.completion_token_ids.length, 3)
  t.notMatch(turn.error.message, /continue/)
  const complete = await sendRequest('chat', false, [{ kind: 'abort', after: 3 }])
  t.equal(complete.turn.completion_token_ids.length, 3, 'tokens of a complete response are recorded, too')
})

t.test('tokens of older weights are masked on request, and by the code in the docs', async (t) => {
  const { sendRequest, proxy } = await startCutRig(t, 'vllm')
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
  for (const [continueResponses, sessionOption, expected] of [
    [false, true, 'completed'],
    [true, false, 'failed'],
    [true, undefined, 'completed'],
  ] as const) {
    const { sendRequest, proxy } = await startCutRig(t, 'vllm', { continueResponses })
    await proxy.post('/sessions', { session_id: 's1', continue_responses: sessionOption })
    const { turn } = await sendRequest('chat', true, [{ kind: 'abort', after: 3 }])
    t.equal(turn.status, expected)
    t.match(await proxy.get('/sessions/s1'), { continue_responses: sessionOption ?? null })
  }
})

t.test('rows, the forest and files have the engine requests of each turn', async (t) => {
  const { sendRequest, proxy } = await startCutRig(t, 'vllm')
  const { id, turn } = await sendRequest('chat', true, [{ kind: 'abort', after: 7, version: '2' }])
  const parts = turn.annotations.engine_requests
  const body = await proxy.get(`/sessions/${id}/trajectories`)
  t.strictSame(findSchemaErrors(Trajectories, body), [])
  t.strictSame(body.trajectories[0].turns[0].engine_requests, parts)
  const forest = await proxy.get(`/sessions/${id}/forest`)
  t.strictSame(findSchemaErrors(TokenForest, forest), [])
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
  const { sendRequest, proxy } = await startCutRig(t, 'vllm')
  const { id } = await sendRequest('chat', true, [{ kind: 'abort', after: 7, version: '2' }])
  const { trajectories: rows } = await proxy.get(`/sessions/${id}/trajectories?details=weight_versions`)
  const versions = [
    { version: '1', start: 0, end: 7 },
    { version: '2', start: 7, end: LENGTH },
  ]
  t.match(rows, [{ response_ids: COMPLETION, weight_versions: versions, weight_version_min: '1' }])
})
