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
const WAYS = ['as it was', 'filled in', 'renamed', 'reordered', 'with other words', 'pruned'] as const
type Way = (typeof WAYS)[number]

/** A message and its identity: two messages with one key are the same to a naive reader. */
interface Fields {
  message: ChatMessage
  key: string
}

interface Answer {
  name: string
  content: string | null
  calls: ToolCall[]
}

interface Turn {
  answer: Answer
  /** Keys of its request and its completion. */
  history: string[]
  request: Fields[]
}

const LONG = 'word'.repeat(500)

/** Returns an agent's echo of a completion, with its expected key. */
function getEcho(response: Answer, way: Way, edited: ToolCallRewritePolicy): Fields {
  const { name, content, calls } = response
  const own = { role: 'assistant' as const, content }
  if (calls.length === 0) return { message: own, key: name }
  const change = (of: (call: ToolCall) => ToolCall['function']) =>
    calls.map((call) => ({ ...call, function: of(call) }))
  const made: Record<Way, object> = {
    'as it was': { tool_calls: calls },
    'filled in': {
      tool_calls: change(({ function: { name, arguments: args } }) => ({
        name,
        arguments: JSON.stringify({ ...JSON.parse(args), replace_all: false }),
      })),
    },
    renamed: { tool_calls: change(() => ({ name: 'invalid', arguments: JSON.stringify({ LONG }) })) },
    reordered: { tool_calls: calls.toReversed() },
    'with other words': { tool_calls: calls, content: 'Something else.' },
    pruned: {
      tool_calls: change(({ function: { name } }) => ({ name, arguments: '{"text":"(cut)"}' })),
      content: null,
    },
  }
  const isSame =
    way === 'as it was' ||
    (way === 'reordered' && calls.length === 1) ||
    edited === 'keep' ||
    (edited === 'auto' && way !== 'pruned')
  return { message: { ...own, ...made[way] } as ChatMessage, key: isSame ? name : `${name} ${way}` }
}

const action = fc.record({
  kind: fc.constantFrom('go on', 'go on', 'go on', 'go on', 'fork', 'compact', 'again', 'foreign', 'tools'),
  /** Index of an earlier conversation. */
  of: fc.nat(1_000),
  calls: fc.nat(2),
  samples: fc.constantFrom(1, 1, 1, 2, 3),
  way: fc.constantFrom(...WAYS),
  oldWay: fc.constantFrom(...WAYS),
  isExact: fc.constantFrom(true, true, true, false),
})

type Action = typeof action extends fc.Arbitrary<infer Made> ? Made : never

class Session {
  readonly edited: ToolCallRewritePolicy
  readonly index: PrefixIndex<Turn>
  readonly turns: Turn[] = []
  /** For a rebuild, in the order of requests. */
  readonly records: { turn: Turn; isExact: boolean; lastMessage: Message | undefined }[] = []
  readonly requests: Fields[][] = []
  readonly tree = new MessageTree()
  /** The tree of a reader after a restart. */
  readonly recorded = new MessageTree()
  readonly ids = new ToolCallIds()
  #talks: Fields[][] = [[]]
  #count = 0

  constructor(edited: ToolCallRewritePolicy) {
    this.edited = edited
    this.index = new PrefixIndex(edited)
  }

  do({ kind, of, calls, samples, way, oldWay, isExact }: Action): void {
    const before = this.#talks[of % this.#talks.length]!
    const talk = kind === 'go on' ? this.#talks.at(-1)! : before
    const request = this.#createRequest(kind, talk, oldWay)
    for (let sample = 0; sample < samples; sample += 1) {
      const response = this.#createCompletion(calls)
      this.#record(request, response, isExact)
      const results = response.calls.map(({ id }, index): Fields => {
        const content = `result ${response.name} ${index}`
        return { message: { role: 'tool', tool_call_id: id, content }, key: content }
      })
      this.#talks.push([...request, getEcho(response, way, this.edited), ...results])
    }
  }

  #createRequest(kind: string, talk: Fields[], way: Way): Fields[] {
    const question = this.#user(`question ${this.#count++}`)
    if (kind === 'compact') return [this.#user('summary'), ...talk.slice(-3), question]
    if (kind === 'again') return [...this.#createRequest('fork', talk.slice(0, -1), way)]
    // The tool calls of a turn, with another history.
    if (kind === 'foreign') return [this.#user('elsewhere'), ...talk.slice(1), question]
    // An agent that prunes or tidies messages that it sent unchanged before.
    if (kind === 'tools' && this.turns.length > 0) {
      const { request, answer: response } = this.turns[this.#count % this.turns.length]!
      return [...request, getEcho(response, way, this.edited), question]
    }
    return [...talk, question]
  }

  #user(content: string): Fields {
    return { message: { role: 'user', content }, key: `user ${content}` }
  }

  #createCompletion(calls: number): Answer {
    const name = `answer ${this.#count++}`
    const made = Array.from({ length: calls }, (_, index) => {
      const id = this.ids.create(index === 0 ? 'a1B2c3D4e' : undefined)
      this.ids.learn({ [id]: null })
      const args = JSON.stringify({ text: LONG, at: index })
      return { id, type: 'function' as const, function: { name: 'run', arguments: args } }
    })
    return { name, content: calls === 0 ? name : null, calls: made }
  }

  #record(request: Fields[], response: Answer, isExact: boolean): void {
    const call = this.index.match(createConversation(getMessages(request), null, this.tree))
    this.requests.push(request)
    const turn = { answer: response, request, history: [...request.map(({ key }) => key), response.name] }
    const lastMessage = this.recorded.addMessageTexts(request.map(({ message }) => JSON.stringify(message)))
    this.records.push({ turn, isExact, lastMessage })
    // A turn that is not exact is never continued, as in the planners.
    if (!isExact) return
    this.turns.push(turn)
    this.index.add(call, { content: response.content, reasoning: null, toolCalls: response.calls }, turn)
  }

  /** Returns the match of a naive reader: the deepest turn whose history is a prefix of the request. */
  deepest(request: Fields[]): Turn | undefined {
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

const getMessages = (messages: readonly Fields[]) => messages.map(({ message }) => message)

t.test('a request continues the deepest turn whose complete history it contains, and no other', async (t) => {
  const seen = { joined: 0, none: 0, pruned: 0 }
  const edits = fc.constantFrom<ToolCallRewritePolicy>('auto', 'auto', 'keep', 'branch')
  await fc.assert(
    fc.asyncProperty(edits, fc.array(action, { minLength: 2, maxLength: 25 }), async (edited, actions) => {
      const session = new Session(edited)
      for (const one of actions) session.do(one)
      const rebuilt = await rebuildIndex(
        session.records.map(({ turn, isExact, lastMessage }, index) => ({
          turn: isExact ? turn : undefined,
          turnId: String(index),
          annotations: '{}',
          status: 'completed' as const,
          lastMessage,
          tools: null,
          completionText: turn.answer.content,
          reasoning: null,
          toolCalls: JSON.stringify(turn.answer.calls),
        })),
        ({ turn }) => turn,
        undefined,
        edited,
      )
      for (const request of session.requests) {
        const wanted = session.deepest(request)?.answer.name
        const live = session.index.match(createConversation(getMessages(request), null, session.tree))
        const afterRestart = rebuilt.match(createConversation(getMessages(request), null))
        for (const { parent, sharedMessages } of [live, afterRestart]) {
          if (parent?.turn.answer.name !== wanted || sharedMessages !== (parent?.turn.history.length ?? 0)) {
            throw new Error(`${parent?.turn.answer.name} (${sharedMessages}) instead of ${wanted}`)
          }
        }
        seen[wanted === undefined ? 'none' : 'joined'] += 1
        if (live.edited !== undefined) seen.pruned += 1
      }
    }),
    { numRuns: 300 },
  )
  t.ok(seen.joined > 1_000 && seen.none > 300 && seen.pruned > 50, JSON.stringify(seen))
})
