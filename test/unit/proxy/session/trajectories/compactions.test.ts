/** Summaries that their agent rejected. */
import t from 'tap'
import type { AgentRole } from '../../../../../src/proxy/session/roles/agent-role.ts'
import { CompactionRejections } from '../../../../../src/proxy/session/trajectories/compactions.ts'
import { TrajectoryBuilder } from '../../../../../src/proxy/session/trajectories/trajectories.ts'
import { lastOfTexts } from '../../../../helpers/messages.ts'
import { turnStep } from '../../../../helpers/turn-step.ts'

const user = (content: string) => JSON.stringify({ role: 'user', content })
const WORK = [user('Mend the tests'), JSON.stringify({ role: 'assistant', content: 'I look at them' })]
const SUM_UP = user('CRITICAL: sum it up')

const GOOD = 'The tests of the parser failed because of a missing bracket; I have mended two of three.'
const BAD = 'Somebody asked for something, and I believe that I have done nearly all of it by now.'

interface Call {
  line: AgentRole
  messages: readonly string[]
  says?: string | null
  status?: 'completed' | 'failed'
  annotations?: string
}

const compaction = (says: string | null, more: Partial<Call> = {}): Call => ({
  line: 'compaction',
  messages: [...WORK, SUM_UP],
  says,
  ...more,
})

const goesOn = (...texts: string[]): Call => ({ line: 'main', messages: texts.map(user), says: 'On I go' })

function getRejected(...calls: Call[]): string[] {
  const compactions = new CompactionRejections()
  for (const [
    index,
    { line, messages, says = null, status = 'completed', annotations = '{}' },
  ] of calls.entries()) {
    const lastMessage = lastOfTexts(messages)
    compactions.add({ turnId: `t${index}`, status, lastMessage, completionText: says, annotations }, line)
  }
  return [...compactions.rejected]
}

const work: Call = { line: 'main', messages: WORK.slice(0, 1), says: 'I look at them' }

t.test('among several summaries, those that the agent does not continue are rejected', async (t) => {
  const next = goesOn(`The session goes on from here:\n${GOOD}`)
  t.same(getRejected(work, compaction(BAD), compaction(GOOD), next), ['t1'])
  t.same(getRejected(work, compaction(GOOD), compaction(BAD), next), ['t2'])
  t.same(getRejected(work, compaction(BAD), compaction(BAD), compaction(GOOD), next), ['t1', 't2'])
  const longer = compaction(GOOD, { messages: [...WORK, user('More'), SUM_UP] })
  t.same(getRejected(work, compaction(BAD), longer, next), ['t1'], 'after the requests between them')
  const title = compaction('Tests of a parser and its brackets', { line: 'side' })
  t.same(
    getRejected(work, compaction(BAD), title, compaction(GOOD), next),
    ['t1'],
    'and none is of a side request',
  )
})

t.test('a summary is detected by its text, with any text that its agent adds', async (t) => {
  const tagged = `<analysis>${BAD}</analysis>\n<summary>\n${GOOD.replaceAll(' ', '\n  ')}\n</summary>`
  t.same(getRejected(work, compaction(BAD), compaction(tagged), goesOn('Go on', `Summary: ${GOOD}`)), ['t1'])
  const parts = [{ type: 'text', text: `Before: ${GOOD}` }]
  const inParts = { ...goesOn(), messages: [JSON.stringify({ role: 'user', content: parts })] }
  t.same(getRejected(work, compaction(BAD), compaction(GOOD), inParts), ['t1'])
})

t.test('a text that existed before the summary does not prove that it was accepted', async (t) => {
  const request = { messages: [user(`As we said: ${BAD}`), SUM_UP] }
  t.same(getRejected(work, compaction(BAD, request), compaction(GOOD, request), goesOn(GOOD)), ['t1'])
})

t.test('a summary is not rejected without evidence', async (t) => {
  t.same(getRejected(work, compaction(GOOD), goesOn('Anew')), [], 'one alone')
  t.same(getRejected(work, compaction(BAD), compaction(GOOD)), [], 'no request followed yet')
  t.same(getRejected(work, compaction(BAD), compaction(GOOD), goesOn('Anew')), [], 'no text of either')
  t.same(getRejected(work, compaction(BAD), compaction(GOOD), goesOn(BAD, GOOD)), [], 'both, in parts')
  const builtOn = compaction(GOOD, { messages: [user(`Until now: ${BAD}`), SUM_UP] })
  t.same(getRejected(work, compaction(BAD), builtOn, goesOn(GOOD)), [], 'one that the other summarizes')
  t.same(
    getRejected(work, compaction('Done.'), compaction(GOOD), goesOn(GOOD)),
    [],
    'too short to be detected',
  )
  t.same(getRejected(work, compaction(null), compaction(GOOD), goesOn(GOOD)), [], 'tool calls alone')
  t.same(
    getRejected(work, compaction(BAD), work, compaction(GOOD), goesOn(GOOD)),
    [],
    'other requests between',
  )
  const choice = { annotations: '{"choice":{"index":0,"of":2}}' }
  t.same(
    getRejected(work, compaction(BAD, choice), compaction(GOOD, choice), goesOn(GOOD)),
    [],
    'other completions of one prompt',
  )
})

t.test('failed requests and those of other roles do not separate two attempts', async (t) => {
  const failed: Call = { ...goesOn('Anew'), status: 'failed', says: null }
  const other: Call = { line: 'subagent:1', messages: [user('Help')], says: GOOD }
  const calls = [
    work,
    compaction(BAD),
    failed,
    other,
    compaction('x', { status: 'failed' }),
    compaction(GOOD),
  ]
  t.same(getRejected(...calls, failed, goesOn(GOOD)), ['t1'])
})

t.test('a rejected summary is in no row unless it is requested', async (t) => {
  const line = (reported: string) => ({
    annotations: JSON.stringify({ line: { told: reported, rule: 'header' } }),
  })
  const turns = [
    { prompt: [1], ids: [2], ...work, ...line('main') },
    { prompt: [1, 2, 3], ids: [4, 5], ...compaction(BAD), ...line('compaction') },
    { prompt: [1, 2, 3], ids: [6], ...compaction(GOOD), ...line('compaction') },
    { prompt: [7], ids: [8], ...goesOn(GOOD), ...line('main') },
  ].map(({ prompt, ids, messages, says, annotations }, index) => ({
    ...turnStep(index, prompt, ids),
    turnId: `t${index}`,
    lastMessage: lastOfTexts(messages),
    completionText: says ?? null,
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
