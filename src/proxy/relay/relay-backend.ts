/** The backend of relay mode, which serves requests with the workers that are connected. */
import { systemClock } from '../../base/clock.ts'
import { type ErrorCode, ProxyError } from '../../base/errors.ts'
import { logEvent } from '../../base/log-events.ts'
import { type Logger, withContext } from '../../base/logger.ts'
import type { EventSink } from '../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../protocol/canonical/request.ts'
import { CAPABILITIES } from '../../protocol/worker/protocol.ts'
import { DISPATCH_DEFAULTS, Dispatcher, type DispatcherOptions } from '../engines/dispatch/dispatcher.ts'
import { type FailureVerdict, generateWithFailover, judgeResponse } from '../engines/dispatch/failover.ts'
import { EffortRegistry } from '../engines/dispatch/learned-efforts.ts'
import { createUnlistedPolicyError, type MemberCapability } from '../engines/dispatch/placement.ts'
import type { QueuedRequest } from '../engines/dispatch/scheduler.ts'
import type { Backend, BackendMember, BackendStatus } from '../engines/port/backend.ts'
import { createCannotCountError } from '../engines/port/count-tokens.ts'
import type { EngineModel } from '../engines/port/engine-client.ts'
import {
  describePromptMismatch,
  describeTokenizerMismatch,
  type ExpectedTokenizer,
  judgeTokenizer,
  TOKENIZER_TEXT,
  type TokenizerVerdict,
} from '../engines/port/expected-tokenizer.ts'
import type { MemberRegistry, RegistryEntry } from '../engines/port/registry.ts'
import type { ConnectedWorker, WorkerLimits } from './connected-worker.ts'
import type { ByteCounter, RelaySocket } from './relay-socket.ts'
import { WorkerRegistry } from './worker-registry.ts'

/** The options of a {@link RelayBackend}. */
export interface RelayBackendOptions
  extends Partial<WorkerLimits>,
    Partial<Omit<DispatcherOptions, 'createAbsentError' | 'logger'>> {
  logger: Logger
  /** The tokenizer of token mode. A worker with an engine that has another tokenizer receives no requests. */
  tokenizer?: ExpectedTokenizer | undefined
}

/** The defaults of {@link WorkerLimits}. */
const DEFAULTS = {
  heartbeatMs: 10_000,
  graceMs: 30_000,
  requestTimeoutMs: 300_000,
  windowBytes: 1024 * 1024,
  v1MaxConcurrency: DISPATCH_DEFAULTS.maxConcurrency,
} as const satisfies WorkerLimits

/**
 * The number of workers that a request may lose before its first event, so that a request that crashes workers does not
 * reach all of them.
 */
const MAX_LOSSES = 3

/** The errors of a worker or an engine that terminated while it served the request. */
const LOST: readonly ErrorCode[] = ['worker_lost', 'engine_lost']
/** The errors of a worker that shuts down, or whose engines are all unreachable. */
const UNAVAILABLE: readonly ErrorCode[] = ['engine_unreachable', 'shutting_down']

const NO_HEALTHY_ENGINE = 'none of its engines is healthy'

/** A backend that consists of the workers that are connected to the proxy. */
export class RelayBackend implements Backend, MemberRegistry {
  readonly mode = 'relay'
  readonly #registry: WorkerRegistry
  readonly #dispatcher: Dispatcher
  readonly #tokenizer: ExpectedTokenizer | undefined
  readonly #logger: Logger
  /** The reason why a worker receives no requests, as last logged, by worker id. */
  readonly #down = new Map<string, string>()
  readonly #efforts: EffortRegistry
  /** The warning of each worker, as last logged, by worker id. */
  readonly #warned = new Map<string, string | undefined>()

  constructor(options: RelayBackendOptions) {
    const { logger, clock = systemClock } = options
    const settings = { ...DISPATCH_DEFAULTS, ...DEFAULTS, ...options }
    const absent = (request: QueuedRequest) =>
      createUnlistedPolicyError(request, this.getStatus().members) ??
      ({
        code: 'no_worker',
        message: `no worker that could serve this request is connected${this.#describeRejections()}`,
      } as const)
    this.#tokenizer = options.tokenizer
    this.#logger = logger
    this.#efforts = new EffortRegistry(logger)
    this.#dispatcher = new Dispatcher({ ...settings, createAbsentError: absent, logger })
    this.#registry = new WorkerRegistry(
      { limits: settings, clock, logger },
      {
        onJoined: (worker) => this.#dispatcher.addMember(this.#toMember(worker)),
        onChanged: (worker) => {
          const { id, ...change } = this.#toMember(worker)
          // While its engines are down, they may be replaced by ones that support other efforts.
          if (!change.healthy) this.#efforts.forget(id)
          this.#dispatcher.updateMember(id, change)
        },
        onLeft: ({ identity: { workerId } }) => {
          this.#down.delete(workerId)
          this.#warned.delete(workerId)
          this.#efforts.forget(workerId)
          this.#dispatcher.removeMember(workerId)
        },
      },
    )
  }

  /**
   * Accepts a socket that was opened at `/ws/worker`, and owns it from then on.
   * @param greeted called when the worker's hello is accepted
   * @param connection the connection of the socket; absent: a frame is a sign of life only once it is complete
   */
  accept(socket: RelaySocket, greeted?: () => void, connection?: ByteCounter): void {
    this.#registry.accept(socket, greeted, connection)
  }

  generate(request: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void> {
    return generateWithFailover(
      {
        dispatcher: this.#dispatcher,
        serve: async (workerId, adapted, to, failedAttempts) => {
          const worker = this.#getWorker(workerId)
          await worker.begin(adapted, getWireId(adapted.requestId, failedAttempts)).pushTo(to, signal)
        },
        getKind: () => 'worker',
        judge: (thrown, workerId) => {
          const verdict = judge(thrown)
          if (verdict === 'lost' || verdict === 'unavailable') this.#efforts.forget(workerId)
          return verdict
        },
        efforts: this.#efforts,
        maxLosses: MAX_LOSSES,
        countMembers: () => this.#registry.listConnected().length,
      },
      request,
      sink,
      signal,
    )
  }

  async countTokens(): Promise<never> {
    throw createCannotCountError('Workers cannot count the tokens of a prompt')
  }

  async listModels(): Promise<EngineModel[]> {
    const models = new Map<string, EngineModel>()
    for (const worker of this.#registry.listConnected()) {
      const fault = findFault(worker, judgeTokenizers(worker, this.#tokenizer))
      const isServing = worker.state === 'serving' && fault === undefined
      for (const model of isServing ? worker.models : []) {
        if (!models.has(model.id)) models.set(model.id, model)
      }
    }
    return [...models.values()]
  }

  releaseSession(sessionId: string): void {
    this.#dispatcher.releaseSession(sessionId)
    for (const worker of this.#registry.listConnected()) worker.endSession(sessionId)
  }

  getStatus(): BackendStatus {
    const { members, waiting, pausedSinceMs, moves } = this.#dispatcher.getStats()
    return {
      queued: waiting,
      pausedSinceMs,
      moves,
      members: members.flatMap(({ id, inFlight }) => {
        const worker = this.#registry.get(id)
        if (worker === undefined) return []
        const ejectedForMs = this.#dispatcher.getEjectionMs(id) || undefined
        return [{ ...toBackendMember(worker, inFlight, this.#tokenizer), ejectedForMs }]
      }),
    }
  }

  list(): RegistryEntry[] {
    return this.#registry.listConnected().map((worker) => toRegistryEntry(worker, this.#tokenizer))
  }

  async register(): Promise<never> {
    throw new ProxyError(
      'wrong_mode',
      'In relay mode engines belong to workers: configure this one at a worker (llm-proxy worker --engine-url …)',
    )
  }

  remove(id: string): void {
    if (this.#registry.get(id) === undefined) {
      throw new ProxyError('worker_not_found', `There is no worker ${id}; GET /admin/workers lists them`)
    }
    throw new ProxyError('wrong_mode', `Worker ${id} would reconnect: stop its process`)
  }

  pause(): void {
    this.#dispatcher.pause()
  }

  resume(): Promise<void> {
    return this.#dispatcher.resumeAfter(this.refresh())
  }

  async refresh(): Promise<void> {
    await Promise.all(this.#registry.listConnected().map((worker) => worker.refresh()))
  }

  async close(): Promise<void> {
    this.#dispatcher.close()
    this.#registry.close()
  }

  /**
   * Converts a worker to a member of the dispatcher, and logs changes of its health and its warning. The member is
   * unhealthy if one of the worker's engines has another tokenizer.
   */
  #toMember(worker: ConnectedWorker) {
    const member = toMember(worker)
    const log = withContext(this.#logger, { worker_id: member.id })
    const warning = describeWarning(worker, this.#tokenizer)
    if (warning !== this.#warned.get(member.id)) {
      this.#warned.set(member.id, warning)
      if (warning === undefined) logEvent(log, 'worker_warning_cleared', {})
      else logEvent(log, 'worker_warning', { warning })
    }
    const tokenizerError = judgeTokenizers(worker, this.#tokenizer)?.error
    const reason = tokenizerError ?? (worker.healthy ? undefined : NO_HEALTHY_ENGINE)
    if (reason !== this.#down.get(member.id)) {
      if (reason === undefined) {
        this.#down.delete(member.id)
        logEvent(log, 'worker_up', {})
      } else {
        this.#down.set(member.id, reason)
        logEvent(log, 'worker_down', { reason })
      }
    }
    return tokenizerError === undefined ? member : { ...member, healthy: false }
  }

  #describeRejections(): string {
    const reasons = [...this.#down].map(([worker, reason]) => `${worker}: ${reason}`)
    return reasons.length === 0 ? '' : `: ${reasons.join('; ')}`
  }

  /** Returns a worker. @throws ProxyError `worker_lost` if it has left since the request was dispatched to it */
  #getWorker(workerId: string): ConnectedWorker {
    const worker = this.#registry.get(workerId)
    if (!worker) throw new ProxyError('worker_lost', `worker ${workerId} left`)
    return worker
  }
}

/**
 * Returns a request's id on the wire: from the second attempt on, it has the number of the attempt as a suffix, so that
 * late frames of an earlier attempt are never attributed to a later one.
 */
function getWireId(requestId: string, failedAttempts: number): string {
  return failedAttempts === 0 ? requestId : `${requestId}.${failedAttempts + 1}`
}

function toMember(worker: ConnectedWorker) {
  return {
    id: worker.identity.workerId,
    maxConcurrency: worker.identity.maxConcurrency,
    healthy: worker.isConnected && worker.healthy,
    unavailable: worker.unavailable,
    draining: worker.state === 'draining',
    models: worker.models.map((model) => model.id),
    weightVersion: worker.weightVersion,
    lacks: findMissingAbilities(worker),
    busyElsewhere: worker.busyElsewhere,
  }
}

function findMissingAbilities({ identity: { version, capabilities } }: ConnectedWorker): MemberCapability[] {
  if (version === 1) return ['completion', 'token_ids', 'images']
  const lacks: MemberCapability[] = []
  if (!capabilities.includes(CAPABILITIES.tokenIds)) lacks.push('token_ids')
  if (!capabilities.includes(CAPABILITIES.images)) lacks.push('images')
  return lacks
}

function toRegistryEntry(worker: ConnectedWorker, expected: ExpectedTokenizer | undefined): RegistryEntry {
  const { workerId, version, maxConcurrency } = worker.identity
  const error = findFault(worker, judgeTokenizers(worker, expected))
  return {
    id: workerId,
    kind: 'worker',
    url: null,
    engineKind: null,
    modelName: null,
    weight: 1,
    version,
    load: Math.max(worker.load, worker.requestCount),
    maxConcurrency,
    models: worker.models.map((model) => model.id),
    weightVersion: worker.weightVersion ?? null,
    healthy: error === undefined,
    error: error ?? null,
    draining: worker.state === 'draining',
    sinceMs: worker.connectedSinceMs,
  }
}

/** Returns the reason why a worker receives no requests; undefined if it is healthy. */
function findFault(worker: ConnectedWorker, tokenizers: TokenizerJudgement | undefined): string | undefined {
  if (tokenizers?.error !== undefined) return tokenizers.error
  if (!worker.isConnected) return 'its connection is lost'
  return worker.healthy ? undefined : NO_HEALTHY_ENGINE
}

/** The worst verdict on the tokenizers of a worker's engines. */
interface TokenizerJudgement {
  tokenizer: TokenizerVerdict
  /** The difference, if the verdict is `other`. */
  error?: string
}

/**
 * Compares the tokenizers of a worker's engines with the expected one. A request may be dispatched to any of the
 * engines, so the worst verdict counts.
 * @returns undefined in chat mode
 */
function judgeTokenizers(
  { textIds }: ConnectedWorker,
  expected: ExpectedTokenizer | undefined,
): TokenizerJudgement | undefined {
  if (expected === undefined) return undefined
  const engines = textIds?.text === TOKENIZER_TEXT ? textIds.engines : []
  const verdicts = engines.map((engine) => judgeTokenizer(expected, { textIds: engine.ids }))
  const other = engines[verdicts.indexOf('other')]
  if (other !== undefined) {
    const models = other.models.map((id) => ({ id }))
    const error = describeTokenizerMismatch('other', expected, { models, textIds: other.ids })
    return { tokenizer: 'other', error: `${other.name}: ${error}` }
  }
  return { tokenizer: verdicts.find((verdict) => verdict === 'split') ?? verdicts[0] ?? 'unknown' }
}

/**
 * Formats the warning that the worker reports and the differences between its engines' prompts and the expected ones.
 */
function describeWarning(
  { warning, textIds }: ConnectedWorker,
  expected: ExpectedTokenizer | undefined,
): string | undefined {
  const engines = expected && textIds?.text === TOKENIZER_TEXT ? textIds.engines : []
  const prompts = engines.flatMap(({ name, chat_ids: chatIds = {} }) => {
    const other = describePromptMismatch(expected!, { chatIds })
    return other === undefined ? [] : [`${name}: ${other}`]
  })
  return [warning, ...prompts].filter((text) => text !== undefined).join('; ') || undefined
}

function toBackendMember(
  worker: ConnectedWorker,
  inFlight: number,
  expected: ExpectedTokenizer | undefined,
): BackendMember {
  const { identity, weightVersion } = worker
  const tokenizers = judgeTokenizers(worker, expected)
  const error = findFault(worker, tokenizers)
  return {
    name: identity.workerId,
    kind: 'worker',
    healthy: error === undefined,
    unavailable: worker.unavailable,
    connected: worker.isConnected,
    tokenizer: tokenizers?.tokenizer,
    inFlight,
    capacity: identity.maxConcurrency,
    models: worker.models.map((model) => model.id),
    takesTokenIds: identity.capabilities.includes(CAPABILITIES.tokenIds),
    takesImages: identity.capabilities.includes(CAPABILITIES.images) || undefined,
    weightVersion,
    error,
    warning: describeWarning(worker, expected),
  }
}

function judge(thrown: unknown): FailureVerdict {
  if (!(thrown instanceof ProxyError)) return 'final'
  if (LOST.includes(thrown.code)) return 'lost'
  // The worker's engines no longer list the policy, as after a restart, although its last status did.
  if (thrown.code === 'policy_not_served') return 'failed'
  return UNAVAILABLE.includes(thrown.code) ? 'unavailable' : judgeResponse(thrown)
}
