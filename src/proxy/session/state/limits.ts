/**
 * The budgets of a session. They are checked before a request is dispatched, and include requests in flight. An agent
 * over a budget receives an empty completion that ends normally, or an error; neither is trained on.
 */
import { ProxyError } from '../../../base/errors.ts'
import { NO_ENGINE } from '../../../protocol/canonical/events.ts'
import type { CanonicalRequest } from '../../../protocol/canonical/request.ts'
import type { SessionLimits, SessionRecord, TurnOutline, TurnReader } from '../../store/port/turn-store.ts'

/** The limits that are compared with the session's usage. */
const USAGE_LIMITS = ['turns', 'sampled_tokens', 'prompt_tokens', 'seconds'] as const

type UsageLimit = (typeof USAGE_LIMITS)[number]

/** All limits, including the one that does not depend on the session's usage. */
const ALL_LIMITS = [...USAGE_LIMITS, 'context_tokens'] as const

/**
 * The number of empty completions after which an agent receives an error, because an agent that ignores them could
 * continue forever.
 */
const MAX_ENDS = 8

/** The budget of a request. */
export interface RequestBudget {
  /** The limit that the session has reached, so that no engine is used; absent: none. */
  readonly reached?: UsageLimit
  /** The number of tokens that the session may still sample. */
  readonly tokensLeft: number
  /** The maximum number of tokens of prompt and completion together. */
  readonly contextTokens: number
  /** Whether every dialect responds with an error to a prompt that leaves no room in the context. */
  readonly rejectsOverlong: boolean
}

/** The budget of a session without limits. */
export const UNLIMITED: RequestBudget = {
  tokensLeft: Number.POSITIVE_INFINITY,
  contextTokens: Number.POSITIVE_INFINITY,
  rejectsOverlong: false,
}

/** The fields of a turn that determine its usage. */
export type TurnUsage = Pick<
  TurnOutline,
  'status' | 'engine' | 'startedAtMs' | 'promptTokens' | 'sampledTokens'
>

/** The usage of a session: the sum over its closed turns. */
export class SessionUsage {
  #turns = 0
  #sampledTokens = 0
  #promptTokens = 0
  #startedAtMs: number | undefined
  #ends = 0

  /** Adds a turn. One that failed, or that no engine served, counts only with its tokens. */
  add({ status, engine, startedAtMs, promptTokens, sampledTokens }: TurnUsage): void {
    if (status === 'completed' && engine !== NO_ENGINE) this.#turns += 1
    if (engine === NO_ENGINE && promptTokens === 0) this.#ends += 1
    this.#sampledTokens += sampledTokens
    this.#promptTokens += promptTokens
    this.#startedAtMs ??= startedAtMs
  }

  /**
   * Returns the budget of a new request.
   * @param running the numbers of tokens that the requests in flight have sampled so far
   * @throws ProxyError `limit_reached`
   */
  begin(limits: SessionLimits | null, running: readonly number[], nowMs: number): RequestBudget {
    if (limits === null) return UNLIMITED
    this.#startedAtMs ??= nowMs
    const used = {
      turns: this.#turns + running.length,
      sampled_tokens: running.reduce((sum, tokens) => sum + tokens, this.#sampledTokens),
      prompt_tokens: this.#promptTokens,
      seconds: (nowMs - this.#startedAtMs) / 1000,
    }
    const left = (name: UsageLimit) => (limits[name] ?? Number.POSITIVE_INFINITY) - used[name]
    const tokensLeft = left('sampled_tokens')
    const reached = USAGE_LIMITS.find((name) => left(name) <= 0)
    const budget = {
      tokensLeft,
      contextTokens: limits.context_tokens ?? Number.POSITIVE_INFINITY,
      rejectsOverlong: limits.at_limit === 'error' && limits.context_tokens !== undefined,
    }
    if (reached === undefined) return budget
    if (limits.at_limit !== 'error' && this.#ends < MAX_ENDS) return { ...budget, reached }
    const message = `The session has reached its limit of ${limits[reached]} ${reached.replace('_', ' ')}`
    throw new ProxyError('limit_reached', message)
  }
}

/** Reads the usage of a session from its recorded turns. It stays empty for a session without limits. */
export async function readUsage(
  store: Pick<TurnReader, 'readOutlines'>,
  { sessionId, limits, turnCount }: SessionRecord,
): Promise<SessionUsage> {
  const usage = new SessionUsage()
  if (limits === null || turnCount === 0) return usage
  for await (const turn of store.readOutlines(sessionId)) usage.add(turn)
  return usage
}

/** Limits the requested number of tokens to the number that the session has left. */
export function limitToBudget<T extends CanonicalRequest>(request: T, { tokensLeft }: RequestBudget): T {
  const { max_completion_tokens: newer, max_tokens: older } = request.body
  const requested = newer ?? older
  if (requested === undefined || requested === null || requested <= tokensLeft) return request
  const name = newer === undefined || newer === null ? 'max_tokens' : 'max_completion_tokens'
  return { ...request, body: { ...request.body, [name]: tokensLeft } }
}

/**
 * Parses the values of `--session-limit`, such as `turns=50`.
 * @returns null if there are none
 * @throws ProxyError `config_invalid`
 */
export function parseLimits(texts: readonly string[]): SessionLimits | null {
  const limits: Record<string, number | string> = {}
  for (const text of texts) {
    const [, name = '', value = ''] = /^([a-z_]+)=(.+)$/.exec(text) ?? []
    const isEnd = name === 'at_limit' && (value === 'stop' || value === 'error')
    const isNumber =
      ALL_LIMITS.some((known) => known === name) && /^\d+(\.\d+)?$/.test(value) && Number(value) > 0
    if (!isEnd && !(isNumber && (name === 'seconds' || Number.isInteger(Number(value))))) {
      const message = `--session-limit is one of ${ALL_LIMITS.join(', ')} with a number, such as turns=50, or at_limit=error; not ${text}`
      throw new ProxyError('config_invalid', message)
    }
    limits[name] = isEnd ? value : Number(value)
  }
  return texts.length === 0 ? null : (limits as SessionLimits)
}
