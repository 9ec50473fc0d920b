import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import type { SessionWriter } from '../../../../../src/proxy/store/common/session-writer.ts'
import type { TurnTables } from '../../../../../src/proxy/store/common/tables.ts'
import { NO_TEXTS, type TextBatch } from '../../../../../src/proxy/store/common/turn-message.ts'
import { TurnWriter } from '../../../../../src/proxy/store/common/turns.ts'

/** Creates a writer for a session in its second epoch. Every write fails, because there are no tables. */
function createTurnWriter(tree?: number) {
  const sessions = {
    findTree: () => tree,
    checkEpoch(_sessionId: string, epoch: number) {
      if (epoch !== 2) throw new ProxyError('session_moved', 'moved')
    },
  }
  return new TurnWriter({} as TurnTables, sessions as unknown as SessionWriter, 1)
}

const createBatch = (overrides: Partial<TextBatch> = {}): TextBatch => ({
  sessionId: 's',
  epoch: 2,
  list: 'messages',
  work: 1,
  texts: { base: NO_TEXTS, texts: ['"a"'] },
  onWritten: () => t.fail('nothing is written'),
  onUndone() {},
  ...overrides,
})

t.test('a chunk of an earlier epoch is rejected', async (t) => {
  t.throws(() => createTurnWriter(1).putTextBatch(createBatch({ epoch: 1 })), { code: 'session_moved' })
})

t.test('a chunk of a missing session is skipped, and its turn reports this', async (t) => {
  t.doesNotThrow(() => createTurnWriter().putTextBatch(createBatch()))
})

t.test('a chunk is skipped if the previous one is not recorded', async (t) => {
  t.doesNotThrow(() => createTurnWriter(1).putTextBatch(createBatch({ texts: undefined })))
})

t.test('a complete chunk is recorded', async (t) => {
  t.throws(() => createTurnWriter(1).putTextBatch(createBatch()), TypeError, 'the write is attempted')
})
