/**
 * Interleaved conversations in one session, from the agent's messages to the rows in the file: recorded turns do not
 * depend on the events between them, and each costs only its new part. Nothing here is timed.
 */

import Database from 'better-sqlite3'
import fc from 'fast-check'
import t from 'tap'
import { getTextsUpTo } from '../../src/protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../src/protocol/canonical/messages.ts'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import type { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import { createChunkFrame } from '../../src/protocol/worker/response-frames.ts'
import { ChatPrompts } from '../../src/proxy/session/prompts/chat-prompts.ts'
import { Sessions } from '../../src/proxy/session/state/sessions.ts'
import { TurnRunner } from '../../src/proxy/session/turn/run-turn.ts'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { ProxyCache, WorkerCache } from '../../src/worker/worker-cache.ts'
import { DISCARD, type EventStream } from '../helpers/event-stream.ts'
import { decodeIds, encodeText } from '../helpers/plain-tokens.ts'
import { ScriptedBackend } from '../helpers/scripted-backend.ts'
import { SessionTurnRunner } from '../helpers/session-turn-runner.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { inProcess } from '../helpers/store-in-process.ts'
import { limitRuns } from '../helpers/tier.ts'

/** So long that its ids are identified by their JSON. */
const SYSTEM = Array.from({ length: 1_500 }, (_, index) => (index * 7919) % 100_000)
const SEPARATOR = 7
const never = new AbortController().signal

/** An engine whose tokens are the numbers in its messages, and which reports a prompt as JSON, as engines do. */
async function* engine(request: GenerationRequest): EventStream {
  const { messages } = request.body as { messages: ChatMessage[] }
  const ids = messages.flatMap(({ role, content }) =>
    role === 'assistant'
      ? [...encodeText(String(content)), SEPARATOR]
      : [...encodeText(String(content)), SEPARATOR, SEPARATOR],
  )
  const json = Buffer.from(ids.join())
  const promptTokenIds = request.promptLists!.read(json, 0, json.length)!
  yield [{ type: 'start', engine: 'numbers', promptTokenIds }]
  const tokenIds = [ids.length % 89, ids.length % 83, ids.length % 79]
  yield [{ type: 'delta', content: decodeIds(tokenIds), tokenIds, logprobs: tokenIds.map(() => -0.5) }]
  yield [{ type: 'end', finishReason: 'stop' }]
}

/** Starts a proxy without sockets, on a database that outlives it. */
async function startProxyOn(path: string) {
  const backend = new ScriptedBackend((request) => engine(request))
  const store = await openSqliteStore({ path, durability: 'process', spawn: inProcess })
  const hooks = { onEnded() {}, onSweepFailed() {}, onSweepDeferred() {} }
  const sessions = new Sessions(store, hooks, { strict: false, defaultTtlMs: null, settleMs: 1_000 })
  const prompts = new ChatPrompts(async () => 0)
  const runner = new SessionTurnRunner(
    new TurnRunner({ sessions, backend, prompts, store, logger: silentLogger }),
    sessions,
  )
  return {
    store,
    async sendRequest(messages: ChatMessage[]): Promise<string> {
      const request = { kind: 'chat', body: { model: 'm', messages: structuredClone(messages) } } as const
      const metadata = { retryCount: 0, hasAgentKey: false, sendsRetryCount: false }
      const turn = await runner.begin(
        { sessionId: 's', dialect: 'chat', request, stream: true, metadata },
        never,
      )
      await turn.deliver(DISCARD)
      return turn.completion.content!
    },
    async stop() {
      await sessions.close()
      await store.close()
    },
  }
}

interface Step {
  /** Index of the conversation whose turn is next. */
  conversation: number
  /** The agent first changes an earlier message, which is a branch. */
  edits: boolean
  /** The process restarts first. */
  restarts: boolean
}

function createOpening(conversation: number): ChatMessage[] {
  return [
    { role: 'system', content: decodeIds(SYSTEM.with(1_400, conversation)) },
    { role: 'user', content: `1 2 ${conversation}` },
  ]
}

/** Runs the steps. @returns the recorded turns, without names and times */
async function getRecordedTurns(path: string, steps: readonly Step[]): Promise<object[]> {
  let proxy = await startProxyOn(path)
  const conversations = [0, 1, 2].map(createOpening)
  for (const [index, { conversation, edits, restarts }] of steps.entries()) {
    if (restarts) {
      await proxy.stop()
      proxy = await startProxyOn(path)
    }
    const messages = conversations[conversation]!
    if (edits) messages[1] = { role: 'user', content: `3 ${index}` }
    const content = await proxy.sendRequest(messages)
    messages.push({ role: 'assistant', content }, { role: 'user', content: `${index} 5` })
  }
  const turns = await Array.fromAsync(proxy.store.readTurns('s'))
  await proxy.stop()
  return turns.map(({ index, status, exact, lastMessage, promptTokenIds, completionTokenIds }) => ({
    ...{ index, status, exact, requestMessages: getTextsUpTo(lastMessage) },
    ids: `${promptTokenIds} ${completionTokenIds}`,
  }))
}

t.test('recorded turns do not depend on restarts of the proxy between them', async (t) => {
  const folder = t.testdir()
  let runs = 0
  const step = fc.record({
    conversation: fc.nat(2),
    edits: fc.integer({ min: 0, max: 5 }).map((dice) => dice === 0),
    restarts: fc.boolean(),
  })
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 12 }), async (steps) => {
      runs += 1
      const interrupted = await getRecordedTurns(`${folder}/${runs}-interrupted.db`, steps)
      const full = await getRecordedTurns(
        `${folder}/${runs}-uninterrupted.db`,
        steps.map((each) => ({ ...each, restarts: false })),
      )
      t.equal(full.length, steps.length)
      t.strictSame(interrupted, full)
    }),
    { numRuns: limitRuns(40) },
  )
})

t.test(
  'turn 120 of a session adds as much to the file as turn 20, in each of three conversations',
  async (t) => {
    const path = `${t.testdir()}/proxy.db`
    const steps = Array.from({ length: 363 }, (_, index) => ({
      conversation: index % 3,
      edits: false,
      restarts: false,
    }))
    await getRecordedTurns(path, steps)
    const db = new Database(path, { readonly: true })
    t.teardown(() => db.close())
    const rows = db
      .prepare<[], { rest: number; shared: number; texts: number }>(`
      SELECT length(prompt_rest) AS rest, prompt_shared AS shared, length(nodes.texts) AS texts
      FROM turns JOIN nodes ON nodes.id = turns.node ORDER BY call_index`)
      .all()
    for (const conversation of [0, 1, 2]) {
      const [early, late] = [rows[60 + conversation]!, rows[360 + conversation]!]
      // The number of a step has one digit more, and so may its id.
      t.ok(late.rest <= early.rest + 2, `${early.rest} and ${late.rest} bytes of ids`)
      t.ok(late.texts <= early.texts + 4, `${early.texts} and ${late.texts} bytes of text ids`)
      t.ok(late.shared > early.shared)
    }
  },
)

t.test(
  'turn 200 of a session is reported by a worker, and serialized for an engine, at the cost of turn 20',
  (t) => {
    const worker = new ProxyCache(new WorkerCache(() => 0), 'a')
    const frames: number[] = []
    const converted: number[] = []
    let ids = [...SYSTEM, ...SYSTEM]
    let prompt: PromptIds | undefined
    for (let turn = 0; turn <= 200; turn += 1) {
      const lists = worker.getPromptLists('s')
      const request = { requestId: `r${turn}`, sessionId: 's', promptLists: lists } as GenerationRequest
      const before = lists.converted
      ids = [...ids, 100, 200, 300]
      // Alternates between chat mode, which reads the engine's report, and token mode, which serializes the request.
      if (prompt !== undefined && turn % 2 === 1) {
        prompt = prompt.createContinuation([100, 200, 300])
        lists.write(prompt)
      } else prompt = lists.read(Buffer.from(ids.join()), 0, ids.join().length)!
      converted.push(lists.converted - before)
      const base = worker.getPrompt(`r${turn - 1}`)
      frames.push(
        createChunkFrame('r', [{ type: 'start', engine: 'e', promptTokenIds: prompt }], base)!(1).length,
      )
      worker.recordSentPrompt(request, prompt)
      t.equal(prompt.length, ids.length)
    }
    t.equal(frames[200], frames[20])
    t.equal(converted[200], converted[20])
    t.equal(converted[199], converted[19])
    t.end()
  },
)
