/**
 * Reasoning efforts in chat mode. The engine renders the prompt, so the efforts that its model accepts are learned from
 * its errors: a request that is rejected for its effort is sent once more with the nearest remaining effort, and the
 * rejected efforts are remembered by member and model. This is done on the proxy's side of both backends: workers
 * forward requests unchanged.
 */
import { ProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'
import type { GenerationEvent } from '../../../protocol/canonical/events.ts'
import {
  adaptEffort,
  type EffortChange,
  type EffortSupport,
  getEffort,
  parseEffortRejection,
} from '../../../protocol/canonical/reasoning-effort.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'

/**
 * The maximum number of models per member: some engines accept any model name, and names that agents invent must not
 * exhaust the memory.
 */
const MAX_MODELS = 1_000

type EffortSet = ReadonlySet<string>

const NOTHING_REJECTED: EffortSet = new Set()

/** The registry of efforts that members are known to reject. */
export class EffortRegistry {
  readonly #logger: Logger | undefined
  /** Rejected efforts by member, then by model. */
  readonly #rejected = new Map<string, Map<string, EffortSet>>()

  constructor(logger?: Logger) {
    this.#logger = logger
  }

  /** Returns the efforts that the member is known to reject for this model. */
  getRejected(memberId: string, model = ''): EffortSet {
    return this.#rejected.get(memberId)?.get(model) ?? NOTHING_REJECTED
  }

  /** Adds efforts to those that the member rejects for this model. */
  learn(memberId: string, model = '', rejected: EffortSet): void {
    const existing = this.#rejected.get(memberId) ?? new Map<string, EffortSet>()
    const before = existing.get(model) ?? NOTHING_REJECTED
    const all = joinEfforts(before, rejected)
    if (all.size === before.size) return
    if (existing.size >= MAX_MODELS) existing.clear()
    existing.set(model, all)
    this.#rejected.set(memberId, existing)
    logEvent(this.#logger, 'efforts_rejected', { member: memberId, efforts: [...all] })
  }

  /** Discards what was learned from a member that was unreachable: another engine may have its address. */
  forget(memberId: string): void {
    this.#rejected.delete(memberId)
  }
}

function joinEfforts(one: EffortSet, other: EffortSet): EffortSet {
  return new Set([...one, ...other])
}

/** One attempt that was rejected for its effort. */
interface Rejection {
  readonly memberId: string
  readonly sent: string
  readonly rejected: EffortSet
  readonly error: ProxyError
}

/** The negotiation of one request's effort over its attempts. */
export class EffortNegotiation {
  readonly #learned: EffortRegistry
  readonly #model: string | undefined
  readonly #body: ChatBody | undefined
  /** The first attempt that was rejected. */
  #rejection: Rejection | undefined
  #change: EffortChange | undefined

  /** @param body the body of a request whose prompt the engine renders; undefined: nothing is adapted */
  constructor(learned: EffortRegistry, body: ChatBody | undefined) {
    this.#learned = learned
    this.#model = body?.model
    this.#body = body
  }

  /** Returns the body with an effort that the member is not known to reject. */
  adaptBody(memberId: string): ChatBody | undefined {
    if (this.#body === undefined) return undefined
    const { body, change } = adaptEffort(this.#body, this.#getSupport(memberId))
    this.#change = change
    return body
  }

  /**
   * Determines from an error whether the member rejected the effort of the body that {@link adaptBody} returned last.
   * @returns whether to send the request once more with another effort
   */
  checkRejection(memberId: string, thrown: unknown): boolean {
    if (this.#body === undefined || !isEngineError(thrown)) return false
    const sent = this.#change === undefined ? getEffort(this.#body) : this.#change.sent
    const rejected = parseEffortRejection(thrown.message, sent ?? undefined)
    if (rejected === undefined || typeof sent !== 'string') return false
    if (this.#rejection !== undefined) {
      this.#learnBoth({ memberId, sent, rejected, error: thrown })
      return false
    }
    // Models with the harmony format cannot omit reasoning, and without an effort they would reason with medium effort.
    if (sent === 'none' && /harmony/i.test(thrown.message)) return false
    this.#rejection = { memberId, sent, rejected, error: thrown }
    const { change } = adaptEffort(this.#body, this.#getSupport(memberId))
    return change !== undefined && change.sent !== sent
  }

  /**
   * Returns the error for the agent: the one about the effort that it requested, if the replacement was rejected too,
   * or if the engine rejects `chat_template_kwargs`, by which the replacement was requested.
   */
  toAgentError(thrown: unknown): unknown {
    const isAboutEffort = isEngineError(thrown) && /effort|chat_template_kwargs/i.test(thrown.message)
    return isAboutEffort ? (this.#rejection?.error ?? thrown) : thrown
  }

  /**
   * Learns from a rejected attempt after the retry has succeeded, which shows that the effort was the reason for the
   * error.
   */
  confirm(): void {
    if (this.#rejection !== undefined) this.#learn(this.#rejection)
  }

  /** Adds the change of effort to the turn's annotations, in the start event of the response. */
  annotate(batch: readonly GenerationEvent[]): readonly GenerationEvent[] {
    const change = this.#change
    if (change === undefined) return batch
    return batch.map((event) =>
      event.type === 'start'
        ? { ...event, annotations: { ...event.annotations, reasoning_effort: change } }
        : event,
    )
  }

  /**
   * Learns from two consecutive rejected attempts if their errors differ only in the effort: other errors may concern a
   * field that cannot be combined with efforts.
   */
  #learnBoth(second: Rejection): void {
    const first = this.#rejection!
    if (first.error.message.replaceAll(first.sent, second.sent) !== second.error.message) return
    this.#learn(first)
    this.#learn(second)
  }

  #learn({ memberId, rejected }: Rejection): void {
    this.#learned.learn(memberId, this.#model, rejected)
  }

  #getSupport(memberId: string): EffortSupport {
    const known = this.#learned.getRejected(memberId, this.#model)
    return {
      rejected: joinEfforts(known, this.#rejection?.rejected ?? NOTHING_REJECTED),
      hasThinkingSwitch: true,
    }
  }
}

/**
 * Returns whether the engine responded with an error. Until its pull request 54022, vLLM responded with HTTP 500 when a
 * template raised an error.
 */
function isEngineError(thrown: unknown): thrown is ProxyError {
  return thrown instanceof ProxyError && ['engine_rejected', 'engine_failed'].includes(thrown.code)
}

/** Returns the body of a request whose prompt the engine renders: efforts have no effect on others. */
export function getRenderedBody(request: GenerationRequest): ChatBody | undefined {
  return request.kind === 'chat' && request.promptTokenIds === undefined ? request.body : undefined
}
