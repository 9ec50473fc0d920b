/**
 * Reasoning efforts: the names that APIs define, the ones that a model accepts, and the replacement of one that it
 * rejects. Each chat template has its own set: Qwen3.8 accepts low, medium and xhigh and raises an error for anything
 * else, Kimi K3 and GLM 5.2 accept low, high and max, gpt-oss accepts low, medium and high.
 */
import { isRecord } from '../../base/json.ts'
import type { ChatBody } from './request.ts'

/** Efforts from the least to the most reasoning. `none` is not one of them: it disables reasoning. */
export const EFFORT_LEVELS = ['minimal', 'low', 'medium', 'high', 'xhigh', 'max'] as const

/** Every effort that can be adapted. Other values (a number, `no_think`) are specific to a model and never changed. */
export const REASONING_EFFORTS: readonly string[] = ['none', ...EFFORT_LEVELS]

/** The reasoning efforts that a model supports. */
export interface EffortSupport {
  /** The members of {@link REASONING_EFFORTS} that it rejects. */
  readonly rejected: ReadonlySet<string>
  /** Whether `enable_thinking: false` disables its reasoning, so that `none` can be expressed without an effort. */
  readonly hasThinkingSwitch: boolean
}

/** How the effort of a request was adapted; also the turn's annotation `reasoning_effort`. */
export interface EffortChange {
  readonly requested: string
  /** null: the request was sent without an effort. */
  readonly sent: string | null
}

/** Returns the effort change that a turn's annotations record; undefined: it was sent as requested. */
export function readEffortChange({ annotations }: { annotations: string }): EffortChange | undefined {
  // Most turns have none, and their annotations are not parsed.
  if (!annotations.includes('"reasoning_effort"')) return undefined
  return (JSON.parse(annotations) as { reasoning_effort?: EffortChange }).reasoning_effort
}

type EffortFields = Pick<ChatBody, 'reasoning_effort' | 'chat_template_kwargs'>

/**
 * Returns the accepted level that is nearest to `requested`; of two that are equally near, the higher one.
 * @param limit the highest level that may be returned
 * @returns undefined if no level is accepted, or `requested` is not a level
 */
export function findNearestLevel(
  requested: string,
  isAccepted: (level: string) => boolean,
  limit: string = 'max',
): string | undefined {
  const levels: readonly string[] = EFFORT_LEVELS
  const wanted = levels.indexOf(requested)
  if (wanted === -1) return undefined
  const distance = (level: string) => Math.abs(levels.indexOf(level) - wanted)
  return levels
    .slice(0, levels.indexOf(limit) + 1)
    .filter(isAccepted)
    .reduce<string | undefined>(
      // Levels come in rising order: `<=` prefers the higher one of a tie.
      (best, level) => (best === undefined || distance(level) <= distance(best) ? level : best),
      undefined,
    )
}

/**
 * Returns the effort that a chat template receives: the request's own field, as in vLLM, otherwise the template
 * variable.
 * @returns undefined if there is none, or the value is not a string
 */
export function getEffort({ reasoning_effort: effort, chat_template_kwargs: kwargs }: EffortFields) {
  const requested = effort ?? (isRecord(kwargs) ? kwargs.reasoning_effort : undefined)
  return typeof requested === 'string' ? requested : undefined
}

/**
 * Replaces an effort that the model rejects by the nearest one that it accepts. Disabled reasoning stays disabled:
 * `none` becomes `enable_thinking: false`, and with reasoning disabled a level is lowered or omitted, never raised. A
 * request that cannot be adapted is returned unchanged, for the template or the engine to reject.
 * @param support undefined: unknown, nothing is adapted
 */
export function adaptEffort<Body extends EffortFields>(
  body: Body,
  support: EffortSupport | undefined,
): { body: Body; change?: EffortChange } {
  const requested = getEffort(body)
  if (requested === undefined || !support?.rejected.has(requested)) return { body }
  if (requested === 'none') {
    if (!support.hasThinkingSwitch) return { body }
    return { body: withEffort(body, undefined), change: { requested, sent: null } }
  }
  const isDisabled = disablesThinking(body)
  const isAccepted = (level: string) => !support.rejected.has(level)
  const sent = findNearestLevel(requested, isAccepted, isDisabled ? requested : 'max')
  if (sent === undefined && !isDisabled) return { body }
  return { body: withEffort(body, sent), change: { requested, sent: sent ?? null } }
}

function disablesThinking({ chat_template_kwargs: kwargs }: EffortFields): boolean {
  return isRecord(kwargs) && (kwargs.enable_thinking === false || kwargs.thinking === false)
}

/**
 * Replaces the effort.
 * @param effort undefined: none is sent, and reasoning is disabled unless the request's own variables enable it
 */
function withEffort<Body extends EffortFields>(body: Body, effort: string | undefined): Body {
  const { reasoning_effort: field, chat_template_kwargs: templateKwargs, ...rest } = body
  const { reasoning_effort: variable, ...kwargs } = isRecord(templateKwargs) ? templateKwargs : {}
  if (effort === undefined)
    return { ...rest, chat_template_kwargs: { enable_thinking: false, ...kwargs } } as unknown as Body
  return {
    ...rest,
    ...(field !== undefined && field !== null && { reasoning_effort: effort }),
    ...(templateKwargs !== undefined && {
      chat_template_kwargs: variable === undefined ? templateKwargs : { ...kwargs, reasoning_effort: effort },
    }),
  } as unknown as Body
}

/**
 * Returns the variables that a request passes to its chat template, as vLLM does (`build_chat_params` of
 * `vllm/entrypoints/openai/chat_completion/protocol.py`): the effort as `reasoning_effort`, which overrides a variable
 * of this name, and as `enable_thinking`, the switch that some templates have instead, unless the variables set it.
 */
export function readTemplateVariables(body: EffortFields): Record<string, unknown> | undefined {
  const { chat_template_kwargs: kwargs, reasoning_effort: effort } = body
  const variables = isRecord(kwargs) ? kwargs : undefined
  if (effort === undefined || effort === null) return variables
  return { enable_thinking: effort !== 'none', ...variables, reasoning_effort: effort }
}

/** Limit on the part of an engine's message that is read: some errors quote the whole request. */
const MAX_MESSAGE_CHARS = 2_000

/**
 * Parses an engine's error as the rejection of an effort. Observed: `Unexpected reasoning effort high. Supported types
 * are xhigh (default), medium, and low` (Qwen3.8's template), `reasoning_effort='max' is not supported by Harmony.
 * Supported values are: high, medium, low.` (vLLM), `Input should be 'none', 'minimal', 'low', 'medium' or 'high'` at
 * `reasoning_effort` (an older vLLM's schema).
 *
 * An error that names at least two other levels lists the accepted ones. `none` is excluded: models with a thinking
 * switch accept it without listing it.
 * @param sent the effort that the engine was sent
 * @returns the rejected efforts; undefined if the error has another cause
 */
export function parseEffortRejection(
  message: string,
  sent: string | undefined,
): ReadonlySet<string> | undefined {
  if (sent === undefined || !REASONING_EFFORTS.includes(sent)) return undefined
  // An error about another field may quote the request, and with it the effort.
  const text = message
    .replaceAll(/(["'])reasoning_effort\1\s*:\s*(["'])\w+\2/g, '')
    .slice(0, MAX_MESSAGE_CHARS)
  if (!/effort/i.test(text)) return undefined
  const isNamed = (effort: string) => new RegExp(`\\b${effort}\\b`).test(text)
  const listed = EFFORT_LEVELS.filter((level) => level !== sent && isNamed(level))
  if (listed.length < 2) return isNamed(sent) ? new Set([sent]) : undefined
  return new Set([sent, ...EFFORT_LEVELS.filter((level) => !listed.includes(level))])
}
