/**
 * Builds the steps of an ATIF trajectory (`harbor/models/trajectories/step.py` of Harbor 0.25.0), without token ids.
 */
import { isRecord } from '../../../../base/json.ts'
import { getMessagesBetween, type Message } from '../../../../protocol/canonical/conversation.ts'
import type { ChatMessage, ToolCall, Usage } from '../../../../protocol/canonical/messages.ts'
import { withFormerNames } from '../../../../protocol/schema/former-names.ts'
import { writePromptJson } from '../../../session/prompts/prompt-chunks.ts'
import { PromptPrefixIndex } from '../sessions/prompt-prefix-index.ts'
import { type AtifPart, toAtifContent } from './atif-content.ts'
import type { TurnText } from './read-session.ts'

/** The result of a tool call in ATIF. */
interface AtifResult {
  source_call_id?: string
  content: string | AtifPart[]
}

/** A step of a trajectory in ATIF. */
export interface AtifStep {
  step_id: number
  timestamp: string
  source: 'system' | 'user' | 'agent'
  message: string | AtifPart[]
  reasoning_content?: string | undefined
  model_name?: string | undefined
  tool_calls?: object[]
  observation?: { results: AtifResult[] }
  is_copied_context?: true
  llm_call_count?: 1
  extra?: object
}

/** The token counts of one request. */
export interface AtifCounts {
  prompt_tokens?: number
  completion_tokens?: number
  cached_tokens?: number
}

/** A builder of steps from the completed turns of one agent role, which are added in the order of their indices. */
export class AtifSteps {
  readonly steps: AtifStep[] = []
  /** The turn of each step that a completion produced. */
  readonly turns = new Map<AtifStep, TurnText>()
  readonly #seen = new Set<Message>()
  /** The number of turns before the one with which a system or user message became a step, by the message's JSON. */
  readonly #texts = new Map<string, number>()
  /** The last message of each request that was added; the request's completion is its successor. */
  readonly #answered = new Set<Message>()
  /** The step of each tool call, by the call's id. */
  readonly #calls = new Map<string, AtifStep>()
  /** The tool calls of each step that have a result. */
  readonly #callsWithResult = new Map<AtifStep, Set<string>>()
  #lastAgentStep: AtifStep | undefined
  readonly #prompts = new PromptPrefixIndex()

  add(turn: TurnText): void {
    const { lastMessage, promptPieces } = turn
    const timestamp = new Date(turn.startedAtMs).toISOString()
    const added = getMessagesBetween(undefined, lastMessage, (message) => this.#seen.has(message))
    // A history that restarts, after a compaction or with an edited first message, repeats messages that already are
    // steps.
    const isRestart = this.steps.length > 0 && added[0]?.depth === 1
    for (const message of added) {
      this.#seen.add(message)
      this.#addMessage(message, timestamp, isRestart)
    }
    if (promptPieces.length > 0) {
      const prompt: unknown = JSON.parse([...writePromptJson(this.#prompts.add(turn).pieces)].join(''))
      this.#push({ timestamp, source: 'user', message: toAtifContent(prompt) })
    }
    if (lastMessage) this.#answered.add(lastMessage)
    this.turns.set(this.#addAgentStep(turn, timestamp), turn)
  }

  #addMessage(message: Message, timestamp: string, isRestart: boolean): void {
    const sent = message.value
    if (sent.role === 'assistant') this.#addEcho(message, sent, timestamp)
    else if (sent.role === 'tool' || sent.role === 'function') this.#addToolResult(sent, timestamp)
    else {
      const source = sent.role === 'user' ? 'user' : 'system'
      const earlierTurns = this.turns.size
      const isCopy = isRestart && (this.#texts.get(message.json) ?? earlierTurns) < earlierTurns
      if (!this.#texts.has(message.json)) this.#texts.set(message.json, earlierTurns)
      const step = { timestamp, source, message: toAtifContent(sent.content) } as const
      this.#push(isCopy ? { ...step, is_copied_context: true } : step)
    }
  }

  /** Adds an echo, unless the completion that it repeats, perhaps edited by the agent, is a step. */
  #addEcho({ parent }: Message, sent: ChatMessage & { role: 'assistant' }, timestamp: string): void {
    const calls = (sent.tool_calls ?? []).filter((call) => call.type === 'function')
    const isKnown = calls.length > 0 && calls.every(({ id }) => this.#calls.has(id))
    if (isKnown || (parent !== undefined && this.#answered.has(parent))) return
    const step = this.#push({
      timestamp,
      source: 'agent',
      message: toAtifContent(sent.content),
      reasoning_content: sent.reasoning_content || undefined,
      is_copied_context: true,
    })
    this.#addCalls(step, calls)
  }

  /** Adds a tool result to the step that made the tool call. */
  #addToolResult(sent: ChatMessage & { role: 'tool' | 'function' }, timestamp: string): void {
    const id = sent.role === 'tool' ? sent.tool_call_id : undefined
    const caller = id === undefined ? undefined : this.#calls.get(id)
    const step = caller ?? this.#lastAgentStep
    const content = toAtifContent(sent.content)
    if (step === undefined) {
      this.#push({ timestamp, source: 'user', message: content })
      return
    }
    step.observation ??= { results: [] }
    const { results } = step.observation
    if (caller === undefined) results.push({ content })
    else if (this.#isFirstResult(caller, id!)) results.push({ source_call_id: id!, content })
  }

  /** Returns whether a tool call has no earlier result, and remembers that it has one now. */
  #isFirstResult(step: AtifStep, callId: string): boolean {
    const calls = this.#callsWithResult.get(step) ?? new Set()
    this.#callsWithResult.set(step, calls)
    const isFirst = !calls.has(callId)
    calls.add(callId)
    return isFirst
  }

  #addAgentStep(turn: TurnText, timestamp: string): AtifStep {
    const { turnId, index, model, reasoning, completionText, finishReason, exact, inexactReason } = turn
    const step = this.#push({
      timestamp,
      source: 'agent',
      message: completionText ?? '',
      model_name: model ?? undefined,
      reasoning_content: reasoning ?? undefined,
      llm_call_count: 1,
      extra: withFormerNames({
        turn_id: turnId,
        index,
        agent_role: turn.line,
        finish_reason: finishReason,
        exact,
        inexact_reason: inexactReason ?? undefined,
        weight_version: turn.weightVersionEnd,
      }),
    })
    this.#addCalls(step, JSON.parse(turn.toolCalls) as ToolCall[])
    return step
  }

  #addCalls(step: AtifStep, calls: readonly ToolCall[]): void {
    if (calls.length === 0) return
    step.tool_calls = calls.map(({ id, function: { name, arguments: text } }) => {
      this.#calls.set(id, step)
      return { tool_call_id: id, function_name: name, ...parseArguments(text) }
    })
  }

  #push(step: Omit<AtifStep, 'step_id'>): AtifStep {
    const numbered = { step_id: this.steps.length + 1, ...step }
    this.steps.push(numbered)
    if (numbered.source === 'agent') this.#lastAgentStep = numbered
    return numbered
  }
}

/** Parses the arguments of a tool call, which must be an object in ATIF; other text is added in `extra`. */
function parseArguments(text: string) {
  try {
    const value: unknown = JSON.parse(text)
    if (isRecord(value)) return { arguments: value }
  } catch {
    // The text is returned below.
  }
  return { arguments: {}, extra: { arguments: text } }
}

/** Returns the token counts that the engine reported. */
export function parseTokenCounts(usage: string | null): AtifCounts {
  const { prompt_tokens, completion_tokens, prompt_tokens_details } = (
    usage === null ? {} : JSON.parse(usage)
  ) as Partial<Usage>
  const cached_tokens = prompt_tokens_details?.cached_tokens
  const counts = { prompt_tokens, completion_tokens, cached_tokens }
  return Object.fromEntries(Object.entries(counts).filter(([, count]) => Number.isSafeInteger(count)))
}
