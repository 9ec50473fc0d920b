/**
 * The cost of a request that repeats earlier messages of its session: counted, by dialect, for an agent alone
 * and for an agent that alternates with a subagent. No time is measured.
 */
import t from 'tap'
import { getMessagesBetween, type Message } from '../../../../src/protocol/canonical/conversation.ts'
import type { PartMemo } from '../../../../src/protocol/canonical/request-reader.ts'
import { lowerChatRequest } from '../../../../src/proxy/dialects/chat/request.ts'
import type { DialectRequest } from '../../../../src/proxy/dialects/common/dialect-request.ts'
import { VOLATILE_RULES } from '../../../../src/proxy/dialects/common/volatile.ts'
import { lowerMessagesRequest } from '../../../../src/proxy/dialects/messages/request.ts'
import { lowerResponsesRequest } from '../../../../src/proxy/dialects/responses/request.ts'
import { checkResponsesRequest, type InputItem } from '../../../../src/proxy/dialects/responses/schema.ts'
import { getMessageKey } from '../../../../src/proxy/session/matching/conversation.ts'
import { ChatPrompts } from '../../../../src/proxy/session/prompts/chat-prompts.ts'
import { SessionMemory } from '../../../../src/proxy/session/state/session-memory.ts'
import { serializeRequestTexts } from '../../../../src/proxy/session/turn/prepared-turn.ts'
import { TurnSender } from '../../../../src/proxy/store/common/turn-sender.ts'
import { aTurn } from '../../../conformance/turn-store.ts'

interface Conversation {
  /** Returns the request with the conversation after this many completions. */
  body(responses: number): object
  /** The number of messages that each completion and the agent's reaction add. */
  messagesPerTurn: number
}

interface Dialect {
  createConversation(name: string): Conversation
  lower(body: unknown, memo: PartMemo): DialectRequest
}

const LONG = 'A long text that an agent has said. '.repeat(20)
const SYSTEM = `You are an agent. ${LONG.repeat(10)}`

function repeat<Each>(count: number, each: (index: number) => Each[]): Each[] {
  return Array.from({ length: count }, (_, index) => each(index)).flat()
}

const CHAT: Dialect = {
  lower: lowerChatRequest,
  createConversation: (name) => ({
    messagesPerTurn: 2,
    body: (responses) => ({
      model: 'm',
      messages: [
        { role: 'system', content: SYSTEM + name },
        { role: 'user', content: `${name}: ${LONG}` },
        ...repeat(responses, (index) => [
          {
            role: 'assistant',
            content: `${index} ${LONG}`,
            tool_calls: [{ id: `c${index}`, type: 'function', function: { name: 'f', arguments: '{}' } }],
          },
          { role: 'tool', tool_call_id: `c${index}`, content: `${index} ${LONG}` },
        ]),
      ],
      tools: [{ type: 'function', function: { name: 'f', parameters: {} } }],
    }),
  }),
}

/** Like Claude Code, marks the last two user messages for the cache: the markers move with each request. */
function createMessagesConversation(name: string, hasMarkers: boolean): Conversation {
  const getMarker = (fromEnd: number) => hasMarkers && fromEnd < 2 && { cache_control: { type: 'ephemeral' } }
  return {
    messagesPerTurn: 2,
    body: (responses) => ({
      model: 'm',
      max_tokens: 100,
      messages: [
        { role: 'user', content: [{ type: 'text', text: `${name}: ${LONG}`, ...getMarker(responses) }] },
        ...repeat(responses, (index) => [
          {
            role: 'assistant',
            content: [
              { type: 'text', text: `${index} ${LONG}` },
              { type: 'tool_use', id: `c${index}`, name: 'f', input: {} },
            ],
          },
          {
            role: 'user',
            content: [
              {
                type: 'tool_result',
                tool_use_id: `c${index}`,
                content: LONG,
                ...getMarker(responses - 1 - index),
              },
            ],
          },
        ]),
      ],
      system: [{ type: 'text', text: SYSTEM + name }],
      tools: [{ name: 'f', input_schema: {} }],
    }),
  }
}

const MESSAGES: Dialect = {
  lower: (body, memo) => lowerMessagesRequest(body, VOLATILE_RULES, memo),
  createConversation: (name) => createMessagesConversation(name, false),
}

const MARKED: Dialect = { ...MESSAGES, createConversation: (name) => createMessagesConversation(name, true) }

const RESPONSES: Dialect = {
  lower(body, memo) {
    const request = checkResponsesRequest(body, memo)
    return lowerResponsesRequest(request, [], request.input as InputItem[], memo).lowered
  },
  createConversation: (name) => ({
    messagesPerTurn: 2,
    body: (responses) => ({
      model: 'm',
      instructions: SYSTEM + name,
      input: [
        { type: 'message', role: 'user', content: [{ type: 'input_text', text: `${name}: ${LONG}` }] },
        ...repeat<object>(responses, (index) => [
          { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: LONG }] },
          { type: 'function_call', call_id: `c${index}`, name: 'f', arguments: '{}' },
          { type: 'function_call_output', call_id: `c${index}`, output: `${index} ${LONG}` },
        ]),
      ],
      tools: [{ type: 'function', name: 'f', parameters: {} }],
    }),
  }),
}

/**
 * With each request the agent's last message but one loses its marker: it is another object with the same
 * content.
 */
const MOVED_MARKERS = 3

const DIALECTS = { CHAT, MESSAGES, MARKED, RESPONSES }

interface Costs {
  /** Elements of the request that were parsed and checked. */
  parsed: number
  /** Objects that a dialect created for parts of the request. */
  steps: number
  /** Messages that were serialized as JSON. */
  written: number
  /** Messages that matching read. */
  keyed: number
  /** Messages that were sent to the store's writer. */
  sent: number
  /** Bytes of messages that were serialized for the engine. */
  encoded: number
}

/** A session without sockets, from the bytes of a request to the store. */
class Session {
  readonly #memory = new SessionMemory()
  readonly #prompts = new ChatPrompts(async () => 0)
  readonly #sender = new TurnSender()
  readonly #keys = new WeakSet<object>()
  #requestCount = 0

  async send(dialect: Dialect, body: object): Promise<Costs> {
    const { requests, messages } = this.#memory
    const { parsed, steps } = requests
    const { written, encoded } = messages
    const lowered = dialect.lower(requests.read(Buffer.from(JSON.stringify(body))).value, requests)
    const request = serializeRequestTexts(lowered, this.#memory)
    await this.#respond(lowered, request.lastMessage)
    messages.getJsonUpTo(request.lastMessage!)
    return {
      parsed: requests.parsed - parsed,
      steps: requests.steps - steps,
      written: messages.written - written,
      keyed: this.#countNewKeys(request.lastMessage),
      sent: this.#record(request),
      encoded: messages.encoded - encoded,
    }
  }

  async #respond(lowered: DialectRequest, lastMessage: Message | undefined): Promise<void> {
    const ids = { requestId: `r${this.#requestCount++}`, sessionId: 's' }
    const prompt = await this.#prompts.begin({ ...lowered, ...ids, lastMessage }, this.#memory)
    await prompt.prepareToRead()
  }

  #countNewKeys(last: Message | undefined): number {
    const added = getMessagesBetween(undefined, last)
      .map(getMessageKey)
      .filter((key) => !this.#keys.has(key))
    for (const key of added) this.#keys.add(key)
    return added.length
  }

  #record(request: ReturnType<typeof serializeRequestTexts>): number {
    const { sent, applyReply } = this.#sender.pack({ ...aTurn('t'), ...request })
    const { base, texts } = sent.messages
    const messages = { node: this.#requestCount, depth: base.depth + texts.length, link: 'x' }
    applyReply({ messages, prompt: messages, tools: request.tools === null ? null : 1 })
    return texts.length
  }
}

for (const [name, dialect] of Object.entries(DIALECTS)) {
  t.test(`${name}: turn 200 of a session costs the same as turn 20`, async (t) => {
    const session = new Session()
    const conversation = dialect.createConversation('main')
    const costs: Costs[] = []
    for (let turn = 0; turn <= 200; turn += 1)
      costs.push(await session.send(dialect, conversation.body(turn)))
    const { encoded: early, ...counts } = costs[20]!
    const { encoded: late, ...lateCounts } = costs[200]!
    t.same(lateCounts, counts)
    // Numbers in its texts have one more digit.
    t.ok(late <= early + 10, `${early} and ${late} bytes`)
    t.equal(counts.written, conversation.messagesPerTurn + (dialect === MARKED ? MOVED_MARKERS : 0))
    t.equal(counts.sent, conversation.messagesPerTurn)
    t.equal(counts.keyed, conversation.messagesPerTurn)
  })

  t.test(`${name}: an agent that alternates with two subagents costs what each would alone`, async (t) => {
    const session = new Session()
    const conversations = ['main', 'helper', 'other'].map((each) => dialect.createConversation(each))
    const costs: Costs[] = []
    for (let turn = 0; turn <= 30; turn += 1) {
      for (const conversation of conversations)
        costs.push(await session.send(dialect, conversation.body(turn)))
    }
    const alone = new Session()
    let last: Costs | undefined
    for (let turn = 0; turn <= 30; turn += 1) last = await alone.send(dialect, conversations[0]!.body(turn))
    for (const each of costs.slice(-3)) t.match(each, { ...last, encoded: Number })
  })

  t.test(
    `${name}: the second request after a restart reuses the complete state of the first one`,
    async (t) => {
      const conversation = dialect.createConversation('main')
      const restarted = new Session()
      await restarted.send(dialect, conversation.body(10))
      const { encoded: _, ...counts } = await restarted.send(dialect, conversation.body(10))
      t.same(counts, { parsed: 0, steps: 0, written: 0, keyed: 0, sent: 0 })
    },
  )
}
