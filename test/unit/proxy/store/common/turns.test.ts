import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import type { SessionTables, TurnTables } from '../../../../../src/proxy/store/common/tables.ts'
import { NO_TEXTS, type TextBatch } from '../../../../../src/proxy/store/common/turn-message.ts'
import { TurnWriter } from '../../../../../src/proxy/store/common/turns.ts'

/** Of a session in its second epoch. Every write fails: there are no tables to write to. */
function openTurns(tree?: number) {
  const sessions = {
    tree: () => tree,
    checkEpoch(_sessionId: string, epoch: number) {
      if (epoch !== 2) throw new ProxyError('session_moved', 'moved')
    },
  }
  return new TurnWriter({} as TurnTables, sessions as unknown as SessionTables, 1)
}

const stretch = (overrides: Partial<TextBatch> = {}): TextBatch => ({
  sessionId: 's',
  epoch: 2,
  list: 'messages',
  work: 1,
  texts: { base: NO_TEXTS, texts: ['"a"'] },
  written: () => t.fail('nothing is written'),
  undone() {},
  ...overrides,
})

t.test('a stretch of an earlier epoch is refused', async (t) => {
  t.throws(() => openTurns(1).putStretch(stretch({ epoch: 1 })), { code: 'session_moved' })
})

t.test('a stretch of a session that is gone is left out, and its turn tells', async (t) => {
  t.doesNotThrow(() => openTurns().putStretch(stretch()))
})

t.test('a stretch is left out where the one before it is not on record', async (t) => {
  t.doesNotThrow(() => openTurns(1).putStretch(stretch({ texts: undefined })))
})

t.test('a stretch that has all it needs is put on record', async (t) => {
  t.throws(() => openTurns(1).putStretch(stretch()), TypeError, 'it is tried')
})
