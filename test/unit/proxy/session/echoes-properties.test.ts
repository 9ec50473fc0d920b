/**
 * Random sessions of agents that tidy, prune, reorder and rename tool calls, fork, sample n completions,
 * compact their history, reuse ids on other branches and send foreign histories: each request continues the
 * deepest turn whose complete history it contains, and no other.
 */
import fc from 'fast-check'
import t from 'tap'
import { type Message, MessageTree } from '../../../../src/protocol/canonical/conversation.ts'
import type { ChatMessage, ToolCall } from '../../../../src/protocol/canonical/messages.ts'
import { PrefixIndex } from '../../../../src/proxy/session/matching/prefix-index.ts'
import { rebuildIndex } from '../../../../src/proxy/session/matching/rebuild-index.ts'
import { ToolCallIds } from '../../../../src/proxy/session/matching/tool-call-ids.ts'
import type { ToolCallRewritePolicy } from '../../../../src/proxy/store/port/turn-store.ts'
import { createConversation } from '../../../helpers/messages.ts'

/** Forms in which a response with tool calls is echoed. */
const FORMS = ['unchanged', 'filled in', 'renamed', 'reordered', 'reworded', 'pruned'] as const
type EchoForm = (typeof FORMS)[number]

/** A message and its key: to a naive reader, messages with the same key are equal. */
interface KeyedMessage {
  message: ChatMessage
  key: string
}

interface Completion {
  name: string
  content: string | null
  calls: ToolCall[]
}

interface Turn {
  completion: Completion
  /** Keys of its request and its completion. */
  history: string[]
  request: KeyedMessage[]
}

const LONG = 'word'.repeat(500)

/** Returns an agent's echo of a completion, with its expected key. */
function getEcho(response: Completion, form: EchoForm, edited: ToolCallRewritePolicy): KeyedMessage {
  const { name, content, calls } = response
  const own = { role: 'assistant' as const, content }
  if (calls.length === 0) return { message: own, key: name }
  const change = (edit: (call: ToolCall) => ToolCall['function']) =>
    calls.map((call) => ({ ...call, function: edit(call) }))
  const echoed: Record<EchoForm, object> = {
    unchanged: { tool_calls: calls },
    'filled in': {
      tool_calls: change(({ function: { name, arguments: args } }) => ({
        name,
        arguments: JSON.stringify({ ...JSON.parse(args), replace_all: false }),
      })),
    },
    renamed: { tool_calls: change(() => ({ name: 'invalid', arguments: JSON.stringify({ LONG }) })) },
    reordered: { tool_calls: calls.toReversed() },
    reworded: { tool_calls: calls, content: 'Something else.' },
    pruned: {
      tool_calls: change(({ function: { name } }) => ({ name, arguments: '{"text":"(cut)"}' })),
      content: null,
    },
  }
  const isSame =
    form === 'unchanged' ||
    (form === 'reordered' && calls.length === 1) ||
    edited === 'keep' ||
    (edited === 'auto' && form !== 'pruned')
  return { message: { ...own, ...echoed[form] } as ChatMessage, key: isSame ? name : `${name} ${form}` }
}

const action = fc.record({
  kind: fc.constantFrom(
    'continue',
    'continue',
    'continue',
    'continue',
    'fork',
    'compact',
    'repeat',
    'foreign',
    'tools',
  ),
  /** Index of an earlier conversation. */
  from: fc.nat(1_000),
  calls: fc.nat(2),
  samples: fc.constantFrom(1, 1, 1, 2, 3),
  form: fc.constantFrom(...FORMS),
  oldForm: fc.constantFrom(...FORMS),
  isExact: fc.constantFrom(true, true, true, false),
})

type Action = typeof action extends fc.Arbitrary<infer Value> ? Value : never

class Session {
  readonly edited: ToolCallRewritePolicy
  readonly index: PrefixIndex<Turn>
  readonly turns: Turn[] = []
  /** For a rebuild, in the order of requests. */
  readonly records: { turn: Turn; isExact: boolean; lastMessage: Message | undefined }[] = []
  readonly requests: KeyedMessage[][] = []
  readonly tree = new MessageTree()
  /** The tree of a reader after a restart. */
  readonly recorded = new MessageTree()
  readonly ids = new ToolCallIds()
  #conversations: KeyedMessage[][] = [[]]
  #count = 0

  constructor(edited: ToolCallRewritePolicy) {
    this.edited = edited
    this.index = new PrefixIndex(edited)
  }

  apply({ kind, from, calls, samples, form, oldForm, isExact }: Action): void {
    const before = this.#conversations[from % this.#conversations.length]!
    const conversation = kind === 'continue' ? this.#conversations.at(-1)! : before
    const request = this.#createRequest(kind, conversation, oldForm)
    for (let sample = 0; sample < samples; sample += 1) {
      const response = this.#createCompletion(calls)
      this.#record(request, response, isExact)
      const results = response.calls.map(({ id }, index): KeyedMessage => {
        const content = `result ${response.name} ${index}`
        return { message: { role: 'tool', tool_call_id: id, content }, key: content }
      })
      this.#conversations.push([...request, getEcho(response, form, this.edited), ...results])
    }
  }

  #createRequest(kind: string, conversation: KeyedMessage[], form: EchoForm): KeyedMessage[] {
    const question = this.#user(`question ${this.#count++}`)
    if (kind === 'compact') return [this.#user('summary'), ...conversation.slice(-3), question]
    if (kind === 'repeat') return [...this.#createRequest('fork', conversation.slice(0, -1), form)]
    // The tool calls of a turn, with another history.
    if (kind === 'foreign') return [this.#user('elsewhere'), ...conversation.slice(1), question]
    // An agent that prunes or tidies messages that it sent unchanged before.
    if (kind === 'tools' && this.turns.length > 0) {
      const { request, completion: response } = this.turns[this.#count % this.turns.length]!
      return [...request, getEcho(response, form, this.edited), question]
    }
    return [...conversation, question]
  }

  #user(content: string): KeyedMessage {
    return { message: { role: 'user', content }, key: `user ${content}` }
  }

  #createCompletion(calls: number): Completion {
    const name = `answer ${this.#count++}`
    const sampled = Array.from({ length: calls }, (_, index) => {
      const id = this.ids.create(index === 0 ? 'a1B2c3D4e' : undefined)
      this.ids.learn({ [id]: null })
      const args = JSON.stringify({ text: LONG, at: index })
      return { id, type: 'function' as const, function: { name: 'run', arguments: args } }
    })
    return { name, content: calls === 0 ? name : null, calls: sampled }
  }

  #record(request: KeyedMessage[], response: Completion, isExact: boolean): void {
    const call = this.index.match(createConversation(getMessages(request), null, this.tree))
    this.requests.push(request)
    const turn = { completion: response, request, history: [...request.map(({ key }) => key), response.name] }
    const lastMessage = this.recorded.addMessageTexts(request.map(({ message }) => JSON.stringify(message)))
    this.records.push({ turn, isExact, lastMessage })
    // A turn that is not exact is never continued, as in the planners.
    if (!isExact) return
    this.turns.push(turn)
    this.index.add(call, { content: response.content, reasoning: null, toolCalls: response.calls }, turn)
  }

  /** Returns the match of a naive reader: the deepest turn whose history is a prefix of the request. */
  findDeepest(request: KeyedMessage[]): Turn | undefined {
    const keys = request.map(({ key }) => key)
    const fitting = this.turns.filter(
      ({ history }) => history.length <= keys.length && history.every((key, index) => key === keys[index]),
    )
    return fitting.reduce<Turn | undefined>(
      (best, turn) => (best === undefined || turn.history.length > best.history.length ? turn : best),
      undefined,
    )
  }
}

const getMessages = (messages: readonly KeyedMessage[]) => messages.map(({ message }) => message)

t.test('a request continues the deepest turn whose complete history it contains, and no other', async (t) => {
  const seen = { joined: 0, none: 0, pruned: 0 }
  const policies = fc.constantFrom<ToolCallRewritePolicy>('auto', 'auto', 'keep', 'branch')
  await fc.assert(
    fc.asyncProperty(policies, fc.array(action, { minLength: 2, maxLength: 25 }), async (edited, actions) => {
      const session = new Session(edited)
      for (const action of actions) session.apply(action)
      const rebuilt = await rebuildIndex(
        session.records.map(({ turn, isExact, lastMessage }, index) => ({
          turn: isExact ? turn : undefined,
          turnId: String(index),
          annotations: '{}',
          status: 'completed' as const,
          lastMessage,
          tools: null,
          completionText: turn.completion.content,
          reasoning: null,
          toolCalls: JSON.stringify(turn.completion.calls),
        })),
        ({ turn }) => turn,
        undefined,
        edited,
      )
      for (const request of session.requests) {
        const expected = session.findDeepest(request)?.completion.name
        const current = session.index.match(createConversation(getMessages(request), null, session.tree))
        const afterRestart = rebuilt.match(createConversation(getMessages(request), null))
        for (const { parent, sharedMessages } of [current, afterRestart]) {
          if (
            parent?.turn.completion.name !== expected ||
            sharedMessages !== (parent?.turn.history.length ?? 0)
          ) {
            throw new Error(`${parent?.turn.completion.name} (${sharedMessages}) instead of ${expected}`)
          }
        }
        seen[expected === undefined ? 'none' : 'joined'] += 1
        if (current.edited !== undefined) seen.pruned += 1
      }
    }),
    { numRuns: 300 },
  )
  t.ok(seen.joined > 1_000 && seen.none > 300 && seen.pruned > 50, JSON.stringify(seen))
})
