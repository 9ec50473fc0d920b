/** Reasons for new rows, as `/tree` reports them: only changes by agents and templates. */
import t from 'tap'
import { readTree } from '../../../../../src/proxy/http/trainer/sessions/tree.ts'
import { createNoMarks } from '../../../../../src/proxy/store/port/marks.ts'
import { recordTurn } from '../../../../helpers/sessions-api.ts'
import { openMemoryStore } from '../../../../helpers/store-in-process.ts'

type TurnFields = NonNullable<Parameters<typeof recordTurn>[3]>

const createMessage = (role: string, content: string) => JSON.stringify({ role, content })
const system = createMessage('system', 'You are a coder.')
const task = createMessage('user', 'Fix the bug.')
const response = createMessage('assistant', 'hello')
const more = createMessage('user', 'And the other.')
const ids = (from: number, count: number) => Array.from({ length: count }, (_, index) => from + index)
const START = ids(0, 20)
const FIRST = { requestMessages: [system, task], promptTokenIds: Int32Array.from(START) }
/** Its tokens continue those of the first, whose completion is the token 3. */
const CONTINUED = Int32Array.from([...START, 3, 50])

async function getReasons(...turns: TurnFields[]) {
  const store = await openMemoryStore()
  const at = { createdAtMs: 1, ttlMs: null, metadata: {}, samplingParams: {}, trustAgent: false }
  await store.createSession({ sessionId: 's', ...at })
  for (const [index, fields] of turns.entries()) await recordTurn(store, 's', index, fields)
  return (await readTree(store.readSteps('s'), createNoMarks())).map(({ new_row }) => new_row)
}

const prompt = (fields: object, more: object = {}) => ({
  annotations: JSON.stringify({ prompt: fields, ...more }),
})
const other = (...tokens: number[]) => ({ promptTokenIds: Int32Array.from(tokens) })

t.test('a turn that extends another one starts no row', async (t) => {
  const next = { requestMessages: [system, task, response, more], promptTokenIds: CONTINUED }
  t.match(await getReasons(FIRST, next), [{ why: 'conversation', turn: null }, null])
})

t.test('another task, and the same prompt again, are expected', async (t) => {
  const second = { requestMessages: [system, createMessage('user', 'Another.')], ...other(...ids(0, 10), 77) }
  t.match(await getReasons(FIRST, FIRST, second), [
    { why: 'conversation' },
    { why: 'sampled_again', turn: 0 },
    { why: 'conversation' },
  ])
})

t.test("an agent's change of its history is reported with its position", async (t) => {
  const [, edited] = await getReasons(
    { ...FIRST, requestMessages: [system, task, response, more] },
    {
      requestMessages: [system, task, response, createMessage('user', 'And the others.'), response, more],
      ...other(9, 9),
    },
  )
  t.match(edited, {
    why: 'message_changed',
    turn: 0,
    split: true,
    text: "message 4 (user) edited: it differs from turn 0's at line 1",
    changes: [{ what: 'message 4 (user)', before: 'And the other.', now: 'And the others.' }],
  })
  const [, dropped] = await getReasons(FIRST, { requestMessages: [system, task, more], ...other(9) })
  t.match(dropped, {
    why: 'answer_missing',
    turn: 0,
    text: /^the response of turn 0 is missing before message 3/,
  })
  const [, rewritten] = await getReasons(FIRST, {
    requestMessages: [system, task, createMessage('assistant', 'bye'), more],
    ...other(9),
  })
  t.match(rewritten, {
    why: 'message_changed',
    turn: 0,
    text: 'the response of turn 0 edited: it differs at line 1',
    changes: [{ before: 'hello', now: 'bye' }],
  })
  const [, newSystem] = await getReasons(FIRST, {
    requestMessages: [createMessage('system', 'You are a poet.'), task],
    ...other(9),
  })
  t.match(newSystem, {
    why: 'message_changed',
    text: "system prompt edited: it differs from turn 0's at line 1",
    changes: [{ before: 'You are a coder.', now: 'You are a poet.' }],
  })
  const [, tools] = await getReasons(FIRST, {
    requestMessages: [system, task, response, more],
    tools: '[{"type":"function","function":{"name":"f"}}]',
    ...other(9),
  })
  t.match(tools, { why: 'tools_changed', turn: 0, changes: [{ what: 'tools', before: '', now: 'f' }] })
})

t.test('an edited tool call is reported with the sampled one', async (t) => {
  const call = (id: string, name: string) => ({ id, type: 'function', function: { name, arguments: '{}' } })
  const changed = { kind: 'arguments', sampled: null, echoed: 'false' }
  const changes = [
    { ...changed, call: 'c', path: 'replace_all' },
    { ...changed, call: 'c', path: 'new_string', sampled: '"a\\nb  "', echoed: '"a\\nb"' },
    { ...changed, call: 'd', path: 'content', sampled: '"cut\\n…', echoed: null },
    { kind: 'order', sampled: 'c d', echoed: 'd c' },
  ]
  const echo = { kinds: ['edited', 'arguments'], from: 's-0', changes }
  const withTwoCalls = { ...FIRST, toolCalls: JSON.stringify([call('c', 'Edit'), call('d', 'Write')]) }
  const [, edited] = await getReasons(withTwoCalls, {
    requestMessages: [system, task, response, more],
    ...other(9),
    ...prompt({ reason: 'branched' }, { echo }),
  })
  t.same(edited, {
    why: 'call_edited',
    turn: 0,
    split: true,
    text: "the agent changed Edit's arguments: + replace_all, new_string; Write's arguments: − content; the order of its calls (turn 0)",
    changes: [
      { what: 'Edit.replace_all', before: null, now: 'false' },
      { what: 'Edit.new_string', before: 'a\nb  ', now: 'a\nb' },
      { what: 'Write.content', before: '"cut\n…', now: null },
      { what: 'the order of its calls', before: 'c d', now: 'd c' },
    ],
  })
})

t.test('an edited first message splits a row, and another task does not', async (t) => {
  const long = 'Fix the bug in the parser of dates, which fails in leap years.'
  const createTurn = (content: string, ...rest: string[]) => ({
    requestMessages: [system, createMessage('user', content), ...rest],
    ...other(...ids(50, 10)),
  })
  const [, edited] = await getReasons(createTurn(long), createTurn(`${long} Be quick.`))
  t.match(edited, {
    why: 'message_changed',
    split: true,
    text: "first message edited: it differs from turn 0's at line 1",
    changes: [{ what: 'first message', before: long, now: `${long} Be quick.` }],
  })
  const [, another] = await getReasons(createTurn(long), createTurn('Write a poem about the sea.'))
  t.match(another, { why: 'conversation', split: false })
  const [, alike] = await getReasons(createTurn(long, response, more), createTurn('Mend it.', response, more))
  t.match(alike, { why: 'message_changed' }, 'the conversations continue alike')
})

t.test('a reported text is short, and starts at the line before the difference', async (t) => {
  const lines = Array.from({ length: 1_000 }, (_, index) => `line ${index}`)
  const createTurn = (all: string[]) => ({
    requestMessages: [createMessage('system', all.join('\n')), task],
    ...other(1, 2),
  })
  const [, changed] = await getReasons(createTurn(lines), createTurn(lines.with(500, 'changed')))
  t.match(changed, { text: "system prompt edited: it differs from turn 0's at line 501" })
  const [{ before, now } = { before: null, now: null }] = changed!.changes
  t.match(before, /^line 499\nline 500\nline 501\n/)
  t.match(now, /^line 499\nchanged\nline 501\n/)
  t.ok(before!.length <= 801 && now!.length <= 801)
})

t.test('subagents have their own conversations', async (t) => {
  const createHelperTurn = (prompt: string, agentRole?: string) => ({
    requestMessages: [createMessage('system', prompt), createMessage('user', 'Look at the tests.')],
    ...other(...ids(80, 10)),
    ...(agentRole && { annotations: JSON.stringify({ line: { told: agentRole, rule: 'header' } }) }),
  })
  const named = createHelperTurn('You are a coder!', 'subagent:a')
  t.match(await getReasons(FIRST, named, createHelperTurn('Search the files for what the task names.')), [
    { why: 'conversation' },
    { why: 'conversation', split: false },
    { why: 'conversation', split: false },
  ])
})

t.test('a prompt that leaves the tokens of its turn is reported with the token and the reason', async (t) => {
  const messages = { requestMessages: [system, task, response, more] }
  const broken = prompt({ reason: 'broken', from: 's-0' })
  const [, left] = await getReasons(FIRST, { ...messages, ...other(...ids(0, 15), 99), ...broken })
  t.match(left, { why: 'tokens_differ', turn: 0, text: /they differ from token 15 on \(broken\)$/ })
  const inexact = { ...FIRST, exact: false, inexactReason: 'no logprobs' }
  const [own, after] = await getReasons(inexact, { ...messages, promptTokenIds: CONTINUED, ...broken })
  t.match(own, { why: 'conversation' })
  t.match(after, { why: 'not_trainable', turn: 0, text: /no logprobs$/ })
  const [, otherModel] = await getReasons(FIRST, {
    ...messages,
    promptTokenIds: CONTINUED,
    params: '{"model":"another"}',
    ...prompt({ reason: 'extended', from: 's-0' }),
  })
  t.match(otherModel, { why: 'other_model', turn: 0 })
})

t.test('turns that are in no row have no reason', async (t) => {
  const failed = { ...FIRST, status: 'failed' as const }
  const side = { ...FIRST, annotations: '{"line":{"told":"side","rule":"header"}}' }
  t.same(await getReasons(failed, side), [null, null])
})

t.test('an edit after a recorded response splits a row, though its prompt begins with a turn', async (t) => {
  const call = createMessage('assistant', 'hello')
  const result = createMessage('tool', 'A long listing of files.')
  const second = { requestMessages: [system, task, call, result], promptTokenIds: CONTINUED }
  const later = (text: string, ...tokens: number[]) => ({
    requestMessages: [system, task, call, createMessage('tool', text), response, more],
    promptTokenIds: Int32Array.from([...START, 3, ...tokens]),
  })
  const [, , cleared] = await getReasons(FIRST, second, later('[cleared]', 60, 61))
  t.match(cleared, {
    why: 'message_changed',
    turn: 1,
    split: true,
    text: "message 4 (tool) edited: it differs from turn 1's at line 1",
    changes: [{ before: 'A long listing of files.', now: '[cleared]' }],
  })
  const [, , again] = await getReasons(FIRST, second, second)
  t.match(
    again,
    { why: 'sampled_again', turn: 1, split: false },
    'another completion in parallel with a later turn',
  )
  const side = { ...second, annotations: '{"line":{"told":"side","rule":"header"}}' }
  t.same((await getReasons(FIRST, side, second))[2], null, 'a side request is in no row')
  const compaction = { ...second, annotations: '{"line":{"told":"compaction","rule":"header"}}' }
  t.same((await getReasons(FIRST, compaction, later('A listing.', 60)))[2], null, 'nor does a compaction')
})

t.test('a sliding window drops messages and edits none', async (t) => {
  const [first, last] = [createMessage('assistant', 'hello'), createMessage('assistant', 'and then')]
  const result = createMessage('tool', 'One.')
  const second = {
    requestMessages: [system, task, first, result],
    promptTokenIds: CONTINUED,
    completionText: 'and then',
  }
  const window = (...messages: string[]) => ({ requestMessages: messages, ...other(9, 9) })
  const [, , responses] = await getReasons(FIRST, second, window(system, task, last, more))
  t.match(responses, {
    why: 'answer_missing',
    turn: 1,
    split: true,
    text: "the messages before turn 1's response were dropped, from message 3 on",
  })
  const [, , opening] = await getReasons(FIRST, second, window(system, result, last, more))
  t.match(opening, {
    why: 'answer_missing',
    turn: 1,
    split: true,
    text: 'messages of turn 1 were dropped, from message 2 on',
  })
})

t.test(
  'an edit of the first message before its own response splits a row without a system message',
  async (t) => {
    const opening = { requestMessages: [task], promptTokenIds: Int32Array.from(START) }
    const [, edited] = await getReasons(opening, {
      requestMessages: [createMessage('user', 'Now: write a poem.'), response, more],
      ...other(9, 9),
    })
    t.match(edited, { why: 'message_changed', turn: 0, split: true })
  },
)
