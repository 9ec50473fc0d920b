/**
 * The rest of a response in token mode whose engine request was cut: the engine samples after the prompt and the tokens
 * so far. It knows only its own part, so whatever depends on earlier tokens cannot be continued, except stop strings and
 * the token limit, which are handled here.
 */
import type { GenerationEnd } from '../../../protocol/canonical/events.ts'
import { readInteger } from '../../../protocol/canonical/number-texts.ts'
import type { GenerationRequest, SamplingFields } from '../../../protocol/canonical/request.ts'
import type { StopStrings } from '../../tokens/tokenizer/stop-strings.ts'
import type { StreamingDecoder } from '../../tokens/tokenizer/streaming-decoder.ts'
import type { CompletionText } from './completion-decoder.ts'

/** How a response ends, as an engine reports it. */
export type ResponseEnd = Pick<GenerationEnd, 'finishReason' | 'stopReason'>

/** The rest of a response: a request to an engine, or nothing, because the tokens so far are complete. */
export type ResponseRemainder =
  | { readonly request: GenerationRequest; readonly stops: SplitStopFinder }
  | { readonly finish: ResponseEnd }

/** Plans the rest of a response that was cut. */
export interface ContinuationPlanner {
  /** The reason why the rest cannot be requested; undefined: it can. */
  readonly obstacle: string | undefined
  /** Returns the rest of the response after the tokens so far. */
  plan(sampled: readonly number[]): ResponseRemainder
}

interface ContinuationParts {
  /** The request of the first part. */
  readonly request: GenerationRequest
  /** The agent's body, before constraints are added. */
  readonly body: SamplingFields
  /** Tokens that end a completion if they are its last. */
  readonly endTokenIds: ReadonlySet<number>
  createText(): CompletionText
  /**
   * Returns the request whose prompt ends with the tokens so far.
   * @param limit the number of tokens that may follow; undefined: the engine's limit
   */
  extend(sampled: readonly number[], limit: number | undefined): GenerationRequest
}

export class TokenContinuationPlanner implements ContinuationPlanner {
  readonly #parts: ContinuationParts

  constructor(parts: ContinuationParts) {
    this.#parts = parts
  }

  get obstacle(): string | undefined {
    const { request, body } = this.#parts
    if (request.choiceOf !== undefined) return 'it has several choices'
    if (request.images !== undefined) return 'it has images'
    return findObstacle(body)
  }

  plan(sampled: readonly number[]): ResponseRemainder {
    const { request, body, endTokenIds, createText, extend } = this.#parts
    const stops = new SplitStopFinder(createText())
    stops.read(sampled)
    if (stops.matched !== undefined) return { finish: { finishReason: 'stop', stopReason: stops.matched } }
    const last = sampled.at(-1)
    // The connection was lost between the last token and the end of the response.
    if (last !== undefined && endTokenIds.has(last) && body.ignore_eos !== true)
      return { finish: { finishReason: 'stop', stopReason: isStopToken(body, last) ? last : null } }
    const { max_tokens: limit } = request.body
    const left = typeof limit === 'number' ? limit - sampled.length : undefined
    if (left !== undefined && left <= 0) return { finish: { finishReason: 'length', stopReason: null } }
    return { request: extend(sampled, left), stops }
  }
}

/**
 * Finds a stop string of which the cut separates the beginning from the end. The engine finds those that are in its part
 * completely.
 */
export class SplitStopFinder {
  readonly #decoder: StreamingDecoder
  readonly #stops: StopStrings

  constructor({ decoder, stops }: CompletionText) {
    this.#decoder = decoder
    this.#stops = stops
  }

  get matched(): string | undefined {
    return this.#stops.matched
  }

  /** Reads further tokens. @returns the number of those up to the one that completes a stop string; undefined: none does */
  read(ids: readonly number[]): number | undefined {
    for (const [index, id] of ids.entries()) {
      this.#stops.push(this.#decoder.push([id]))
      if (this.matched !== undefined) return index + 1
    }
    return undefined
  }
}

function isStopToken({ stop_token_ids: ids }: SamplingFields, id: number): boolean {
  return Array.isArray(ids) && ids.includes(id)
}

/** Constraints on the output, by the names of vLLM and SGLang. */
const CONSTRAINTS = [
  ...['structured_outputs', 'guided_json', 'guided_regex', 'guided_choice', 'guided_grammar'],
  ...['regex', 'ebnf', 'json_schema', 'structural_tag'],
]
/** Fields whose effect depends on the tokens sampled before, or on their number. */
const DEPENDENT = [
  ...['min_tokens', 'min_new_tokens', 'presence_penalty', 'frequency_penalty', 'bad_words'],
  ...['use_beam_search', 'thinking_token_budget', 'custom_logit_processor', 'custom_params'],
  ...['logits_processors', 'vllm_xargs', 'repetition_detection'],
]

/** Returns the first property of a request that depends on its earlier tokens. */
function findObstacle(body: SamplingFields): string | undefined {
  const constraint = CONSTRAINTS.find((field) => isSet(body[field]))
  if (constraint !== undefined) return `it sets '${constraint}'`
  const { response_format: format, tool_choice: choice, repetition_penalty: repetition, tools } = body
  if (isSet(format) && (format as { type?: unknown }).type !== 'text') return "it sets 'response_format'"
  if (isSet(choice) && choice !== 'auto' && choice !== 'none') return 'it forces a tool call'
  if (Array.isArray(tools) && tools.some(isStrict)) return 'it has strict tools'
  // Engines treat a negative seed as none.
  if ((readInteger(body.seed) ?? -1n) >= 0n) return "it sets 'seed'"
  if (isSet(repetition) && repetition !== 1) return "it sets 'repetition_penalty'"
  const dependent = DEPENDENT.find((field) => isSet(body[field]) && body[field] !== 0)
  return dependent && `it sets '${dependent}'`
}

function isStrict(tool: object): boolean {
  return (tool as { function?: { strict?: unknown } }).function?.strict === true
}

function isSet(value: unknown): boolean {
  return (
    value !== undefined && value !== null && value !== false && !(Array.isArray(value) && value.length === 0)
  )
}
