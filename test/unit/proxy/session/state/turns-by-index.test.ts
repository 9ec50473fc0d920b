import t from 'tap'
import { withTurnsByIndex } from '../../../../../src/proxy/session/state/turns-by-index.ts'
import type {
  SessionRecord,
  TurnOutline,
  TurnRecord,
} from '../../../../../src/proxy/store/port/turn-store.ts'

/** Returns a session of turns `turn-0`, `turn-1` …, and the reads of its store so far. */
function createSession(nextIndex: number) {
  const reads: string[] = []
  const store = {
    async getTurn(_sessionId: string, turnId: string) {
      reads.push(turnId)
      const index = Number(/^turn-(\d+)$/.exec(turnId)?.[1])
      return index < nextIndex ? ({ turnId, index } as TurnRecord) : undefined
    },
    async *readOutlines() {
      reads.push('outlines')
      for (let index = 0; index < nextIndex; index += 1) {
        reads.push(`outline ${index}`)
        yield { turnId: `turn-${index}`, index } as TurnOutline
      }
    },
  }
  const find = (turns: Record<string, unknown>) =>
    withTurnsByIndex(store, async () => ({ sessionId: 's', nextIndex }) as SessionRecord, { turns })
  return { find, reads }
}

t.test('several turns that are named by id are found in one pass, up to the last of them', async (t) => {
  const { find, reads } = createSession(10)
  t.strictSame(await find({ 'turn-3': 'a', 0: 'b', 'turn-1': 'c' }), { turns: { 0: 'b', 1: 'c', 3: 'a' } })
  t.strictSame(reads, ['outlines', 'outline 0', 'outline 1', 'outline 2', 'outline 3'])
})

t.test('one turn that is named by id is read alone, and indices need no read', async (t) => {
  const { find, reads } = createSession(10)
  t.strictSame(await find({ 'turn-3': 'a', 9: 'b' }), { turns: { 3: 'a', 9: 'b' } })
  t.strictSame(await find({ 2: 'a' }), { turns: { 2: 'a' } })
  t.strictSame(reads, ['turn-3'])
})

t.test('an unknown id, and a turn that is named twice, are rejected', async (t) => {
  const { find } = createSession(10)
  await t.rejects(find({ 'turn-1': 1, other: 1 }), { code: 'turn_not_found', message: /'other'/ })
  await t.rejects(find({ other: 1 }), { code: 'turn_not_found' })
  await t.rejects(find({ 10: 1 }), { code: 'turn_not_found' })
  await t.rejects(find({ 1: 1, 'turn-1': 1, 'turn-2': 1 }), { code: 'invalid_request' })
})
