/** Why rows begin, as `/tree` tells it: of what agents and templates do, and nothing else. */
import t from 'tap'
import { treeOf } from '../../../src/proxy/http/trainer/read/tree.ts'
import { MemoryTurnStore } from '../../helpers/memory-store.ts'
import { recordTurn } from '../../helpers/sessions-api.ts'

type Facts = NonNullable<Parameters<typeof recordTurn>[3]>

const say = (role: string, content: string) => JSON.stringify({ role, content })
const system = say('system', 'You are a coder.')
const task = say('user', 'Fix the bug.')
const answer = say('assistant', 'hello')
const more = say('user', 'And the other.')
const ids = (from: number, count: number) => Array.from({ length: count }, (_, place) => from + place)
const START = ids(0, 20)
const FIRST = { requestMessages: [system, task], promptTokenIds: Int32Array.from(START) }
/** Its tokens go on from those of the first, whose completion is the token 3. */
const GOES_ON = Int32Array.from([...START, 3, 50])

async function reasonsOf(...turns: Facts[]) {
  const store = new MemoryTurnStore()
  const at = { createdAtMs: 1, ttlMs: null, metadata: {}, samplingParams: {}, trustAgent: false }
  await store.createSession({ sessionId: 's', ...at })
  for (const [index, facts] of turns.entries()) await recordTurn(store, 's', index, facts)
  return (await treeOf(store.readSteps('s'))).map(({ new_row }) => new_row)
}

const prompt = (told: object, more: object = {}) => ({
  annotations: JSON.stringify({ prompt: told, ...more }),
})
const other = (...tokens: number[]) => ({ promptTokenIds: Int32Array.from(tokens) })

t.test('a turn that follows another one begins no row', async (t) => {
  const next = { requestMessages: [system, task, answer, more], promptTokenIds: GOES_ON }
  t.match(await reasonsOf(FIRST, next), [{ why: 'conversation', turn: null }, null])
})

t.test('another task, and the same prompt again, are as they should be', async (t) => {
  const second = { requestMessages: [system, say('user', 'Another.')], ...other(...ids(0, 10), 77) }
  t.match(await reasonsOf(FIRST, FIRST, second), [
    { why: 'conversation' },
    { why: 'sampled_again', turn: 0 },
    { why: 'conversation' },
  ])
})

t.test('what an agent changed in its history is told with its place', async (t) => {
  const [, edited] = await reasonsOf(
    { ...FIRST, requestMessages: [system, task, answer, more] },
    { requestMessages: [system, task, answer, say('user', 'And the others.'), answer, more], ...other(9, 9) },
  )
  t.match(edited, { why: 'message_changed', turn: 0, text: /^message 4 \(user\) is not what turn 0 had: / })
  t.match(edited!.text, /from character 13 on " the others\.", before " the other\."/)
  const [, dropped] = await reasonsOf(FIRST, { requestMessages: [system, task, more], ...other(9) })
  t.match(dropped, {
    why: 'answer_missing',
    turn: 0,
    text: /^the answer of turn 0 is missing before message 3/,
  })
  const [, rewritten] = await reasonsOf(FIRST, {
    requestMessages: [system, task, say('assistant', 'bye'), more],
    ...other(9),
  })
  t.match(rewritten, {
    why: 'message_changed',
    turn: 0,
    text: 'message 3 is not the answer of turn 0: "bye"',
  })
  const [, newSystem] = await reasonsOf(FIRST, {
    requestMessages: [say('system', 'You are a poet.'), task],
    ...other(9),
  })
  t.match(newSystem, { why: 'message_changed', text: /^message 1 \(system\) is not what turn 0 had/ })
  const [, tools] = await reasonsOf(FIRST, {
    requestMessages: [system, task, answer, more],
    tools: '[{"type":"function","function":{"name":"f"}}]',
    ...other(9),
  })
  t.match(tools, { why: 'tools_changed', turn: 0 })
})

t.test('an edited call is told with what was sampled', async (t) => {
  const changes = [{ kind: 'arguments', call: 'c', path: 'replace_all', sampled: null, echoed: 'false' }]
  const echo = { kinds: ['edited', 'arguments'], from: 's-0', changes }
  const [, edited] = await reasonsOf(FIRST, {
    requestMessages: [system, task, answer, more],
    ...other(9),
    ...prompt({ reason: 'branched' }, { echo }),
  })
  t.same(edited, {
    why: 'call_edited',
    turn: 0,
    text: 'the agent changed a call of turn 0: arguments replace_all is false, sampled was nothing',
  })
})

t.test('a prompt that leaves the tokens of its turn is told with the token and the reason', async (t) => {
  const messages = { requestMessages: [system, task, answer, more] }
  const broken = prompt({ reason: 'broken', from: 's-0' })
  const [, left] = await reasonsOf(FIRST, { ...messages, ...other(...ids(0, 15), 99), ...broken })
  t.match(left, { why: 'tokens_differ', turn: 0, text: /it leaves them at token 15 \(broken\)$/ })
  const inexact = { ...FIRST, exact: false, inexactReason: 'no logprobs' }
  const [own, after] = await reasonsOf(inexact, { ...messages, promptTokenIds: GOES_ON, ...broken })
  t.match(own, { why: 'conversation' })
  t.match(after, { why: 'not_trainable', turn: 0, text: /no logprobs$/ })
  const [, asked] = await reasonsOf(FIRST, {
    ...messages,
    promptTokenIds: GOES_ON,
    params: '{"model":"another"}',
    ...prompt({ reason: 'extended', from: 's-0' }),
  })
  t.match(asked, { why: 'other_model', turn: 0 })
})

t.test('turns that are in no row have no reason', async (t) => {
  const failed = { ...FIRST, status: 'failed' as const }
  const side = { ...FIRST, annotations: '{"line":{"told":"side","rule":"header"}}' }
  t.same(await reasonsOf(failed, side), [null, null])
})
