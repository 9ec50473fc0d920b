/** Random conversations between an agent and a model, with all content that has caused errors in templates. */
import type { ChatMessage, ToolCall } from '../../src/protocol/canonical/messages.ts'

export interface Conversation {
  opening: ChatMessage[]
  /** JSON text, because JavaScript cannot represent some of its numbers. */
  tools: string | null
  rounds: { assistantMessage: ChatMessage; next: ChatMessage[] }[]
}

type Random = () => number

/** Creates mulberry32, a generator with the same numbers for the same seed. */
export function createRandom(seed: number): Random {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

const TEXTS = [
  'Look at it.',
  'é e\u0301 👩‍👩‍👧',
  '中文，日本語',
  'a\n\nb',
  ' leading',
  'trailing \n',
  '<b>&amp;"\'</b>',
  '1000.0 \\n',
  '{{ x }}',
  '\u2028\ufeff',
  'x'.repeat(300),
  // Text that templates interpret: switches of reasoning, and markup that they treat as their own.
  'Be brief. /no_think',
  'see src/think/x.py',
  '/nothink',
  'detailed thinking off',
  '<think>a</think>b',
  'b</think>',
  '<tool_response>\nx\n</tool_response>',
  'user',
]

const SCHEMAS = [
  '{"type":"object","properties":{"path":{"type":"string","description":"Where"},"limit":{"anyOf":[{"type":"integer"},{"type":"null"}],"default":null}},"required":["path"]}',
  '{"type":"object","properties":{"x":{"type":"number","default":1000.0,"minimum":1e-9,"maximum":12345678901234567890},"on":{"type":"boolean","default":false}},"required":[]}',
  '{"type":"object","properties":{"mode":{"type":"string","enum":["a","é"," "]},"deep":{"type":"object","properties":{"list":{"type":"array","items":{"type":["string","null"]}}}}},"additionalProperties":false}',
  '{"type":"object","properties":{}}',
]

const ARGUMENTS = [
  '{"path":"a","limit":null}',
  '{"x":1000.0,"on":false}',
  '{}',
  '{"deep":{"list":["é",null,"\\n"]},"mode":" "}',
  '{"x":12345678901234567890}',
]

export function createConversation(random: Random, { withTools }: { withTools: boolean }): Conversation {
  const chance = (share: number) => random() < share
  const pick = <Item>(items: readonly Item[]): Item => items[Math.floor(random() * items.length)]!
  const text = () => pick(TEXTS)
  const hasTools = withTools && chance(0.75)
  const tools = ['bash', 'get_weather', 'edit-file'].slice(0, 1 + Math.floor(random() * 3)).map((name) => {
    const description = chance(0.8) ? `,"description":${JSON.stringify(text())}` : ''
    return `{"type":"function","function":{"name":"${name}"${description},"parameters":${pick(SCHEMAS)}}}`
  })
  let toolCallCount = 0
  const createToolCall = (): ToolCall => {
    toolCallCount += 1
    return {
      id: `call${String(toolCallCount).padStart(5, '0')}`,
      type: 'function',
      function: { name: pick(['bash', 'get_weather']), arguments: pick(ARGUMENTS) },
    }
  }
  const createRound = (): Conversation['rounds'][number] => {
    const reasoning = chance(0.4) ? { reasoning_content: text() } : {}
    if (!hasTools || chance(0.4)) {
      const next: ChatMessage[] = [{ role: 'user', content: text() }]
      return { assistantMessage: { role: 'assistant', content: text(), ...reasoning }, next }
    }
    const toolCalls = Array.from({ length: chance(0.25) ? 2 : 1 }, createToolCall)
    const assistantMessage = {
      role: 'assistant' as const,
      content: chance(0.4) ? text() : null,
      tool_calls: toolCalls,
      ...reasoning,
    }
    const results = toolCalls.map(
      ({ id }): ChatMessage => ({ role: 'tool', tool_call_id: id, content: text() }),
    )
    return {
      assistantMessage,
      next: chance(0.1) ? [...results, { role: 'user', content: text() }] : results,
    }
  }
  return {
    opening: [
      // Codex sends two system messages.
      ...Array.from({ length: chance(0.6) ? (chance(0.2) ? 2 : 1) : 0 }, () => ({
        role: 'system' as const,
        content: text(),
      })),
      { role: 'user', content: text() },
    ],
    tools: hasTools ? `[${tools.join(',')}]` : null,
    rounds: Array.from({ length: 1 + Math.floor(random() * 8) }, createRound),
  }
}
