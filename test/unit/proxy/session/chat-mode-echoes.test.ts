/**
 * Chat mode: the agent's messages are sent to the engine unchanged, with the ids that the model gave its tool
 * calls.
 */
import t from 'tap'
import { ProxyError } from '../../../../src/base/errors.ts'
import { intercept } from '../../../../src/base/interceptor.ts'
import type { ChatMessage, ToolCall } from '../../../../src/protocol/canonical/messages.ts'
import { PromptIds } from '../../../../src/protocol/token-ids/prompt-ids.ts'
import { ChatPrompts } from '../../../../src/proxy/session/prompts/chat-prompts.ts'
import { SessionMemory } from '../../../../src/proxy/session/state/session-memory.ts'
import { Sessions } from '../../../../src/proxy/session/state/sessions.ts'
import { TurnRunner } from '../../../../src/proxy/session/turn/run-turn.ts'
import type { TurnRecord, TurnStore } from '../../../../src/proxy/store/port/turn-store.ts'
import { DISCARD } from '../../../helpers/event-stream.ts'
import { respond, ScriptedBackend } from '../../../helpers/scripted-backend.ts'
import { type SessionRequest, SessionTurnRunner } from '../../../helpers/session-turn-runner.ts'
import { silentLogger } from '../../../helpers/silent-logger.ts'
import { openMemoryStore } from '../../../helpers/store-in-process.ts'

const user = (content: string): ChatMessage => ({ role: 'user', content })
const never = new AbortController().signal

/** Creates a session whose engine samples a tool call with this id for each request. */
async function setUp(id: string | undefined, existing?: TurnStore) {
  const store = existing ?? (await openMemoryStore())
  let requestCount = 0
  const backend = new ScriptedBackend(() => {
    // Each prompt begins with the previous one and its completion.
    const seen = Array.from({ length: 3 * requestCount + 1 }, (_, index) => index)
    const i = 3 * requestCount++
    const toolFunction = { name: 'f', arguments: `{"n":${requestCount}}` }
    return respond([
      { type: 'start', engine: 'scripted', promptTokenIds: PromptIds.of(...seen) },
      {
        type: 'delta',
        toolCalls: [{ index: 0, ...(id && { id }), type: 'function', function: toolFunction }],
      },
      { type: 'delta', tokenIds: [i + 1, i + 2], logprobs: [-1, -1] },
      { type: 'end', finishReason: 'tool_calls' },
    ])
  })
  const hooks = { onEnded() {}, onSweepFailed() {}, onSweepDeferred() {} }
  const sessions = new Sessions(store, hooks, { strict: false, defaultTtlMs: null })
  const prompts = new ChatPrompts(async () => 0, store)
  const runner = new SessionTurnRunner(
    new TurnRunner({ sessions, backend, prompts, store, logger: silentLogger }),
    sessions,
  )
  return {
    store,
    runner,
    /** Returns the messages that the engine received, in the order of the requests. */
    getSent: () => backend.requests.map(({ body }) => (body as { messages: ChatMessage[] }).messages),
    sendRequest: async (
      messages: ChatMessage[],
    ): Promise<{ turn: TurnRecord; sent: ChatMessage[]; json: string }> => {
      await (await runner.begin(createRequest(messages), never)).deliver(DISCARD)
      const turn = (await Array.fromAsync(store.readTurns('s'))).at(-1)!
      const { body, messagesJson } = backend.requests.at(-1)!
      const json = `[${Buffer.concat([...messagesJson!])}]`
      return { turn, sent: (body as { messages: ChatMessage[] }).messages, json }
    },
  }
}

function createRequest(messages: ChatMessage[]): SessionRequest {
  const request = { kind: 'chat', body: { messages } } as const
  const metadata = { retryCount: 0, hasAgentKey: false }
  return { sessionId: 's', dialect: 'chat', request, stream: false, metadata }
}

const getToolCall = ({ toolCalls }: TurnRecord) => (JSON.parse(toolCalls) as ToolCall[])[0]!
const fillIn = (call: ToolCall): ChatMessage => ({
  role: 'assistant',
  content: null,
  tool_calls: [{ ...call, function: { ...call.function, arguments: '{"n":1,"flag":false}' } }],
})
const result = (id: string): ChatMessage => ({ role: 'tool', tool_call_id: id, content: `done: ${id}` })

t.test('a model that names its tool calls reads these names, also after a restart', async (t) => {
  const modelId = 'functions.f:0'
  const rig = await setUp(modelId)
  const { turn: first } = await rig.sendRequest([user('task')])
  const { id } = getToolCall(first)
  t.match(id, /^call_[0-9a-f]{24}$/)
  const messages = [user('task'), fillIn(getToolCall(first)), result(id)]
  const { turn: second, sent, json } = await rig.sendRequest(messages)
  const expected = [
    user('task'),
    fillIn({ ...getToolCall(first), id: modelId }),
    { ...result(modelId), content: `done: ${id}` },
  ]
  t.same(sent, expected)
  t.same(JSON.parse(json), expected, 'the bytes are those of the messages')
  t.match(JSON.parse(second.annotations), {
    prompt: { reason: 'extended', from: first.turnId },
    echo: { kinds: ['arguments'], changes: [{ path: 'flag', echoed: 'false' }] },
    call_ids: { [getToolCall(second).id]: modelId },
  })
  t.not(getToolCall(second).id, id, 'the same name, another id')
  t.match(second.lastMessage!.value, result(id), 'recorded as it was sent')
  const { sent: afterRestart, turn } = await (await setUp(modelId, rig.store)).sendRequest(messages)
  t.same(afterRestart, expected)
  t.notOk(JSON.parse(turn.annotations).echo?.kinds.includes('unknown_id'))
})

t.test('after a restart, requests that arrive at the same time all have the ids of the model', async (t) => {
  const modelId = 'functions.f:0'
  const { store, sendRequest } = await setUp(modelId)
  const { turn } = await sendRequest([user('task')])
  const messages = [user('task'), fillIn(getToolCall(turn)), result(getToolCall(turn).id)]
  let reads = 0
  let isBroken = true
  const counted = intercept(store, {
    readOutlines: (proceed) => {
      reads += 1
      if (isBroken) throw new ProxyError('store_failed', 'the connection was lost')
      return proceed()
    },
  })
  const { runner, getSent, sendRequest: sendAgain } = await setUp(modelId, counted)
  await t.rejects(sendAgain(messages), { code: 'store_failed' })
  isBroken = false
  const responses = await Promise.all([
    runner.beginChoices(createRequest(messages), 2, never),
    runner.begin(createRequest([...messages, user('more')]), never),
  ])
  await Promise.all(responses.map((response) => response.deliver(DISCARD)))
  t.strictSame(
    getSent().map(([, echo]) => (echo as { tool_calls: ToolCall[] }).tool_calls[0]!.id),
    [modelId, modelId, modelId],
  )
  t.equal(reads, 2, 'the read that failed, and one for all requests')
})

t.test('engine-generated ids, or none, leave the messages as the agent wrote them', async (t) => {
  for (const modelId of ['chatcmpl-tool-0a1b', undefined]) {
    const rig = await setUp(modelId)
    const { turn } = await rig.sendRequest([user('task')])
    t.same(JSON.parse(turn.annotations).call_ids, { [getToolCall(turn).id]: modelId ?? null })
    const messages = [user('task'), fillIn(getToolCall(turn)), result(getToolCall(turn).id)]
    const { sent } = await rig.sendRequest(messages)
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
