/**
 * All readers of a session agree: each reports the same parent, agent role and row of a turn. Tested with
 * random sessions: forks, retries, side requests, turns that failed or are inexact.
 */
import { deepStrictEqual, ok } from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { recordTurn, startSessionsApi } from '../../../helpers/sessions-api.ts'
import { openMemoryStore } from '../../../helpers/store-in-process.ts'
import { limitRuns } from '../../../helpers/tier.ts'

const SIZE = { numRuns: limitRuns(150) }

/** A random request. */
const call = fc.record({
  /** The earlier turn that it continues, counted back from the latest; past the first: none. */
  back: fc.nat(5),
  /** The number of that turn's tokens that its prompt keeps; null: all. */
  broken: fc.option(fc.nat(20), { nil: null }),
  glue: fc.integer({ min: 1, max: 3 }),
  /** Few different values, so that some completions are equal. */
  completion: fc.array(fc.integer({ min: 500, max: 502 }), { maxLength: 3 }),
  status: fc.constantFrom('completed', 'completed', 'completed', 'completed', 'aborted', 'failed'),
  exact: fc.constantFrom(true, true, true, true, false),
  line: fc.constantFrom(undefined, undefined, undefined, undefined, 'side', 'subagent', 'compaction'),
  /** The same request as the turn before. */
  isRetry: fc.constantFrom(false, false, false, false, true),
  system: fc.constantFrom('s', 's', 's', 'other'),
})
type Call = typeof call extends fc.Arbitrary<infer Value> ? Value : never

interface Recorded {
  readonly messages: readonly string[]
  readonly prompt: readonly number[]
  readonly completion: readonly number[]
  readonly retryCount: number
}

const text = (role: string, content: string) => JSON.stringify({ role, content })

function recordedAs(request: Call, index: number, earlier: readonly Recorded[]): Recorded {
  const previous = earlier.at(-1)
  if (request.isRetry && previous !== undefined)
    return { ...previous, completion: request.completion, retryCount: previous.retryCount + 1 }
  const before = earlier.at(-1 - request.back)
  const glue = Array.from({ length: request.glue }, (_, position) => 1_000 + index * 10 + position)
  if (before === undefined) {
    const start = Array.from({ length: 12 }, (_, index) => index)
    const messages = [text('system', request.system), text('user', `task ${index}`)]
    return { messages, prompt: [...start, ...glue], completion: request.completion, retryCount: 0 }
  }
  const sequence = [...before.prompt, ...before.completion]
  const kept = request.broken === null ? sequence : sequence.slice(0, request.broken)
  return {
    messages: [...before.messages, text('assistant', 'hello'), text('user', `more ${index}`)],
    prompt: [...kept, ...glue],
    completion: request.completion,
    retryCount: 0,
  }
}

t.test('the routes of a session agree on parents, agent roles and rows', async (t) => {
  const store = await openMemoryStore()
  const { call: callApi } = await startSessionsApi(t, store)
  let count = 0

  async function record(calls: readonly Call[]): Promise<string> {
    const sessionId = `s${count++}`
    await callApi('POST', `/sessions/${sessionId}`, {})
    const earlier: Recorded[] = []
    const writes: Promise<void>[] = []
    for (const [index, request] of calls.entries()) {
      const recorded = recordedAs(request, index, earlier)
      earlier.push(recorded)
      const { line, exact, status } = request
      const written = recordTurn(store, sessionId, index, {
        turnId: `${sessionId}-${index}`,
        requestMessages: recorded.messages,
        retryCount: recorded.retryCount,
        status: status as 'completed',
        exact,
        inexactReason: exact ? null : 'no_logprobs',
        promptTokenIds: Int32Array.from(recorded.prompt),
        completionTokenIds: Int32Array.from(recorded.completion),
        completionLogprobs: Float64Array.from(recorded.completion, () => -1),
        annotations: JSON.stringify(line === undefined ? {} : { line: { told: line, rule: 'header' } }),
      })
      writes.push(written)
    }
    await Promise.all(writes)
    return sessionId
  }

  async function check(calls: readonly Call[]): Promise<void> {
    const sessionId = await record(calls)
    const read = async (path: string) => (await callApi('GET', path)).body
    const paths = [
      '/tree',
      '',
      '/trajectories',
      '/trajectories?side_calls=true',
      '/rows',
      '/traces?format=compact',
    ]
    const responses = await Promise.all(paths.map((path) => read(`/sessions/${sessionId}${path}`)))
    const [{ turns: tree }, { turns }, { trajectories }, { trajectories: withSide }, { rows }, graph] =
      responses

    deepStrictEqual(
      tree.map(({ index, line }: Turn) => [index, line]),
      turns.map(({ index, line }: Turn) => [index, line]),
    )
    const rowParents = linksIn(trajectories)
    for (const [turn, parent] of rowParents) {
      const shown = tree[turn]
      deepStrictEqual([shown.continues, shown.continues ? shown.parent : null], [parent !== null, parent])
    }
    for (const { index, continues, parent, shared_tokens: shared, prompt_tokens: prompt } of tree as Turn[]) {
      ok(shared <= prompt)
      if (!continues) continue
      deepStrictEqual(shared, tree[parent!].prompt_tokens + tree[parent!].sampled_tokens)
      ok(rowParents.has(index) || linksIn(withSide).has(index) || tree[index].status === 'completed')
    }
    deepStrictEqual(
      rows.map(({ turns }: Row) => turns),
      trajectories.map(({ turns }: Row) => turns),
    )
    const parentsWithSide = linksIn(withSide)
    for (const { trace_id, parent_trace_id } of graph.deltas as Trace[]) {
      const [turn, parent] = [getIndex(trace_id), parent_trace_id === null ? null : getIndex(parent_trace_id)]
      if (parent !== null && parentsWithSide.has(turn)) deepStrictEqual(parent, parentsWithSide.get(turn))
    }
    const input = new Set((graph.deltas as Trace[]).map(({ trace_id }) => getIndex(trace_id)))
    for (const turn of parentsWithSide.keys()) ok(input.has(turn), 'a trained part of a row is a trace')
  }

  await fc.assert(fc.asyncProperty(fc.array(call, { minLength: 1, maxLength: 9 }), check), SIZE)
})

interface Turn {
  readonly index: number
  readonly line: string
  readonly continues: boolean
  readonly parent: number | null
  readonly shared_tokens: number
  readonly prompt_tokens: number
}

interface Row {
  readonly turns: readonly { readonly index: number }[]
}

interface Trace {
  readonly trace_id: string
  readonly parent_trace_id: string | null
}

/** The previous turn of each turn in its row; null for the first one. */
function linksIn(rows: readonly Row[]): Map<number, number | null> {
  const links = new Map<number, number | null>()
  for (const { turns } of rows)
    for (const [position, { index }] of turns.entries()) links.set(index, turns[position - 1]?.index ?? null)
  return links
}

function getIndex(traceId: string): number {
  return Number(traceId.split('-').at(-1))
}
