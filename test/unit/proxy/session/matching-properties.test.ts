import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import t from 'tap'
import { MessageTree } from '../../../../src/protocol/canonical/conversation.ts'
import type { Tool } from '../../../../src/protocol/canonical/messages.ts'
import { PrefixIndex, type PrefixMatch } from '../../../../src/proxy/session/matching/prefix-index.ts'
import { createConversation } from '../../../helpers/messages.ts'
import { limitRuns } from '../../../helpers/tier.ts'

/** A message as an agent writes it. */
interface Message {
  role: string
  content?: unknown
  reasoning_content?: string | null
  tool_calls?: ToolCall[] | null
  tool_call_id?: string
  [field: string]: unknown
}

interface ToolCall {
  id: string
  type?: string
  function: { name: string; arguments: unknown }
}

// The naive model: complete histories, compared message by message, with its own interpretation of messages.

interface ModelTurn {
  name: string
  order: number
  tools: unknown
  parent: ModelTurn | undefined
  /** The request with the parent's messages as they were sampled. */
  request: Message[]
  /** The request as sent: its results name the tool calls by these ids. */
  sent: Message[]
  completion: Message
}

class Model {
  readonly #turns: ModelTurn[] = []

  match(messages: Message[], tools: unknown): { parent: ModelTurn | undefined; shared: number } {
    const matching = this.#turns.filter(
      (turn) =>
        isDeepStrictEqual(turn.tools, tools) && extendsHistory(messages, createHistory(turn), turn.sent),
    )
    const shared = Math.max(0, ...matching.map((turn) => createHistory(turn).length))
    const deepest = matching.filter((turn) => createHistory(turn).length === shared)
    const likeness = (turn: ModelTurn) => getLikeness(messages, createHistory(turn))
    const best = Math.max(...deepest.map(likeness))
    const candidates = deepest
      .filter((turn) => likeness(turn) === best)
      .sort((left, right) => right.order - left.order)
    const continuations = (parent: ModelTurn) => this.#turns.filter((turn) => turn.parent === parent)
    const isSameRequest = ({ request, sent }: ModelTurn) =>
      request.length === messages.length && extendsHistory(messages, request, sent)
    const parent =
      candidates.find((turn) => continuations(turn).some(isSameRequest)) ??
      candidates.find((turn) => continuations(turn).length === 0) ??
      candidates[0]
    return { parent, shared }
  }

  add(turn: ModelTurn): void {
    this.#turns.push(turn)
  }
}

const createHistory = ({ request, completion: response }: ModelTurn) => [...request, response]

function extendsHistory(messages: Message[], history: Message[], sent: Message[]): boolean {
  return (
    history.length <= messages.length &&
    history.every((recorded, index) =>
      isEcho(recorded, messages[index]!, findToolCall(sent, index), findToolCall(messages, index)),
    )
  )
}

/**
 * Returns the tool call of a tool message, as message and index within it; without a match, the id.
 */
function findToolCall(messages: Message[], index: number): string | undefined {
  const id = messages[index]?.tool_call_id
  for (let before = index - 1; before >= 0; before--) {
    const position = messages[before]!.tool_calls?.findLastIndex((call) => call.id === id) ?? -1
    if (position !== -1) return `${before}.${position}`
  }
  return id
}

function isEcho(recorded: Message, sent: Message, recordedResult?: string, sentResult?: string): boolean {
  if (recorded.role !== sent.role) return false
  if (recorded.role !== 'assistant') {
    return getText(recorded) === getText(sent) && recordedResult === sentResult
  }
  const sentReasoning = (sent.reasoning_content ?? '').trim()
  if (sentReasoning !== '' && sentReasoning !== (recorded.reasoning_content ?? '').trim()) return false
  const [calls, sentCalls] = [recorded.tool_calls ?? [], sent.tool_calls ?? []]
  return (
    getText(recorded).trim() === getText(sent).trim() &&
    calls.length === sentCalls.length &&
    calls.every(({ function: sampled }, index) => {
      const echoed = sentCalls[index]!.function
      return sampled.name === echoed.name && areArgumentsEchoed(sampled.arguments, echoed.arguments)
    })
  )
}

function getText({ content }: Message): string {
  if (Array.isArray(content)) return content.map((part) => part.text).join('')
  return (content as string | null | undefined) ?? ''
}

function areArgumentsEchoed(sampled: unknown, echoed: unknown): boolean {
  const [before, after] = [getObject(sampled), getObject(echoed)]
  if (before !== undefined) return isDeepStrictEqual(before, after)
  if (after === undefined) return String(sampled).trim() === String(echoed).trim()
  // The generated repairs of malformed arguments are these two; all other objects have new content.
  return isDeepStrictEqual(after, {}) || isDeepStrictEqual(after, REPAIRED)
}

function getObject(args: unknown): unknown {
  if (args === null || args === '') return {}
  if (typeof args !== 'string') return args
  try {
    return JSON.parse(args)
  } catch {
    return undefined
  }
}

function getLikeness(messages: Message[], history: Message[]): number {
  return history.reduce((sum, recorded, index) => {
    if (recorded.role !== 'assistant') return sum
    const sent = messages[index]!
    const same = (read: (message: Message) => unknown) =>
      JSON.stringify(read(recorded)) === JSON.stringify(read(sent))
    return (
      sum +
      (same((message) => message.tool_calls?.map(({ id }) => id) ?? []) ? 8 : 0) +
      (same((message) => message.tool_calls?.map((call) => call.function.arguments) ?? []) ? 4 : 0) +
      (same((message) => spaceAround(getText(message))) ? 2 : 0) +
      (same((message) => (message.reasoning_content ?? '').trim()) ? 1 : 0)
    )
  }, 0)
}

const spaceAround = (text: string) => [/^\s*/.exec(text)![0].length, /\s*$/.exec(text)![0].length]

// Actions of agents.

const MALFORMED = '{"path": "a", "n": 1'
const REPAIRED = { path: 'a', n: 1 }
const ARGUMENTS = ['{}', '{"n": 1, "path": "a"}', '{"path":"a","n":1}', '{"path":"b"}', MALFORMED]

/** Few values, so that completions are often equal or similar. */
const responses: fc.Arbitrary<Message> = fc
  .record({
    content: fc.constantFrom('yes', 'yes\n', ' yes', 'no', ''),
    reasoning: fc.constantFrom(null, null, 'because', ' because', 'why not'),
    calls: fc.array(
      fc.record({ id: fc.constantFrom('c1', 'c2', 'c3'), args: fc.constantFrom(...ARGUMENTS) }),
      { maxLength: 2 },
    ),
  })
  .map(({ content, reasoning, calls }) => ({
    role: 'assistant',
    content,
    reasoning_content: reasoning,
    tool_calls: calls.map(({ id, args }) => ({
      id,
      type: 'function',
      function: { name: 'run', arguments: args },
    })),
  }))

/** How a client writes an assistant message; each flag is one tolerance. */
const tidiers = {
  trims: (message: Message) => ({ ...message, content: getText(message).trim() }),
  pads: (message: Message) => ({ ...message, content: `\n ${getText(message)} ` }),
  splitsText: (message: Message) => ({
    ...message,
    content: [...getText(message)].map((text) => ({ type: 'text', text })),
  }),
  saysNull: (message: Message) => ({
    ...message,
    content: message.content === '' ? null : message.content,
    refusal: null,
    function_call: null,
    annotations: [],
    name: null,
  }),
  attachesMetadata: (message: Message) => ({ ...message, provider_specific_fields: { token_ids: [1] } }),
  leavesReasoningOut: ({ reasoning_content: _, ...message }: Message) => message,
  trimsReasoning: (message: Message) => ({
    ...message,
    reasoning_content: message.reasoning_content?.trim() ?? '',
  }),
  respacesArguments: rewriteArguments((args) => JSON.stringify(args, null, 1)),
  reordersArguments: rewriteArguments((args) =>
    JSON.stringify(Object.fromEntries(Object.entries(args as object).reverse())),
  ),
  sendsObjects: rewriteArguments((args) => args),
  emptiesMalformed: rewriteArguments(undefined, '{}'),
  repairsMalformed: rewriteArguments(undefined, JSON.stringify(REPAIRED)),
  leavesNoEmptyCalls: ({ tool_calls: calls, ...message }: Message) =>
    calls?.length ? { ...message, tool_calls: calls } : message,
} satisfies Record<string, (message: Message) => Message>

function rewriteArguments(rewrite: ((args: unknown) => unknown) | undefined, malformed?: string) {
  const getArguments = (written: unknown) => {
    const args = getObject(written)
    if (args === undefined) return malformed ?? written
    return rewrite === undefined ? written : rewrite(args)
  }
  return (message: Message): Message => ({
    ...message,
    tool_calls: (message.tool_calls ?? []).map((call) => ({
      ...call,
      function: { ...call.function, arguments: getArguments(call.function.arguments) },
    })),
  })
}

type Tidier = keyof typeof tidiers
const TIDIERS = Object.keys(tidiers) as Tidier[]

function tidy(messages: Message[], habits: readonly Tidier[], renamesIds: boolean): Message[] {
  const written = messages.map((message) =>
    message.role === 'assistant'
      ? habits.reduce<Message>((echo, habit) => tidiers[habit](echo), message)
      : message,
  )
  return renamesIds ? renameIds(written) : written
}

/** Gives all tool calls new ids, also where a model used one id twice. */
function renameIds(messages: Message[]): Message[] {
  const names = new Map<string, string>()
  let count = 0
  return messages.map((message) => {
    if (message.tool_call_id !== undefined) {
      return { ...message, tool_call_id: names.get(message.tool_call_id) ?? message.tool_call_id }
    }
    if (!message.tool_calls) return message
    const renamed = message.tool_calls.map((call) => ({ ...call, id: `renamed_${count++}` }))
    for (const [index, { id }] of message.tool_calls.entries()) names.set(id, renamed[index]!.id)
    return { ...message, tool_calls: renamed }
  })
}

const words = fc.constantFrom('go', 'stop', 'more')
const user = (content: string): Message => ({ role: 'user', content })

/**
 * Returns the messages that an agent adds after a completion: results of its tool calls, in either order, or
 * its own text.
 */
function replyTo(response: Message, word: string, swapsResults: boolean): Message[] {
  const results = (response.tool_calls ?? []).map(({ id }) => ({
    role: 'tool',
    tool_call_id: id,
    content: word,
  }))
  if (swapsResults) results.reverse()
  return results.length > 0 ? results : [user(word)]
}

const TOOLS = [null, [{ type: 'function', function: { name: 'run' } }]]

const read = (messages: Message[], tools: unknown) => createConversation(messages, tools as Tool[] | null)

const sample = ({ content, reasoning_content, tool_calls }: Message) => ({
  content: content as string,
  reasoning: reasoning_content ?? null,
  toolCalls: (tool_calls ?? []) as {
    id: string
    type: 'function'
    function: { name: string; arguments: string }
  }[],
})

// Random sessions: the index compared with the model.

interface InFlight {
  messages: Message[]
  tools: unknown
  matched: PrefixMatch<ModelTurn>
  expected: { parent: ModelTurn | undefined; shared: number }
  completion: Message
  name: string
}

/** The state of one session in the index and in the model. */
class SessionComparison {
  readonly #index = new PrefixIndex<ModelTurn>()
  readonly #model = new Model()
  readonly #inFlight: InFlight[] = []
  readonly #completed: InFlight[] = []
  readonly #tree = new MessageTree()
  #requestCount = 0

  sendRequest(messages: Message[], tools: unknown, response: Message): void {
    // Messages of earlier requests are the same objects, so that the index may start at one of them.
    const matched = this.#index.match(createConversation(messages, tools as Tool[] | null, this.#tree))
    const expected = this.#model.match(messages, tools)
    if (matched.parent?.turn !== expected.parent || matched.sharedMessages !== expected.shared) {
      const name = (turn: ModelTurn | undefined) => turn?.name ?? 'none'
      throw new Error(
        `matched ${name(matched.parent?.turn)}:${matched.sharedMessages}, expected ${name(expected.parent)}:${expected.shared}`,
      )
    }
    this.#inFlight.push({
      messages,
      tools,
      matched,
      expected,
      completion: response,
      name: `t${this.#requestCount++}`,
    })
  }

  complete(index: number): void {
    const ended = this.#inFlight.splice(index % this.#inFlight.length, 1)[0]
    if (ended === undefined) return
    const { matched, expected, messages, tools, completion: response, name } = ended
    const shared = expected.parent === undefined ? [] : createHistory(expected.parent)
    const request = [...shared, ...messages.slice(expected.shared)]
    const { order } = matched
    const turn = {
      name,
      order,
      tools,
      parent: expected.parent,
      request,
      sent: messages,
      completion: response,
    }
    this.#model.add(turn)
    this.#index.add(matched, sample(response), turn)
    this.#completed.push(ended)
  }

  /** Returns a completed request to continue; undefined if there is none. */
  getCompleted(index: number) {
    return this.#completed[index % Math.max(1, this.#completed.length)]
  }
}

const steps = fc.record({
  kind: fc.constantFrom('start', 'continue', 'continue', 'continue', 'continue', 'edit', 'compact', 'retry'),
  position: fc.nat(20),
  word: words,
  completion: responses,
  tools: fc.constantFrom(...TOOLS),
  habits: fc.subarray(TIDIERS),
  renamesIds: fc.boolean(),
  swapsResults: fc.boolean(),
  /** The number of requests in flight that are completed after the step. */
  completions: fc.constantFrom(0, 1, 1, 1, 2),
})
type Step = typeof steps extends fc.Arbitrary<infer T> ? T : never

function applyStep(comparison: SessionComparison, step: Step): void {
  const { kind, position: index, word, completion: response, tools, swapsResults } = step
  const previous = comparison.getCompleted(index)
  if (kind === 'start' || previous === undefined) comparison.sendRequest([user(word)], tools, response)
  else {
    const history = [
      ...previous.messages,
      previous.completion,
      ...replyTo(previous.completion, word, swapsResults),
    ]
    const messages = {
      continue: () => history,
      retry: () => previous.messages,
      compact: () => [user(`all in all: ${word}`), ...history.slice(-2)],
      edit: () =>
        history.with(index % history.length, { ...history[index % history.length]!, content: 'edited' }),
    }[kind]()
    comparison.sendRequest(tidy(messages, step.habits, step.renamesIds), previous.tools, response)
  }
  for (let count = 0; count < step.completions; count++) comparison.complete(index)
}

t.test('random sessions are matched as by a model that compares complete histories', async (t) => {
  fc.assert(
    fc.property(fc.array(steps, { minLength: 1, maxLength: 40, size: 'max' }), (script) => {
      const comparison = new SessionComparison()
      for (const step of script) applyStep(comparison, step)
    }),
    { numRuns: limitRuns(500) },
  )
  t.pass('each request found the parent of the model')
})

// One conversation.

const conversations = fc
  .record({
    completions: fc.array(responses, { minLength: 1, maxLength: 8 }),
    swapsResults: fc.boolean(),
  })
  .map(({ completions: replies, swapsResults }) => {
    const messages: Message[] = [{ role: 'system', content: 'be good' }, user('hi')]
    const requests = replies.map((response, index) => {
      const request = [...messages]
      messages.push(response, ...replyTo(response, `word ${index}`, swapsResults))
      return request
    })
    return { completions: replies, requests, next: messages }
  })

function createIndex({
  completions: replies,
  requests,
}: {
  completions: Message[]
  requests: Message[][]
}): PrefixIndex<number> {
  const index = new PrefixIndex<number>()
  for (const [position, request] of requests.entries()) {
    index.add(index.match(read(request, null)), sample(replies[position]!), position)
  }
  return index
}

const match = (index: PrefixIndex<number>, messages: Message[]) => {
  const { parent, sharedMessages } = index.match(read(messages, null))
  return [parent?.turn, sharedMessages]
}

for (const tidier of [...TIDIERS, 'renamesIds'] as const) {
  t.test(`a conversation whose agent ${tidier} is continued from its last turn`, async (t) => {
    fc.assert(
      fc.property(conversations, (conversation) => {
        const echo = tidy(conversation.next, tidier === 'renamesIds' ? [] : [tidier], tidier === 'renamesIds')
        const last = conversation.requests.length - 1
        t.strictSame(match(createIndex(conversation), echo), [last, conversation.requests[last]!.length + 1])
      }),
      { numRuns: limitRuns(40) },
    )
  })
}

t.test(
  'a conversation whose agent does all of this, differently on every request, is continued from its last turn',
  async (t) => {
    const habits = fc.shuffledSubarray(TIDIERS)
    fc.assert(
      fc.property(
        conversations,
        fc.infiniteStream(habits),
        fc.boolean(),
        (conversation, allHabits, renamesIds) => {
          const write = (messages: Message[]) => tidy(messages, allHabits.next().value!, renamesIds)
          const index = createIndex({ ...conversation, requests: conversation.requests.map(write) })
          const last = conversation.requests.length - 1
          t.strictSame(match(index, write(conversation.next)), [
            last,
            conversation.requests[last]!.length + 1,
          ])
        },
      ),
      { numRuns: limitRuns(150) },
    )
  },
)

/** Each edits a message so that it is another one; undefined: it has nothing to edit. */
const edits: Record<string, (message: Message) => Message | undefined> = {
  text: (message) => ({ ...message, content: `${getText(message)}!` }),
  role: (message) => ({ ...message, role: 'developer' }),
  name: (message) => ({ ...message, name: 'someone else' }),
  reasoning: (message) =>
    message.role === 'assistant' ? { ...message, reasoning_content: 'on second thought' } : undefined,
  'white space outside of echoes': (message) =>
    message.role === 'assistant' ? undefined : { ...message, content: `${getText(message)} ` },
  'the last tool call': ({ tool_calls: calls, ...message }) =>
    calls?.length ? { ...message, tool_calls: calls.slice(0, -1) } : undefined,
  'a function': (message) =>
    editCall(message, (call) => ({ ...call, function: { ...call.function, name: 'walk' } })),
  arguments: (message) =>
    editCall(message, (call) => ({ ...call, function: { ...call.function, arguments: '{"path":"c"}' } })),
  'the tool call of a result': (message) =>
    message.role === 'tool' ? { ...message, tool_call_id: 'unknown' } : undefined,
}

function editCall(message: Message, edit: (call: ToolCall) => ToolCall): Message | undefined {
  const [first, ...others] = message.tool_calls ?? []
  return first && { ...message, tool_calls: [edit(first), ...others] }
}

for (const [kind, edit] of Object.entries(edits)) {
  t.test(`an edit of ${kind} ends the match before the edited message`, async (t) => {
    fc.assert(
      fc.property(conversations, fc.nat(), fc.subarray(TIDIERS), (conversation, anyPosition, habits) => {
        const editable = conversation.next.flatMap((message, index) =>
          edit(message) === undefined ? [] : [index],
        )
        fc.pre(editable.length > 0)
        const i = editable[anyPosition % editable.length]!
        const tidied = tidy(
          conversation.next,
          habits.filter((habit) => habit !== 'leavesReasoningOut'),
          false,
        )
        const edited = tidied.with(i, edit(tidied[i]!)!)
        const completed = conversation.requests.filter((request) => request.length < i)
        const expected =
          completed.length === 0 ? [undefined, 0] : [completed.length - 1, completed.at(-1)!.length + 1]
        t.strictSame(match(createIndex(conversation), edited), expected)
      }),
      { numRuns: limitRuns(40) },
    )
  })
}
