/** Which operations of the store share a commit, and which wait for others. */
import { setImmediate as nextIteration } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { ThreadCommand, ThreadReply } from '../../../../../src/proxy/store/common/calls.ts'
import { NO_TEXTS, type TextBatch } from '../../../../../src/proxy/store/common/turn-message.ts'
import type { WriteMethods } from '../../../../../src/proxy/store/common/write-methods.ts'
import type { Writer } from '../../../../../src/proxy/store/sqlite/writer.ts'
import { WriterLoop, type WriterMessage } from '../../../../../src/proxy/store/sqlite/writer-loop.ts'

type Command = ThreadCommand<WriteMethods>

/** Creates a loop whose writer lists the groups, by the ids of their operations. */
function createLoop(t: Test) {
  const groups: number[][] = []
  const inbox: WriterMessage[] = []
  const writer = {
    commit: (commands: readonly Command[]): ThreadReply[] => {
      groups.push(commands.map(({ id }) => id))
      for (const { method, args } of commands)
        if (method === 'putTextBatch') (args[0] as TextBatch).onWritten(NO_TEXTS)
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
function turn(sessionId: string, texts = 1, chars = 10): Command {
  const messages = { base: NO_TEXTS, texts: Array.from({ length: texts }, () => 'x'.repeat(chars)) }
  const opened = { sessionId, messages, prompt: { base: NO_TEXTS, texts: [] } }
  lastId += 1
  return { id: lastId, method: 'recordTurn', args: [opened, {}] }
}

/** The entry that {@link createLoop} lists for a chunk of a turn's texts. */
const CHUNK = 0

t.test('a turn of many messages is written in chunks, and other turns before them', async (t) => {
  const { groups, loop } = createLoop(t)
  const commands = [
    turn('greedy', 5_000, 4_096),
    turn('greedy', 3_000, 4_096),
    turn('a'),
    turn('b'),
    turn('a'),
  ]
  loop.receive(commands)
  for (let each = 0; each < 16; each += 1) await nextIteration()
  const [first, second, a, b, a2] = commands.map(({ id }) => id)
  t.strictSame(groups.slice(0, 2), [[a, b, a2, CHUNK], [CHUNK]])
  const rest = groups.slice(2).flat()
  t.strictSame(
    rest.filter((id) => id !== CHUNK),
    [first, second],
  )
  t.equal(rest.at(-1), second)
})

t.test('a turn of long messages is written in chunks, too', async (t) => {
  const { groups, loop } = createLoop(t)
  const [heavy, light] = [turn('greedy', 10, 4 * 1024 * 1024), turn('light')]
  loop.receive([heavy, light])
  for (let each = 0; each < 8; each += 1) await nextIteration()
  t.strictSame(groups[0], [light.id, CHUNK])
  t.strictSame(groups.at(-1), [heavy.id])
})

t.test('operations that arrive during a chunk wait for one more of its session, not for all', async (t) => {
  const { groups, inbox, loop } = createLoop(t)
  const [heavy, late] = [turn('greedy', 9_000), turn('late')]
  loop.receive([heavy])
  inbox.push([late])
  for (let each = 0; each < 8; each += 1) await nextIteration()
  t.strictSame(groups.slice(0, 3), [[CHUNK], [late.id, CHUNK], [CHUNK]])
})

t.test('small turns share a commit, up to a number of them', async (t) => {
  const { groups, loop } = createLoop(t)
  loop.receive(Array.from({ length: 600 }, (_, index) => turn(`s${index % 7}`)))
  await nextIteration()
  t.strictSame(
    groups.map(({ length }) => length),
    [512, 88],
  )
})

t.test('a sweep follows all earlier operations, and the end follows everything', async (t) => {
  const { groups, loop } = createLoop(t)
  const before = [turn('a'), turn('a'), turn('b')]
  const sweep: Command = { id: 0, method: 'sweep', args: [0, 0, 10] }
  const after = [turn('b', 2_000), turn('b', 2_000), turn('b', 2_000)]
  loop.receive([...before, sweep, ...after])
  loop.receive('close')
  const [a, a2, b] = before.map(({ id }) => id)
  const [c, c2, c3] = after.map(({ id }) => id)
  t.strictSame(groups, [[a, b, a2], [0], [c], [c2], [c3]])
})
