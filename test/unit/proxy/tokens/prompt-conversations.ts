/** Random conversations between an agent, its tools and a model for the tests of prompts. */
import fc from 'fast-check'
import type { ChatMessage, Tool, ToolCall } from '../../../../src/protocol/canonical/messages.ts'

export interface Step {
  completion: ChatMessage
  /** Whether the completion ends its turn itself; otherwise it reached the length limit. */
  ended: boolean
  /** The messages that the agent sends next. */
  next: ChatMessage[]
}

export interface Conversation {
  opening: ChatMessage[]
  tools: Tool[] | undefined
  /** The form of completions: as the template would write them, or as only a model would. */
  style: 'as_template' | 'freely'
  steps: Step[]
}

/** Each of these ends a model's turn when it is sampled, so that no completion contains them. */
const endings = ['<|im_end|>', '<|eot_id|>\n', '<end_of_turn>', '<｜end▁of▁sentence｜>']
const oddText = fc.constantFrom(
  ' \n',
  '\n\n',
  'é e\u0301 \u200d',
  '👩‍👩‍👧‍👦',
  '中文，日本語',
  '<think>hm</think>',
  '</tool_response>',
  '\u0000\ufeff\u2028',
  '  leading',
  '▁',
  '123 456',
  "don't I'LL",
)
const getText = (odd: fc.Arbitrary<string>) =>
  fc
    .array(fc.oneof(odd, fc.string({ unit: 'grapheme', maxLength: 12 })), { minLength: 1, maxLength: 4 })
    .map((parts) => parts.join(''))
const text = getText(fc.oneof(oddText, fc.constantFrom(...endings)))
const sampledText = getText(oddText)
const completionText = fc.oneof(fc.constantFrom('Fine.', 'I look.', 'a\n\nb'), sampledText)

const toolNames = ['bash', 'get_weather']
export const TOOLS: Tool[] = toolNames.map((name) => ({
  type: 'function',
  function: {
    name,
    description: 'Does it',
    parameters: { type: 'object', properties: { a: { type: 'string' } } },
  },
}))

const callNumbers = fc.integer({ min: 0, max: 999_999_999 })
const toolCall: fc.Arbitrary<ToolCall> = fc
  .record({ id: callNumbers, name: fc.constantFrom(...toolNames), value: sampledText })
  .map(({ id, name, value }) => createToolCall(name, String(id).padStart(9, '0'), value))

const user = text.map((content): ChatMessage => ({ role: 'user', content }))

const ended = fc.boolean()
const reasoning = fc.option(sampledText, { nil: undefined })

const chatStep: fc.Arbitrary<Step> = fc
  .record({ ended, reasoning, content: completionText, user })
  .map(({ reasoning, content, user, ended }) => ({
    ended,
    completion: createCompletion(content, [], reasoning),
    next: [user],
  }))

const toolStep: fc.Arbitrary<Step> = fc
  .record({
    ended,
    reasoning,
    content: fc.option(completionText),
    callsAndResults: fc.array(fc.tuple(toolCall, text), { minLength: 1, maxLength: 3, size: 'max' }),
    more: fc.option(user, { freq: 3 }),
  })
  .map(({ ended, reasoning, content, callsAndResults, more }) => {
    const calls = callsAndResults.map(([call]) => call)
    const results = callsAndResults.map(([{ id }, result]) => createToolMessage(id, result))
    return {
      ended,
      completion: createCompletion(content, calls, reasoning),
      next: more ? [...results, more] : results,
    }
  })

export function conversations(withTools: boolean): fc.Arbitrary<Conversation> {
  return fc.record({
    opening: fc
      .tuple(fc.option(text), user)
      .map(([system, first]): ChatMessage[] =>
        system !== null ? [{ role: 'system', content: system }, first] : [first],
      ),
    style: fc.constantFrom('as_template', 'freely'),
    tools: withTools ? fc.constantFrom(TOOLS, undefined) : fc.constant(undefined),
    steps: fc.array(withTools ? fc.oneof(chatStep, toolStep) : chatStep, {
      minLength: 1,
      maxLength: 12,
      size: 'max',
    }),
  })
}

function createToolCall(name: string, id: string, value: string): ToolCall {
  return { id, type: 'function', function: { name, arguments: JSON.stringify({ a: value }) } }
}

function createCompletion(
  content: string | null,
  calls: ToolCall[],
  reasoning: string | undefined,
): ChatMessage {
  return {
    role: 'assistant',
    content,
    ...(calls.length > 0 && { tool_calls: calls }),
    ...(reasoning !== undefined && { reasoning_content: reasoning }),
  }
}

function createToolMessage(callId: string, content: string): ChatMessage {
  return { role: 'tool', tool_call_id: callId, content }
}

/** A conversation with only tool calls, so that no template drops the reasoning. */
export const TOOL_CONVERSATION: Conversation = {
  opening: [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: 'Look.' },
  ],
  tools: TOOLS,
  style: 'as_template',
  steps: ['000000001', '000000002', '000000003'].map((id, index) => ({
    ended: index !== 1,
    completion: createCompletion(null, [createToolCall('bash', id, `step ${id}`)], 'Hm.'),
    next: [createToolMessage(id, 'done')],
  })),
}

export const CHAT_CONVERSATION: Conversation = {
  opening: TOOL_CONVERSATION.opening,
  tools: undefined,
  style: 'as_template',
  steps: ['one', 'two', 'three'].map((word, index) => ({
    ended: index !== 1,
    completion: createCompletion(`I say ${word}`, [], undefined),
    next: [{ role: 'user', content: `You said ${word}?` }],
  })),
}
