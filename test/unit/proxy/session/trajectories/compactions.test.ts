/** Summaries that their agent rejected. */
import t from 'tap'
import type { AgentRole } from '../../../../../src/proxy/session/roles/agent-role.ts'
import { CompactionRejections } from '../../../../../src/proxy/session/trajectories/compactions.ts'
import { TrajectoryBuilder } from '../../../../../src/proxy/session/trajectories/trajectories.ts'
import { addMessageTexts } from '../../../../helpers/messages.ts'
import { createTurnStep } from '../../../../helpers/turn-step.ts'

const user = (content: string) => JSON.stringify({ role: 'user', content })
const WORK = [user('Mend the tests'), JSON.stringify({ role: 'assistant', content: 'I look at them' })]
const SUM_UP = user('CRITICAL: sum it up')

const GOOD = 'The tests of the parser failed because of a missing bracket; I have mended two of three.'
const BAD = 'Somebody asked for something, and I believe that I have done nearly all of it by now.'

interface RecordedRequest {
  agentRole: AgentRole
  messages: readonly string[]
  completion?: string | null
  status?: 'completed' | 'failed'
  annotations?: string
}

const compaction = (
  completion: string | null,
  overrides: Partial<RecordedRequest> = {},
): RecordedRequest => ({
  agentRole: 'compaction',
  messages: [...WORK, SUM_UP],
  completion,
  ...overrides,
})

const createContinuation = (...texts: string[]): RecordedRequest => ({
  agentRole: 'main',
  messages: texts.map(user),
  completion: 'On I go',
})

function getRejected(...requests: RecordedRequest[]): string[] {
  const compactions = new CompactionRejections()
  for (const [
    index,
    { agentRole, messages, completion = null, status = 'completed', annotations = '{}' },
  ] of requests.entries()) {
    const lastMessage = addMessageTexts(messages)
    compactions.add(
      { turnId: `t${index}`, status, lastMessage, completionText: completion, annotations },
      agentRole,
    )
  }
  return [...compactions.rejected]
}

const work: RecordedRequest = { agentRole: 'main', messages: WORK.slice(0, 1), completion: 'I look at them' }

t.test('among several summaries, those that the agent does not continue are rejected', async (t) => {
  const next = createContinuation(`The session goes on from here:\n${GOOD}`)
  t.same(getRejected(work, compaction(BAD), compaction(GOOD), next), ['t1'])
  t.same(getRejected(work, compaction(GOOD), compaction(BAD), next), ['t2'])
  t.same(getRejected(work, compaction(BAD), compaction(BAD), compaction(GOOD), next), ['t1', 't2'])
  const longer = compaction(GOOD, { messages: [...WORK, user('More'), SUM_UP] })
  t.same(getRejected(work, compaction(BAD), longer, next), ['t1'], 'after the requests between them')
  const title = compaction('Tests of a parser and its brackets', { agentRole: 'side' })
  t.same(
    getRejected(work, compaction(BAD), title, compaction(GOOD), next),
    ['t1'],
    'and none is of a side request',
  )
})

t.test('a summary is detected by its text, with any text that its agent adds', async (t) => {
  const tagged = `<analysis>${BAD}</analysis>\n<summary>\n${GOOD.replaceAll(' ', '\n  ')}\n</summary>`
  t.same(
    getRejected(work, compaction(BAD), compaction(tagged), createContinuation('Go on', `Summary: ${GOOD}`)),
    ['t1'],
  )
  const parts = [{ type: 'text', text: `Before: ${GOOD}` }]
  const inParts = { ...createContinuation(), messages: [JSON.stringify({ role: 'user', content: parts })] }
  t.same(getRejected(work, compaction(BAD), compaction(GOOD), inParts), ['t1'])
})

t.test('a summary of a million tags is read in linear time', async (t) => {
  const tags = '<summary>'.repeat(1_000_000)
  const unclosed = compaction(`</summary>${tags}`)
  t.same(getRejected(work, unclosed, compaction(GOOD), createContinuation(GOOD)), ['t1'])
})

t.test('a text that existed before the summary does not prove that it was accepted', async (t) => {
  const request = { messages: [user(`As we said: ${BAD}`), SUM_UP] }
  t.same(getRejected(work, compaction(BAD, request), compaction(GOOD, request), createContinuation(GOOD)), [
    't1',
  ])
})

t.test('a summary is not rejected without evidence', async (t) => {
  t.same(getRejected(work, compaction(GOOD), createContinuation('Anew')), [], 'one alone')
  t.same(getRejected(work, compaction(BAD), compaction(GOOD)), [], 'no request followed yet')
  t.same(
    getRejected(work, compaction(BAD), compaction(GOOD), createContinuation('Anew')),
    [],
    'no text of either',
  )
  t.same(
    getRejected(work, compaction(BAD), compaction(GOOD), createContinuation(BAD, GOOD)),
    [],
    'both, in parts',
  )
  const builtOn = compaction(GOOD, { messages: [user(`Until now: ${BAD}`), SUM_UP] })
  t.same(
    getRejected(work, compaction(BAD), builtOn, createContinuation(GOOD)),
    [],
    'one that the other summarizes',
  )
  t.same(
    getRejected(work, compaction('Done.'), compaction(GOOD), createContinuation(GOOD)),
    [],
    'too short to be detected',
  )
  t.same(
    getRejected(work, compaction(null), compaction(GOOD), createContinuation(GOOD)),
    [],
    'tool calls alone',
  )
  t.same(
    getRejected(work, compaction(BAD), work, compaction(GOOD), createContinuation(GOOD)),
    [],
    'other requests between',
  )
  const choice = { annotations: '{"choice":{"index":0,"of":2}}' }
  t.same(
    getRejected(work, compaction(BAD, choice), compaction(GOOD, choice), createContinuation(GOOD)),
    [],
    'other completions of one prompt',
  )
})

t.test('failed requests and those of other roles do not separate two attempts', async (t) => {
  const failed: RecordedRequest = { ...createContinuation('Anew'), status: 'failed', completion: null }
  const other: RecordedRequest = { agentRole: 'subagent:1', messages: [user('Help')], completion: GOOD }
  const requests = [
    work,
    compaction(BAD),
    failed,
    other,
    compaction('x', { status: 'failed' }),
    compaction(GOOD),
  ]
  t.same(getRejected(...requests, failed, createContinuation(GOOD)), ['t1'])
})

t.test('a rejected summary is in no row unless it is requested', async (t) => {
  const withRole = (reported: string) => ({
    annotations: JSON.stringify({ line: { told: reported, rule: 'header' } }),
  })
  const turns = [
    { prompt: [1], ids: [2], ...work, ...withRole('main') },
    { prompt: [1, 2, 3], ids: [4, 5], ...compaction(BAD), ...withRole('compaction') },
    { prompt: [1, 2, 3], ids: [6], ...compaction(GOOD), ...withRole('compaction') },
    { prompt: [7], ids: [8], ...createContinuation(GOOD), ...withRole('main') },
  ].map(({ prompt, ids, messages, completion, annotations }, index) => ({
    ...createTurnStep(index, prompt, ids),
    turnId: `t${index}`,
    lastMessage: addMessageTexts(messages),
    completionText: completion ?? null,
    params: '{}',
    annotations,
  }))
  const rowsWith = (rejected?: boolean) => {
    const builder = new TrajectoryBuilder(rejected === undefined ? {} : { rejected })
    for (const turn of turns) builder.add(turn)
    const rows = [...builder.assembleRows({}, null)].map((row) => row.turns.map(({ turn_id }) => turn_id))
    const excluded = Object.fromEntries(builder.listExclusions())
    return { rows, excluded, rejected: builder.countExcluded().rejected }
  }
  t.same(rowsWith(false), { rows: [['t0', 't2'], ['t3']], excluded: { t1: 'rejected' }, rejected: 1 })
  t.same(rowsWith(), rowsWith(false), 'by default')
  t.same(rowsWith(true), { rows: [['t0', 't1'], ['t0', 't2'], ['t3']], excluded: {}, rejected: 0 })
})

t.test('each message is searched once for the excerpt of each of the newest attempts', async (t) => {
  const { includes } = String.prototype
  let searches = 0
  String.prototype.includes = function (text, position) {
    if (/^\d+ summary/.test(text)) searches += 1
    return includes.call(this, text, position)
  }
  t.teardown(() => {
    String.prototype.includes = includes
  })
  const [attempts, added] = [200, 50]
  const summaries = Array.from(
    { length: attempts },
    (_, index) => `${index} summary of the work on the parser`,
  )
  const later = Array.from({ length: added }, (_, index) => user(`later ${index}`))
  const messages = [...WORK, ...later, SUM_UP]
  const lastMessage = addMessageTexts(messages)
  const next = addMessageTexts([user(`Continue: ${summaries.at(-1)}`)])
  const compactions = new CompactionRejections()
  const turn = { status: 'completed', annotations: '{}' } as const
  const first = addMessageTexts([...WORK, SUM_UP])
  for (const [index, completionText] of summaries.entries())
    compactions.add(
      { ...turn, turnId: `t${index}`, lastMessage: index === 0 ? first : lastMessage, completionText },
      'compaction',
    )
  const perTurn = messages.length
  t.ok(searches > 0 && searches <= attempts * perTurn, `${searches} searches`)
  searches = 0
  compactions.add({ ...turn, turnId: 'next', lastMessage: next, completionText: '' }, 'main')
  t.equal(searches, 64)
  t.equal(compactions.rejected.size, attempts - 1)
  t.notOk(compactions.rejected.has(`t${attempts - 1}`))
})
