/**
 * A replayed conversation, as the bytes of its requests, because the agent should cost as little as possible. The text
 * at a position of a session is always the same, so that each prompt extends the previous one.
 */
import { readFileSync } from 'node:fs'
import {
  BYTES_PER_TOKEN,
  COMPLETION_TOKENS,
  GROWTH_TOKENS,
  type ReplayDialect,
  type Shape,
  STEPS,
} from './replay-job.ts'
import { generateProse } from './text.ts'

/** The number of tokens of each prompt of a conversation. */
export interface Script {
  systemTokens: number
  toolTokens: number
  prompts: number[]
}

interface Trace {
  system: number
  tools: number
  main: [tokensIn: number, tokensOut: number][]
}

/** A dialect's wire format: a step is the agent's next message, with the completion before it. */
interface Wire {
  /** The part before the messages, and the part after them. */
  head(system: string, tools: readonly Tool[]): string
  tail: string
  /** Returns a message with a comma before it. */
  user(text: string): string
  /** Returns the canned completion of the fake engine, and the result of its tool call. */
  step(outcome: string): string
}

interface Tool {
  name: string
  description: string
  input_schema: object
}

/**
 * The text of the fake engine's completion if tools are offered: with the tool call, it has {@link COMPLETION_TOKENS}
 * tokens of Qwen3.
 */
export const COMPLETION_TEXT = generateProse(888, 4711)
export const TOOL_CALL = { id: 'call_stand_in', name: 'tool_0', arguments: { path: generateProse(60, 42) } }

const TOOL_TOKENS = 500
const MIN_OUTCOME_TOKENS = 20

let traces: Trace[] | undefined

/**
 * Selects a script.
 * @param number the index of the agent, for shapes that vary
 * @returns the script, and the step at which the agent begins
 */
export function createScript(shape: Shape, number: number): { script: Script; from: number } {
  if (shape.kind !== 'claude-code') {
    const prompts = Array.from({ length: STEPS }, (_, step) => shape.promptTokens + step * GROWTH_TOKENS)
    const from = number % STEPS
    return {
      script: { systemTokens: 2_800, toolTokens: Math.min(12_600, shape.promptTokens / 2), prompts },
      from,
    }
  }
  const path = new URL('../data/claude-code.json', import.meta.url)
  traces ??= (JSON.parse(readFileSync(path, 'utf8')) as { sessions: Trace[] }).sessions
  const trace = traces[number % traces.length]!
  const script = {
    systemTokens: trace.system,
    toolTokens: trace.tools,
    prompts: trace.main.map(([tokensIn]) => tokensIn),
  }
  // The golden ratio distributes starts evenly over the sessions, for any number of agents.
  return { script, from: Math.floor(((number * 0.618_034) % 1) * script.prompts.length) }
}

export class ReplayedConversation {
  readonly #wire: Wire
  readonly #script: Script
  readonly #seed: number
  readonly #head: Buffer
  readonly #tail: Buffer
  #messages: Buffer[] = []
  #tokens = 0
  #step: number

  constructor(dialect: ReplayDialect, script: Script, from: number, seed: number) {
    this.#wire = WIRES[dialect]
    this.#script = script
    this.#seed = seed
    this.#step = from
    this.#head = createHead(dialect, script, seed)
    this.#tail = Buffer.from(this.#wire.tail)
  }

  get isOver(): boolean {
    return this.#step >= this.#script.prompts.length
  }

  /**
   * Builds the next request.
   * @returns its body, and the number of tokens of its prompt
   */
  nextRequest(): { body: Buffer; promptTokens: number } {
    const promptTokens = this.#script.prompts[this.#step]!
    const { systemTokens, toolTokens } = this.#script
    const grown = promptTokens - this.#tokens - COMPLETION_TOKENS
    // Real completions are often shorter than this one: a prompt that grows by less than it is not a compaction.
    if (this.#messages.length > 0 && promptTokens >= this.#tokens) {
      const outcome = generateProse(
        Math.max(grown, MIN_OUTCOME_TOKENS) * BYTES_PER_TOKEN,
        this.#seed + this.#step,
      )
      this.#messages.push(Buffer.from(this.#wire.step(outcome)))
    } else {
      // The first request that this agent sends in the session, or a compaction.
      const taskTokens = Math.max(promptTokens - systemTokens - toolTokens, MIN_OUTCOME_TOKENS)
      const text = generateProse(taskTokens * BYTES_PER_TOKEN, this.#seed + this.#step)
      this.#messages = [Buffer.from(this.#wire.user(text).slice(1))]
    }
    this.#tokens = promptTokens
    this.#step += 1
    return { body: Buffer.concat([this.#head, ...this.#messages, this.#tail]), promptTokens }
  }
}

const headCache = new Map<string, Buffer>()

/** Returns the system prompt and tools, which are the same in every session for equal sizes, as with Claude Code. */
function createHead(dialect: ReplayDialect, { systemTokens, toolTokens }: Script, seed: number): Buffer {
  const key = `${dialect} ${systemTokens} ${toolTokens} ${seed % 2}`
  const existing = headCache.get(key)
  if (existing) return existing
  const tools = Array.from({ length: Math.max(1, Math.round(toolTokens / TOOL_TOKENS)) }, (_, index) => ({
    name: `tool_${index}`,
    description: generateProse((TOOL_TOKENS - 60) * BYTES_PER_TOKEN, index),
    input_schema: { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] },
  }))
  const head = Buffer.from(
    WIRES[dialect].head(generateProse(systemTokens * BYTES_PER_TOKEN, 17 + (seed % 2)), tools),
  )
  headCache.set(key, head)
  return head
}

const toolArguments = JSON.stringify(TOOL_CALL.arguments)

const WIRES: Readonly<Record<ReplayDialect, Wire>> = {
  chat: {
    head: (system, tools) =>
      `{"model":"stand-in","stream":true,"max_tokens":${COMPLETION_TOKENS},"tools":${JSON.stringify(
        tools.map(({ input_schema: parameters, ...named }) => ({
          type: 'function',
          function: { ...named, parameters },
        })),
      )},"messages":[${JSON.stringify({ role: 'system', content: system })},`,
    tail: ']}',
    user: (content) => `,${JSON.stringify({ role: 'user', content })}`,
    step: (content) => {
      const toolFunction = { name: TOOL_CALL.name, arguments: toolArguments }
      const tool_calls = [{ id: TOOL_CALL.id, type: 'function', function: toolFunction }]
      const assistantMessage = { role: 'assistant', content: COMPLETION_TEXT, tool_calls }
      return `,${JSON.stringify(assistantMessage)},${JSON.stringify({ role: 'tool', tool_call_id: TOOL_CALL.id, content })}`
    },
  },
  messages: {
    head: (system, tools) =>
      `{"model":"stand-in","stream":true,"max_tokens":${COMPLETION_TOKENS},"system":${JSON.stringify([
        { type: 'text', text: system, cache_control: { type: 'ephemeral' } },
      ])},"tools":${JSON.stringify(tools)},"messages":[`,
    tail: ']}',
    user: (text) => `,${JSON.stringify({ role: 'user', content: [{ type: 'text', text }] })}`,
    step: (content) => {
      const use = {
        type: 'tool_use',
        id: TOOL_CALL.id,
        name: TOOL_CALL.name,
        input: TOOL_CALL.arguments,
      }
      const assistantMessage = { role: 'assistant', content: [{ type: 'text', text: COMPLETION_TEXT }, use] }
      const result = { type: 'tool_result', tool_use_id: TOOL_CALL.id, content }
      return `,${JSON.stringify(assistantMessage)},${JSON.stringify({ role: 'user', content: [result] })}`
    },
  },
  responses: {
    head: (instructions, tools) =>
      `{"model":"stand-in","stream":true,"store":false,"max_output_tokens":${COMPLETION_TOKENS},"instructions":${JSON.stringify(
        instructions,
      )},"tools":${JSON.stringify(
        tools.map(({ input_schema: parameters, ...named }) => ({
          type: 'function',
          ...named,
          parameters,
          strict: false,
        })),
      )},"input":[`,
    tail: ']}',
    user: (text) =>
      `,${JSON.stringify({ type: 'message', role: 'user', content: [{ type: 'input_text', text }] })}`,
    step: (output) => {
      const text = { type: 'output_text', text: COMPLETION_TEXT, annotations: [] }
      const assistantMessage = { type: 'message', role: 'assistant', content: [text] }
      const toolCall = {
        type: 'function_call',
        call_id: TOOL_CALL.id,
        name: TOOL_CALL.name,
        arguments: toolArguments,
      }
      const outcome = { type: 'function_call_output', call_id: TOOL_CALL.id, output }
      return `,${[assistantMessage, toolCall, outcome].map((item) => JSON.stringify(item)).join()}`
    },
  },
}
