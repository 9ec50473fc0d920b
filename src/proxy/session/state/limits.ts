/**
 * Budgets of a session. They are looked at before an engine is asked, and calls in flight count: an agent that is over one gets
 * an ordinary end, or an error, and nobody trains on either.
 */
import { ProxyError } from '../../../base/errors.ts'
import { NO_ENGINE } from '../../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { SessionLimits, SessionRecord, TurnOutline, TurnReader } from '../../store/port/turn-store.ts'

const NAMES = ['turns', 'sampled_tokens', 'prompt_tokens', 'seconds'] as const

type LimitName = (typeof NAMES)[number]

/** Limits that need no count of what the session has used. */
const LIMIT_NAMES = [...NAMES, 'context_tokens'] as const

/** An agent that takes no end for one could go on for ever: after so many it gets the error. */
const MAX_ENDS = 8

/** What a call may have. */
export interface CallBudget {
  /** The limit that the session has come to: no engine is asked. */
  readonly reached?: LimitName
  readonly tokensLeft: number
  /** Most tokens of prompt and completion together. */
  readonly contextTokens: number
  /** Whether a prompt that leaves no room in the context gets an error in every dialect. */
  readonly rejectsOverlong: boolean
}

/** The budget of a session without limits. */
export const UNLIMITED: CallBudget = {
  tokensLeft: Number.POSITIVE_INFINITY,
  contextTokens: Number.POSITIVE_INFINITY,
  rejectsOverlong: false,
}

/** What of a turn counts. */
export type SpentTurn = Pick<
  TurnOutline,
  'status' | 'engine' | 'startedAtMs' | 'promptTokens' | 'sampledTokens'
>

/** What the turns of a session have come to. */
export class Spending {
  #turns = 0
  #sampledTokens = 0
  #promptTokens = 0
  #startedAtMs: number | undefined
  #ends = 0

  /** A turn that brought no answer of an engine costs what it sampled. */
  add({ status, engine, startedAtMs, promptTokens, sampledTokens }: SpentTurn): void {
    if (status === 'completed' && engine !== NO_ENGINE) this.#turns += 1
    if (engine === NO_ENGINE && promptTokens === 0) this.#ends += 1
    this.#sampledTokens += sampledTokens
    this.#promptTokens += promptTokens
    this.#startedAtMs ??= startedAtMs
  }

  /**
   * A call begins.
   * @param running what each call in flight has sampled so far
   * @throws ProxyError `limit_reached`
   */
  begin(limits: SessionLimits | null, running: readonly number[], nowMs: number): CallBudget {
    if (limits === null) return UNLIMITED
    this.#startedAtMs ??= nowMs
    const used = {
      turns: this.#turns + running.length,
      sampled_tokens: running.reduce((sum, tokens) => sum + tokens, this.#sampledTokens),
      prompt_tokens: this.#promptTokens,
      seconds: (nowMs - this.#startedAtMs) / 1000,
    }
    const left = (name: LimitName) => (limits[name] ?? Number.POSITIVE_INFINITY) - used[name]
    const tokensLeft = left('sampled_tokens')
    const reached = NAMES.find((name) => left(name) <= 0)
    const budget = {
      tokensLeft,
      contextTokens: limits.context_tokens ?? Number.POSITIVE_INFINITY,
      rejectsOverlong: limits.at_limit === 'error' && limits.context_tokens !== undefined,
    }
    if (reached === undefined) return budget
    if (limits.at_limit !== 'error' && this.#ends < MAX_ENDS) return { ...budget, reached }
    const message = `The session has come to its limit of ${limits[reached]} ${reached.replace('_', ' ')}`
    throw new ProxyError('limit_reached', message)
  }
}

/** Of a session without limits nothing is counted. */
export async function spendingOf(
  store: Pick<TurnReader, 'readOutlines'>,
  { sessionId, limits, turnCount }: SessionRecord,
): Promise<Spending> {
  const spending = new Spending()
  if (limits === null || turnCount === 0) return spending
  for await (const turn of store.readOutlines(sessionId)) spending.add(turn)
  return spending
}

/** An answer that asks for more tokens than the session has left gets those. */
export function withinBudget<T extends GenerationRequest>(request: T, { tokensLeft }: CallBudget): T {
  const { max_completion_tokens: newer, max_tokens: older } = request.body
  const asked = newer ?? older
  if (asked === undefined || asked === null || asked <= tokensLeft) return request
  const name = newer === undefined || newer === null ? 'max_tokens' : 'max_completion_tokens'
  return { ...request, body: { ...request.body, [name]: tokensLeft } }
}

/** @param texts `turns=50` @throws ProxyError `config_invalid` */
export function parseLimits(texts: readonly string[]): SessionLimits | null {
  const limits: Record<string, number | string> = {}
  for (const text of texts) {
    const [, name = '', value = ''] = /^([a-z_]+)=(.+)$/.exec(text) ?? []
    const isEnd = name === 'at_limit' && (value === 'stop' || value === 'error')
    const isNumber =
      LIMIT_NAMES.some((known) => known === name) && /^\d+(\.\d+)?$/.test(value) && Number(value) > 0
    if (!isEnd && !(isNumber && (name === 'seconds' || Number.isInteger(Number(value))))) {
      const message = `--session-limit is one of ${LIMIT_NAMES.join(', ')} with a number, such as turns=50, or at_limit=error; not ${text}`
      throw new ProxyError('config_invalid', message)
    }
    limits[name] = isEnd ? value : Number(value)
  }
  return texts.length === 0 ? null : (limits as SessionLimits)
}
