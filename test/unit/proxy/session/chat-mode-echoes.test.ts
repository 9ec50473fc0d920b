/**
 * Chat mode: the agent's messages are sent to the engine unchanged, with the ids that the model gave its tool
 * calls.
 */
import t from 'tap'
import type { ChatMessage, ToolCall } from '../../../../src/protocol/canonical/messages.ts'
import { PromptIds } from '../../../../src/protocol/token-ids/prompt-ids.ts'
import { ChatPrompts } from '../../../../src/proxy/session/prompts/chat-prompts.ts'
import { SessionMemory } from '../../../../src/proxy/session/state/session-memory.ts'
import { Sessions } from '../../../../src/proxy/session/state/sessions.ts'
import { TurnRunner } from '../../../../src/proxy/session/turn/run-turn.ts'
import type { TurnRecord, TurnStore } from '../../../../src/proxy/store/port/turn-store.ts'
import { NamedTurnRunner } from '../../../helpers/begin-turn.ts'
import { DISCARD } from '../../../helpers/event-stream.ts'
import { respond, ScriptedBackend } from '../../../helpers/scripted-backend.ts'
import { silentLogger } from '../../../helpers/silent-logger.ts'
import { openMemoryStore } from '../../../helpers/store-in-process.ts'

const user = (content: string): ChatMessage => ({ role: 'user', content })
const never = new AbortController().signal

/** Creates a session of an engine that calls a function with this id, each time. */
async function getRig(id: string | undefined, given?: TurnStore) {
  const store = given ?? (await openMemoryStore())
  let requestCount = 0
  const backend = new ScriptedBackend(() => {
    // Each prompt begins with the previous one and its completion.
    const seen = Array.from({ length: 3 * requestCount + 1 }, (_, index) => index)
    const i = 3 * requestCount++
    const called = { name: 'f', arguments: `{"n":${requestCount}}` }
    return respond([
      { type: 'start', engine: 'scripted', promptTokenIds: PromptIds.of(...seen) },
      { type: 'delta', toolCalls: [{ index: 0, ...(id && { id }), type: 'function', function: called }] },
      { type: 'delta', tokenIds: [i + 1, i + 2], logprobs: [-1, -1] },
      { type: 'end', finishReason: 'tool_calls' },
    ])
  })
  const hooks = { onEnded() {}, onSweepFailed() {}, onSweepDeferred() {} }
  const sessions = new Sessions(store, hooks, { strict: false, defaultTtlMs: null })
  const prompts = new ChatPrompts(async () => 0, store)
  const runner = new NamedTurnRunner(
    new TurnRunner({ sessions, backend, prompts, store, logger: silentLogger }),
    sessions,
  )
  return {
    store,
    ask: async (
      messages: ChatMessage[],
    ): Promise<{ turn: TurnRecord; sent: ChatMessage[]; json: string }> => {
      const request = { kind: 'chat', body: { messages } } as const
      const metadata = { retryCount: 0, hasAgentKey: false }
      const call = { sessionId: 's', dialect: 'chat', request, stream: false, metadata }
      await (await runner.begin(call, never)).deliver(DISCARD)
      const turn = (await Array.fromAsync(store.readTurns('s'))).at(-1)!
      const { body, messagesJson } = backend.requests.at(-1)!
      const json = `[${Buffer.concat([...messagesJson!])}]`
      return { turn, sent: (body as { messages: ChatMessage[] }).messages, json }
    },
  }
}

const toCall = ({ toolCalls }: TurnRecord) => (JSON.parse(toolCalls) as ToolCall[])[0]!
const filledIn = (call: ToolCall): ChatMessage => ({
  role: 'assistant',
  content: null,
  tool_calls: [{ ...call, function: { ...call.function, arguments: '{"n":1,"flag":false}' } }],
})
const result = (id: string): ChatMessage => ({ role: 'tool', tool_call_id: id, content: `done: ${id}` })

t.test('a model that names its tool calls reads these names, also after a restart', async (t) => {
  const own = 'functions.f:0'
  const rig = await getRig(own)
  const { turn: first } = await rig.ask([user('task')])
  const { id } = toCall(first)
  t.match(id, /^call_[0-9a-f]{24}$/)
  const messages = [user('task'), filledIn(toCall(first)), result(id)]
  const { turn: second, sent, json } = await rig.ask(messages)
  const shown = [
    user('task'),
    filledIn({ ...toCall(first), id: own }),
    { ...result(own), content: `done: ${id}` },
  ]
  t.same(sent, shown)
  t.same(JSON.parse(json), shown, 'the bytes are those of the messages')
  t.match(JSON.parse(second.annotations), {
    prompt: { reason: 'extended', from: first.turnId },
    echo: { kinds: ['arguments'], changes: [{ path: 'flag', echoed: 'false' }] },
    call_ids: { [toCall(second).id]: own },
  })
  t.not(toCall(second).id, id, 'the same name, another id')
  t.match(second.lastMessage!.value, result(id), 'recorded as it was sent')
  const { sent: afterRestart, turn } = await (await getRig(own, rig.store)).ask(messages)
  t.same(afterRestart, shown)
  t.notOk(JSON.parse(turn.annotations).echo?.kinds.includes('unknown_id'))
})

t.test('engine-generated ids, or none, leave the messages as the agent wrote them', async (t) => {
  for (const own of ['chatcmpl-tool-0a1b', undefined]) {
    const rig = await getRig(own)
    const { turn } = await rig.ask([user('task')])
    t.same(JSON.parse(turn.annotations).call_ids, { [toCall(turn).id]: own ?? null })
    const messages = [user('task'), filledIn(toCall(turn)), result(toCall(turn).id)]
    const { sent } = await rig.ask(messages)
    t.equal(sent, messages, 'the same list object')
  }
})

t.test('events are not read before the prompt is matched', async (t) => {
  const memory = new SessionMemory()
  // So many messages are matched in more than one time slice.
  const messages = Array.from({ length: 1_500 }, (_, index) => user(`task ${index}`))
  const lastMessage = memory.messages.addMessages(messages)
  const ids = { requestId: 'r', sessionId: 's' }
  const request = { kind: 'chat' as const, body: { messages }, stream: false, lastMessage, ...ids }
  const prompt = await new ChatPrompts(async () => 0).begin(request, memory)
  const events = [{ type: 'start', engine: 'scripted', promptTokenIds: PromptIds.of(1) }] as const
  t.throws(() => prompt.read(events), /before prepareToRead/)
  const prepared = prompt.prepareToRead()
  t.throws(() => prompt.read(events), /before prepareToRead/)
  await prepared
  t.match(await prompt.read(events), [{ annotations: { prompt: { reason: 'branched' } } }])
})
