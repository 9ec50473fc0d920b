import t from 'tap'
import { createConversationReader } from '../../../../../src/proxy/session/matching/rebuild-index.ts'
import { readSessionTurns } from '../../../../../src/proxy/session/matching/session-turns.ts'
import type { TurnStep } from '../../../../../src/proxy/store/port/turn-store.ts'
import { addMessageTexts, createConversation } from '../../../../helpers/messages.ts'

const question = { role: 'user', content: 'Why?' }

function createStep(turnId: string, overrides: Partial<TurnStep>): TurnStep {
  return {
    turnId,
    status: 'completed',
    annotations: '{}',
    exact: true,
    lastMessage: addMessageTexts([JSON.stringify(question)]),
    tools: null,
    completionText: 'Because.',
    reasoning: null,
    toolCalls: '[]',
    completionTokenIds: Int32Array.of(7, 8),
    promptStep: { base: null, shared: 0, rest: Int32Array.of(1, 2, 3) },
    ...overrides,
  } as TurnStep
}

t.test('a prompt that begins with the ids of an uncontinued turn is read from the store', async (t) => {
  const left = createStep('left', { status: 'aborted', completionTokenIds: Int32Array.of() })
  const retried = createStep('retried', { promptStep: { base: 'left', shared: 3, rest: Int32Array.of() } })
  const store = {
    async *readSteps() {
      yield left
      yield retried
    },
  }
  const read = createConversationReader()
  const turns = await readSessionTurns(store, 's', read)
  const echo = { role: 'assistant', content: 'Because.' }
  const { parent } = turns.match(createConversation([question, echo, question]))
  t.equal(parent?.turn.turnId, 'retried')
  t.same([...parent!.turn.prompt.toArray()], [1, 2, 3])
})
