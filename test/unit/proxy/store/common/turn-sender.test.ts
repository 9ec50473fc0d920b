import fc from 'fast-check'
import t, { type Test } from 'tap'
import type { ThreadReply } from '../../../../../src/proxy/store/common/calls.ts'
import type { TextListDelta } from '../../../../../src/proxy/store/common/reader.ts'
import type {
  RequestReply,
  TurnMessage,
  TurnReply,
} from '../../../../../src/proxy/store/common/turn-message.ts'
import { TurnSender } from '../../../../../src/proxy/store/common/turn-sender.ts'
import type { WriteMethods } from '../../../../../src/proxy/store/common/write-methods.ts'
import { anOutcome, aTurn } from '../../../../conformance/turn-store.ts'
import type { TurnWithTexts } from '../../../../helpers/messages.ts'
import { toOutcomeMessage } from '../../../../helpers/prompt-ids.ts'
import { createSessionRow, openStoreWriter } from '../../../../helpers/store-writer.ts'
import { limitRuns } from '../../../../helpers/tier.ts'

function openWriter(t: Test) {
  const { writer, reader } = openStoreWriter(t)
  let lastReading = 0
  const commit = (method: keyof WriteMethods, ...args: unknown[]): ThreadReply =>
    writer.commit([{ id: 0, method, args }])[0]!
  const createSession = (sessionId: string) => commit('createSession', createSessionRow(sessionId))
  /** Messages, tools and prompts of a session's turns, as recorded. */
  const getRequests = (sessionId: string) => {
    lastReading += 1
    const texts = new Map<number, string>()
    let messages: string[] = []
    let chunks: string[] = []
    const next = (list: string[], { shared, added }: TextListDelta) => [
      ...list.slice(0, shared),
      ...added.map((id) => texts.get(id)!),
    ]
    const requests: Pick<TurnWithTexts, 'requestMessages' | 'tools' | 'promptPieces'>[] = []
    for (let done = false; !done; ) {
      const page = reader.readPage(lastReading, sessionId)
      for (const [id, text] of page.texts) texts.set(id, text)
      for (const turn of page.turns) {
        messages = next(messages, turn.messages)
        chunks = next(chunks, turn.prompt)
        const tools = turn.tools === null ? null : texts.get(turn.tools)!
        requests.push({ requestMessages: messages, tools, promptPieces: chunks })
      }
      done = page.done
    }
    return requests
  }
  return { commit, createSession, getRequests }
}

function getReply(reply: ThreadReply): RequestReply {
  if ('error' in reply) throw new Error(reply.error.message)
  const value = reply.value as RequestReply | TurnReply
  return 'request' in value ? value.request : value
}

const MESSAGES = Array.from({ length: 20 }, (_, index) => `{"role":"user","content":"${index}"}`)

t.test('a request that extends the last one is sent as its additions', (t) => {
  const { commit, createSession, getRequests } = openWriter(t)
  createSession('s')
  const sender = new TurnSender()
  const tools = '[{"type":"function"}]'
  const send = (index: number, count: number): TurnMessage => {
    const turn = aTurn(`t${index}`, { index, requestMessages: MESSAGES.slice(0, count), tools })
    const { sent, applyReply } = sender.pack(turn)
    applyReply(getReply(commit('openTurn', sent)))
    return sent
  }
  t.match(send(0, 3), { messages: { base: { depth: 0 }, texts: { length: 3 } }, tools })
  t.match(send(1, 5), { messages: { base: { depth: 3 }, texts: MESSAGES.slice(3, 5) }, tools: Number })
  t.match(send(2, 5), { messages: { base: { depth: 5 }, texts: { length: 0 } } }, 'the same again')
  t.match(send(3, 4), { messages: { base: { depth: 3 }, texts: { length: 1 } } }, 'a shorter one')
  t.match(
    send(4, 7),
    { messages: { base: { depth: 5 }, texts: { length: 2 } } },
    'extending the one before that',
  )
  const written = [3, 5, 5, 4, 7].map((count) => ({
    requestMessages: MESSAGES.slice(0, count),
    tools,
    promptPieces: [],
  }))
  t.same(getRequests('s'), written)
  t.end()
})

t.test('the last chunk and the new ones are sent of a prompt that extends the last one', (t) => {
  const { commit, createSession, getRequests } = openWriter(t)
  createSession('s')
  const sender = new TurnSender()
  const prompts = [
    ['[1', ',2'],
    ['[1', ',2', ',3'],
    ['[1', ',2', ',3'],
    ['[1', ',2'],
    ['[1', ',4'],
  ]
  const sent = prompts.map((promptPieces, index) => {
    const turn = aTurn(`t${index}`, { index, requestMessages: [], promptPieces })
    const packed = sender.pack(turn)
    packed.applyReply(getReply(commit('openTurn', packed.sent)))
    return [packed.sent.prompt.base.depth, packed.sent.prompt.texts.join('')]
  })
  t.same(sent, [
    [0, '[1,2'],
    [1, ',2,3'],
    [2, ',3'],
    [0, '[1,2'],
    [1, ',4'],
  ])
  t.same(
    getRequests('s').map(({ promptPieces }) => promptPieces),
    prompts,
  )
  t.end()
})

t.test('a request is sent completely while the previous one is not recorded', (t) => {
  const sender = new TurnSender()
  const pack = (count: number) => sender.pack(aTurn('a', { requestMessages: MESSAGES.slice(0, count) }))
  const first = pack(3)
  t.match(pack(5).sent, { messages: { base: { depth: 0 }, texts: { length: 5 } } })
  const prompt = { node: 0, depth: 0, link: '' }
  first.applyReply({ messages: { node: 7, depth: 3, link: 'x'.repeat(16) }, prompt, tools: null })
  t.match(
    pack(6).sent,
    { messages: { base: { node: 7, depth: 3 }, texts: { length: 3 } } },
    'once it is recorded',
  )
  sender.forget('s')
  t.match(pack(6).sent, { messages: { base: { depth: 0 }, texts: { length: 6 } } }, 'after it is forgotten')
  t.end()
})

t.test('a prompt without ids from the engine is sent as none', (t) => {
  const prompts = [Int32Array.of(), Int32Array.of(1, 2)]
  const sent = prompts.map((promptTokenIds) =>
    new TurnSender().packOutcome(anOutcome('a', { promptTokenIds })),
  )
  t.strictSame(
    sent.map(({ sent: { prompt } }) => prompt),
    [null, { base: null, shared: 0, rest: Int32Array.of(1, 2) }],
  )
  t.end()
})

t.test('a request is recorded correctly for any known state of the previous one', (t) => {
  const { commit, createSession, getRequests } = openWriter(t)
  let lastSession = 0
  const step = fc.record({
    keep: fc.nat(8),
    add: fc.array(fc.constantFrom(...MESSAGES.slice(0, 4), '"\ud800"'), { maxLength: 3 }),
    keepChunks: fc.nat(8),
    addChunks: fc.array(fc.constantFrom('[1', ',2', ',3'), { maxLength: 3 }),
    tools: fc.constantFrom(null, '[1]', '[2]'),
    how: fc.constantFrom('open', 'record'),
    after: fc.constantFrom('replied', 'replied', 'replied', 'not replied', 'reset', 'deleted'),
  })
  fc.assert(
    fc.property(fc.array(step, { maxLength: 15 }), (steps) => {
      lastSession += 1
      const sessionId = `session-${lastSession}`
      createSession(sessionId)
      const sender = new TurnSender()
      let written: object[] = []
      let requestMessages: string[] = []
      let promptPieces: string[] = []
      for (const [index, { keep, add, keepChunks, addChunks, tools, how, after }] of steps.entries()) {
        requestMessages = [...requestMessages.slice(0, keep), ...add]
        promptPieces = [...promptPieces.slice(0, keepChunks), ...addChunks]
        const turnId = `t${index}`
        const { sent, applyReply } = sender.pack(
          aTurn(turnId, { sessionId, index, requestMessages, tools, promptPieces }),
        )
        const reply =
          how === 'open'
            ? commit('openTurn', sent)
            : commit('recordTurn', sent, toOutcomeMessage(anOutcome(turnId, { sessionId })))
        written.push({ requestMessages, tools, promptPieces })
        if (after === 'reset' || after === 'deleted') {
          sender.forget(sessionId)
          commit(after === 'reset' ? 'resetSession' : 'deleteSession', sessionId, 9)
          createSession(sessionId)
          written = []
        }
        // After a reset or a deletion, this is a reply that arrives late.
        if (after !== 'not replied') applyReply(getReply(reply))
      }
      return JSON.stringify(getRequests(sessionId)) === JSON.stringify(written)
    }),
    { numRuns: limitRuns(200) },
  )
  t.end()
})

t.test('a request that repeats unrecorded messages is rejected, and leaves nothing', (t) => {
  const { commit, createSession, getRequests } = openWriter(t)
  createSession('s')
  const { sent } = new TurnSender().pack(aTurn('a', { requestMessages: MESSAGES.slice(0, 3) }))
  const base = { node: 1, depth: 2, link: 'x'.repeat(16) }
  const messages = { base, texts: MESSAGES.slice(2, 3) }
  t.match(commit('openTurn', { ...sent, messages }), { error: { code: 'store_failed' } })
  t.match(commit('openTurn', { ...sent, tools: 99 }), {
    error: { code: 'store_failed' },
  })
  t.same(getRequests('s'), [])
  t.end()
})
