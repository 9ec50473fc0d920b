/** Completions of models in the markup of their family, and the echoes of agents' clients. */
import fc from 'fast-check'
import type { Completion } from '../../../../src/protocol/canonical/completion.ts'
import type { ChatMessage, Tool, ToolCall } from '../../../../src/protocol/canonical/messages.ts'

interface SampledToolCall {
  name: string
  args: Record<string, unknown>
}

export interface Sample {
  content: string
  reasoning: string | undefined
  calls: SampledToolCall[]
  /** The share of the completion before the length limit; undefined: the completion ends itself. */
  cutAt: number | undefined
  /** Whether the tokens differ from the tokenizer's for the text. */
  isSplit: boolean
  /** The number of tokens per chunk. */
  chunkTokens: number
}

interface PlannedTurn {
  sample: Sample
  /** Another completion of the same prompt; `continuedSample` selects the one that the agent continues. */
  other: Sample | undefined
  continuedSample: 'first' | 'second'
  echo: EchoHabit[]
  results: string[]
  question: string | undefined
  stream: boolean
}

export interface PlannedConversation {
  opening: ChatMessage[]
  tools: Tool[] | undefined
  turns: PlannedTurn[]
}

const oddText = fc.constantFrom(
  ' \n',
  '\n\n',
  'e\u0301 \u200d',
  '👩‍👩‍👧‍👦',
  '中文，日本語',
  '<think>hm</think>',
  '</tool_response>',
  '\u0000\ufeff\u2028',
  '  leading',
  '▁',
  "don't I'LL 123 456",
  '{"name": "bash"',
)
const text = fc
  .array(fc.oneof(oddText, fc.string({ unit: 'grapheme', maxLength: 12 })), { minLength: 1, maxLength: 4 })
  .map((parts) => parts.join(''))

const sometimes = <Value>(value: fc.Arbitrary<Value>): fc.Arbitrary<Value | undefined> =>
  fc.oneof({ weight: 3, arbitrary: fc.constant(undefined) }, { weight: 1, arbitrary: value })

const toolNames = ['bash', 'get_weather']
const TOOLS: Tool[] = toolNames.map((name) => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties: { a: { type: 'string' } } } },
}))

const call: fc.Arbitrary<SampledToolCall> = fc
  .record({ name: fc.constantFrom(...toolNames), a: text, b: fc.nat(9) })
  .map(({ name, a, b }) => ({ name, args: { b, a, c: { d: null } } }))

const HABITS = [
  'trim',
  'spellOutNull',
  'parts',
  'rewriteArguments',
  'renameCalls',
  'dropReasoning',
  'lastReasoning',
] as const
type EchoHabit = (typeof HABITS)[number]

/** @param withCalls whether the model's template supports tools at all */
export function planConversations(withCalls: boolean): fc.Arbitrary<PlannedConversation> {
  const sample: fc.Arbitrary<Sample> = fc.record({
    content: fc.oneof(text, fc.constant('')),
    reasoning: fc.option(text, { nil: undefined }),
    calls: withCalls ? fc.array(call, { maxLength: 3 }) : fc.constant([]),
    cutAt: sometimes(fc.double({ min: 0, max: 1, noNaN: true })),
    isSplit: sometimes(fc.constant(true)).map(Boolean),
    chunkTokens: fc.integer({ min: 1, max: 9 }),
  })
  const turn: fc.Arbitrary<PlannedTurn> = fc.record({
    sample,
    other: sometimes(sample),
    continuedSample: fc.constantFrom('first', 'second'),
    echo: fc.subarray([...HABITS]),
    results: fc.array(text, { minLength: 3, maxLength: 3 }),
    question: fc.option(text, { nil: undefined, freq: 2 }),
    stream: fc.boolean(),
  })
  return fc.record({
    opening: fc
      .tuple(fc.option(text), text)
      .map(([rule, question]): ChatMessage[] => [
        ...(rule === null ? [] : [{ role: 'system', content: rule } as const]),
        { role: 'user', content: question },
      ]),
    tools: withCalls ? fc.constantFrom(TOOLS, undefined) : fc.constant(undefined),
    turns: fc.array(turn, { minLength: 1, maxLength: 12, size: 'max' }),
  })
}

/** The markup of tool calls, by the name of the family's parser. */
const TOOL_CALL_MARKUP: Record<string, (calls: SampledToolCall[]) => string> = {
  hermes: (calls) =>
    calls.map((call) => `\n<tool_call>\n${toToolCallJson(call, 'arguments')}\n</tool_call>`).join(''),
  llama3_json: (calls) => calls.map((call) => toToolCallJson(call, 'parameters')).join('; '),
  deepseek_v3: (calls) => {
    const blocks = calls.map(
      ({ name, args }) =>
        `<｜tool▁call▁begin｜>function<｜tool▁sep｜>${name}\n\`\`\`json\n${JSON.stringify(args)}\n\`\`\`<｜tool▁call▁end｜>`,
    )
    return `<｜tool▁calls▁begin｜>${blocks.join('\n')}<｜tool▁calls▁end｜>`
  },
}

/** Indents the JSON of some tool calls, because a model may space its JSON freely. */
function toToolCallJson({ name, args }: SampledToolCall, key: string): string {
  return JSON.stringify({ name, [key]: args }, null, name === 'bash' ? 1 : 0)
}

/** Returns the text of a completion in the markup of a model family. */
export function getMarkup({ content, reasoning, calls }: Sample, family: string): string {
  const thought = reasoning === undefined ? '' : `<think>\n${reasoning}\n</think>\n\n`
  const written = calls.length > 0 ? TOOL_CALL_MARKUP[family]!(calls) : ''
  // Llama's tool calls are the complete message.
  return family === 'llama3_json' && written !== '' ? written : thought + content + written
}

/** Returns the completion as its agent echoes it. */
export function getEcho(completion: Completion, habits: readonly EchoHabit[], turn: number): ChatMessage {
  const has = (habit: EchoHabit) => habits.includes(habit)
  const content = has('trim') ? (completion.content?.trim() ?? null) : completion.content
  const calls = completion.toolCalls.map((call, index): ToolCall => {
    const { name, arguments: written } = call.function
    return {
      id: has('renameCalls') ? `t${turn}c${index}`.padStart(9, '0') : call.id,
      type: 'function',
      function: { name, arguments: has('rewriteArguments') ? rewrite(written) : written },
    }
  })
  return {
    role: 'assistant',
    content: has('parts') && content ? toParts(content) : content,
    ...(calls.length > 0 && { tool_calls: calls }),
    ...getReasoning(completion, habits),
    ...(has('spellOutNull') && { refusal: null, function_call: null, audio: null }),
  } as ChatMessage
}

function getReasoning({ reasoning }: Completion, habits: readonly EchoHabit[]): object {
  if (reasoning === null || habits.includes('dropReasoning')) return {}
  // openai-node's streams leave the last chunk only.
  const isCut = habits.includes('lastReasoning')
  return { reasoning_content: isCut ? [...reasoning].slice(-2).join('') : reasoning }
}

/** Returns the arguments with their keys in reverse order, indented. */
function rewrite(written: string): string {
  const args = Object.entries(JSON.parse(written) as object)
  return JSON.stringify(Object.fromEntries(args.reverse()), null, 2)
}

function toParts(content: string): { type: 'text'; text: string }[] {
  const characters = [...content]
  const cut = Math.floor(characters.length / 2)
  return [characters.slice(0, cut), characters.slice(cut)]
    .filter((part) => part.length > 0)
    .map((part) => ({ type: 'text', text: part.join('') }))
}

/** A conversation that no template renders differently later. */
export const PLAIN_CONVERSATION: PlannedConversation = {
  opening: [{ role: 'user', content: 'Hello.' }],
  tools: undefined,
  turns: ['one', 'two', 'three', 'four'].map((word, index) => ({
    sample: {
      content: `I say ${word}`,
      reasoning: undefined,
      calls: [],
      // The second completion lacks only its end of turn.
      cutAt: index === 1 ? 1 : undefined,
      isSplit: false,
      chunkTokens: 2,
    },
    other: undefined,
    continuedSample: 'first',
    echo: [],
    results: [],
    question: `You said ${word}?`,
    stream: true,
  })),
}
