/**
 * Continuation of a response in token mode whose engine request was cut. Another engine request samples the rest after
 * the prompt and the tokens so far. An engine sees only its own part, so a request with parameters that depend on
 * earlier tokens cannot be continued. Exceptions are stop strings and the token limit, which are handled here.
 */
import type { GenerationEnd } from '../../../protocol/canonical/events.ts'
import { readInteger } from '../../../protocol/canonical/number-texts.ts'
import type { GenerationRequest, SamplingFields } from '../../../protocol/canonical/request.ts'
import type { StopStrings } from '../../tokens/tokenizer/stop-strings.ts'
import type { StreamingDecoder } from '../../tokens/tokenizer/streaming-decoder.ts'
import type { CompletionTextReaders } from './completion-decoder.ts'

/** The end of a response, as an engine reports it. */
export type ResponseEnd = Pick<GenerationEnd, 'finishReason' | 'stopReason'>

/** The rest of a response: a request for it, or its end, if the tokens so far are complete. */
export type ResponseRemainder =
  | { readonly request: GenerationRequest; readonly stops: SplitStopFinder }
  | { readonly finish: ResponseEnd }

/** The interface that plans the rest of a response after a cut. */
export interface ContinuationPlanner {
  /** The reason why the response cannot be continued; undefined: it can. */
  readonly obstacle: string | undefined
  /** Plans the rest of the response. @param sampled the ids of all tokens so far */
  plan(sampled: readonly number[]): ResponseRemainder
}

/** The dependencies of a {@link TokenContinuationPlanner}. */
interface ContinuationParts {
  /** The first engine request. */
  readonly request: GenerationRequest
  /** The body of the agent's request, to which no constraints have been added. */
  readonly body: SamplingFields
  /** The ids of tokens that end a completion if they are its last. */
  readonly endTokenIds: ReadonlySet<number>
  /** Creates a decoder and a stop-string search for the complete response. */
  createText(): CompletionTextReaders
  /**
   * Returns a request whose prompt ends with the tokens so far.
   * @param limit the maximum number of further tokens; undefined: the engine's limit
   */
  extend(sampled: readonly number[], limit: number | undefined): GenerationRequest
}

/** The planner for prompts of token ids. */
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
    // The response is complete: only its end was lost with the connection.
    if (last !== undefined && endTokenIds.has(last) && body.ignore_eos !== true)
      return { finish: { finishReason: 'stop', stopReason: isStopToken(body, last) ? last : null } }
    const { max_tokens: limit } = request.body
    const left = typeof limit === 'number' ? limit - sampled.length : undefined
    if (left !== undefined && left <= 0) return { finish: { finishReason: 'length', stopReason: null } }
    return { request: extend(sampled, left), stops }
  }
}

/**
 * A search for stop strings that begin before a cut and end after it. The engine finds those that are completely in its
 * part.
 */
export class SplitStopFinder {
  readonly #decoder: StreamingDecoder
  readonly #stops: StopStrings

  constructor({ decoder, stops }: CompletionTextReaders) {
    this.#decoder = decoder
    this.#stops = stops
  }

  get matched(): string | undefined {
    return this.#stops.matched
  }

  /**
   * Reads further tokens.
   * @returns the number of tokens up to the one that completes a stop string; undefined: none does
   */
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

/** The fields of vLLM and SGLang that constrain the output. */
const CONSTRAINTS = [
  ...['structured_outputs', 'guided_json', 'guided_regex', 'guided_choice', 'guided_grammar'],
  ...['regex', 'ebnf', 'json_schema', 'structural_tag'],
]
/** The fields whose effect depends on earlier tokens, or on their number. */
const DEPENDENT = [
  ...['min_tokens', 'min_new_tokens', 'presence_penalty', 'frequency_penalty', 'bad_words'],
  ...['use_beam_search', 'thinking_token_budget', 'custom_logit_processor', 'custom_params'],
  ...['logits_processors', 'vllm_xargs', 'repetition_detection'],
]

/**
 * Returns a description of the first property of a request that depends on earlier tokens; undefined: there is none.
 */
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
