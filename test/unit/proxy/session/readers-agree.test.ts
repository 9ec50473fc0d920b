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

const randomRequest = fc.record({
  /** The earlier turn that the request continues, counted back from the latest; past the first: none. */
  back: fc.nat(5),
  /** The number of tokens that the prompt shares with that turn; null: all. */
  sharedTokens: fc.option(fc.nat(20), { nil: null }),
  bridge: fc.integer({ min: 1, max: 3 }),
  /** Few different values, so that some completions are equal. */
  completion: fc.array(fc.integer({ min: 500, max: 502 }), { maxLength: 3 }),
  status: fc.constantFrom('completed', 'completed', 'completed', 'completed', 'aborted', 'failed'),
  exact: fc.constantFrom(true, true, true, true, false),
  agentRole: fc.constantFrom(undefined, undefined, undefined, undefined, 'side', 'subagent', 'compaction'),
  /** The same request as the turn before. */
  isRetry: fc.constantFrom(false, false, false, false, true),
  system: fc.constantFrom('s', 's', 's', 'other'),
})
type RandomRequest = typeof randomRequest extends fc.Arbitrary<infer Value> ? Value : never

interface RecordedTurn {
  readonly messages: readonly string[]
  readonly prompt: readonly number[]
  readonly completion: readonly number[]
  readonly retryCount: number
}

const text = (role: string, content: string) => JSON.stringify({ role, content })

function createRecordedTurn(
  request: RandomRequest,
  index: number,
  earlier: readonly RecordedTurn[],
): RecordedTurn {
  const previous = earlier.at(-1)
  if (request.isRetry && previous !== undefined)
    return { ...previous, completion: request.completion, retryCount: previous.retryCount + 1 }
  const before = earlier.at(-1 - request.back)
  const bridge = Array.from({ length: request.bridge }, (_, position) => 1_000 + index * 10 + position)
  if (before === undefined) {
    const start = Array.from({ length: 12 }, (_, index) => index)
    const messages = [text('system', request.system), text('user', `task ${index}`)]
    return { messages, prompt: [...start, ...bridge], completion: request.completion, retryCount: 0 }
  }
  const sequence = [...before.prompt, ...before.completion]
  const shared = request.sharedTokens === null ? sequence : sequence.slice(0, request.sharedTokens)
  return {
    messages: [...before.messages, text('assistant', 'hello'), text('user', `more ${index}`)],
    prompt: [...shared, ...bridge],
    completion: request.completion,
    retryCount: 0,
  }
}

t.test('the routes of a session agree on parents, agent roles and rows', async (t) => {
  const store = await openMemoryStore()
  const { call } = await startSessionsApi(t, store)
  let count = 0

  async function record(requests: readonly RandomRequest[]): Promise<string> {
    const sessionId = `s${count++}`
    await call('POST', `/sessions/${sessionId}`, {})
    const earlier: RecordedTurn[] = []
    const writes: Promise<void>[] = []
    for (const [index, request] of requests.entries()) {
      const recorded = createRecordedTurn(request, index, earlier)
      earlier.push(recorded)
      const { agentRole, exact, status } = request
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
        annotations: JSON.stringify(
          agentRole === undefined ? {} : { line: { told: agentRole, rule: 'header' } },
        ),
      })
      writes.push(written)
    }
    await Promise.all(writes)
    return sessionId
  }

  async function check(requests: readonly RandomRequest[]): Promise<void> {
    const sessionId = await record(requests)
    const read = async (path: string) => (await call('GET', path)).body
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
    const rowParents = getRowParents(trajectories)
    for (const [turn, parent] of rowParents) {
      const shown = tree[turn]
      deepStrictEqual([shown.continues, shown.continues ? shown.parent : null], [parent !== null, parent])
    }
    for (const { index, continues, parent, shared_tokens: shared, prompt_tokens: prompt } of tree as Turn[]) {
      ok(shared <= prompt)
      if (!continues) continue
      deepStrictEqual(shared, tree[parent!].prompt_tokens + tree[parent!].sampled_tokens)
      ok(rowParents.has(index) || getRowParents(withSide).has(index) || tree[index].status === 'completed')
    }
    deepStrictEqual(
      rows.map(({ turns }: Row) => turns),
      trajectories.map(({ turns }: Row) => turns),
    )
    const parentsWithSide = getRowParents(withSide)
    for (const { trace_id, parent_trace_id } of graph.deltas as Trace[]) {
      const [turn, parent] = [getIndex(trace_id), parent_trace_id === null ? null : getIndex(parent_trace_id)]
      if (parent !== null && parentsWithSide.has(turn)) deepStrictEqual(parent, parentsWithSide.get(turn))
    }
    const input = new Set((graph.deltas as Trace[]).map(({ trace_id }) => getIndex(trace_id)))
    for (const turn of parentsWithSide.keys()) ok(input.has(turn), 'a trained part of a row is a trace')
  }

  await fc.assert(fc.asyncProperty(fc.array(randomRequest, { minLength: 1, maxLength: 9 }), check), SIZE)
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

/** Returns the previous turn of each turn in its row; null for the first one. */
function getRowParents(rows: readonly Row[]): Map<number, number | null> {
  const links = new Map<number, number | null>()
  for (const { turns } of rows)
    for (const [position, { index }] of turns.entries()) links.set(index, turns[position - 1]?.index ?? null)
  return links
}

function getIndex(traceId: string): number {
  return Number(traceId.split('-').at(-1))
}
