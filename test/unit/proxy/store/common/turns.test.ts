import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import type { SessionWriter } from '../../../../../src/proxy/store/common/session-writer.ts'
import type { TurnTables } from '../../../../../src/proxy/store/common/tables.ts'
import { NO_TEXTS, type TextBatch } from '../../../../../src/proxy/store/common/turn-message.ts'
import { TurnWriter } from '../../../../../src/proxy/store/common/turns.ts'

/** A turn of a session in its second epoch. Every write fails, because there are no tables to write to. */
function openTurns(tree?: number) {
  const sessions = {
    findTree: () => tree,
    checkEpoch(_sessionId: string, epoch: number) {
      if (epoch !== 2) throw new ProxyError('session_moved', 'moved')
    },
  }
  return new TurnWriter({} as TurnTables, sessions as unknown as SessionWriter, 1)
}

const stretch = (overrides: Partial<TextBatch> = {}): TextBatch => ({
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
  t.throws(() => openTurns(1).putTextBatch(stretch({ epoch: 1 })), { code: 'session_moved' })
})

t.test('a chunk of a missing session is skipped, and its turn reports this', async (t) => {
  t.doesNotThrow(() => openTurns().putTextBatch(stretch()))
})

t.test('a chunk is skipped if the previous one is not recorded', async (t) => {
  t.doesNotThrow(() => openTurns(1).putTextBatch(stretch({ texts: undefined })))
})

t.test('a complete chunk is recorded', async (t) => {
  t.throws(() => openTurns(1).putTextBatch(stretch()), TypeError, 'it is attempted')
})
