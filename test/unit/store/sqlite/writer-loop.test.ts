/** Which operations of the store share a commit, and who waits for whom. */
import { setImmediate as nextTurn } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { Reply, ThreadCall } from '../../../../src/proxy/store/record/calls.ts'
import { NO_TEXTS } from '../../../../src/proxy/store/record/sent-turn.ts'
import type { WriteMethods } from '../../../../src/proxy/store/record/write-methods.ts'
import type { Writer } from '../../../../src/proxy/store/sqlite/writer.ts'
import { WriterLoop, type WriterMessage } from '../../../../src/proxy/store/sqlite/writer-loop.ts'

type Call = ThreadCall<WriteMethods>

/** A loop whose writer notes the groups, by the ids of their operations. */
function aLoop(t: Test) {
  const groups: number[][] = []
  const inbox: WriterMessage[] = []
  const writer = {
    commit: (calls: readonly Call[]): Reply[] => {
      groups.push(calls.map(({ id }) => id))
      return []
    },
    purge: () => false,
    checkpointIfDue: () => {},
    checkpoint: () => {},
  }
  const loop = new WriterLoop(writer as unknown as Writer, () => {}, {
    reply: () => {},
    next: () => inbox.shift(),
    close: () => {},
  })
  t.teardown(() => loop.receive('close'))
  return { groups, inbox, loop }
}

let lastId = 0
function turn(sessionId: string, texts = 1, chars = 10): Call {
  const messages = { base: NO_TEXTS, texts: Array.from({ length: texts }, () => 'x'.repeat(chars)) }
  const opened = { sessionId, messages, prompt: { base: NO_TEXTS, texts: [] } }
  lastId += 1
  return { id: lastId, method: 'recordTurn', args: [opened, {}] }
}

for (const [what, heavy] of [
  ['of many messages', () => turn('greedy', 10_000)],
  ['of long messages', () => turn('greedy', 10, 4 * 1024 * 1024)],
] as const) {
  t.test(`a turn ${what} is written alone, and those of others before its session's next`, async (t) => {
    const { groups, loop } = aLoop(t)
    const calls = [heavy(), heavy(), heavy(), turn('a'), turn('b'), turn('a')]
    loop.receive(calls)
    for (let each = 0; each < 5; each += 1) await nextTurn()
    const [first, second, third, a, b, a2] = calls.map(({ id }) => id)
    t.strictSame(groups, [[first], [a, b], [second], [a2], [third]])
  })
}

t.test(
  'what comes while a heavy group is written waits for one more of its session, not for all',
  async (t) => {
    const { groups, inbox, loop } = aLoop(t)
    const [first, second, third, late] = [
      turn('greedy', 9_000),
      turn('greedy', 9_000),
      turn('greedy', 9_000),
      turn('late'),
    ]
    loop.receive([first, second, third])
    inbox.push([late])
    for (let each = 0; each < 4; each += 1) await nextTurn()
    t.strictSame(groups, [[first.id], [second.id], [late.id], [third.id]])
  },
)

t.test('light turns share a commit, up to a number of them', async (t) => {
  const { groups, loop } = aLoop(t)
  loop.receive(Array.from({ length: 600 }, (_, at) => turn(`s${at % 7}`)))
  await nextTurn()
  t.strictSame(
    groups.map(({ length }) => length),
    [512, 88],
  )
})

t.test('a sweep comes behind all that was called for before it, and the end behind everything', async (t) => {
  const { groups, loop } = aLoop(t)
  const before = [turn('a'), turn('a'), turn('b')]
  const sweep: Call = { id: 0, method: 'sweep', args: [0, 10] }
  const after = [turn('b', 5_000), turn('b', 5_000)]
  loop.receive([...before, sweep, ...after])
  loop.receive('close')
  const [a, a2, b] = before.map(({ id }) => id)
  t.strictSame(groups, [[a, b, a2], [0], ...after.map(({ id }) => [id])])
})
