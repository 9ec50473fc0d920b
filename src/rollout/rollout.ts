/**
 * One rollout: runs an agent, retries it if it fails, and returns the rows of its recorded session. Each attempt has
 * its own session. The session of a failed attempt is aborted before the next attempt begins: the proxy cancels its
 * requests in flight and rejects later ones from any machine, so that none of them is recorded in the session of the
 * next attempt.
 */
import { ProxyError, toProxyError } from '../base/errors.ts'
import { logEvent } from '../base/log-events.ts'
import type { Logger } from '../base/logger.ts'
import { cloneJson } from '../protocol/canonical/number-texts.ts'
import {
  createPaddingOutput,
  type RolloutOutcome,
  type RolloutResult,
  toRolloutResult,
} from './agent-loop-output.ts'
import { computeBackoffMs, pause } from './backoff.ts'
import type { ProxyClient, RowChoice } from './proxy-client.ts'
import type { AgentResult, AgentRunner, AgentSettings, AgentTask, Sample } from './runners/runner.ts'
import { toSessionSegment } from './session-urls.ts'
import { createSessionId, createTrialId, getInstanceId } from './trial-id.ts'

export interface RolloutOptions extends RowChoice {
  proxy: ProxyClient
  runner: AgentRunner
  logger: Logger
  /** The proxy's base URL for agents. */
  agentFacingUrl: string
  modelName: string | undefined
  trustAgent: boolean
  /** Whether responses continue after a cut; undefined: as the proxy is configured. */
  continueResponses?: boolean | undefined
  maxRetries: number
  retryBaseDelayMs: number
  onTimeLimit: 'retry' | 'keep'
  /** The runner's settings that this rollout overrides. */
  agent?: AgentSettings | undefined
  findTaskPath(sample: Sample): string | undefined
  /** Returns a random number from 0 to 1, as `Math.random` does. */
  random(): number
}

type RolloutParams = Readonly<Record<string, unknown>>

/** The time limit for aborting the session of an attempt that ended with an error. */
const ABORT_TIMEOUT_MS = 5_000

const SESSION_REMOVED = 'its session was removed'

/** One rollout. An instance is run once. */
export class Rollout {
  readonly #options: RolloutOptions
  readonly #samplingParams: RolloutParams
  readonly #sample: Sample
  readonly #trialId: string
  readonly #startedAtMs = performance.now()

  constructor(options: RolloutOptions, samplingParams: RolloutParams, sample: Sample) {
    this.#options = options
    // Copied here, and again for each attempt: a runner's changes must not affect other attempts or the caller.
    this.#samplingParams = cloneJson(samplingParams)
    this.#sample = structuredClone(sample)
    this.#trialId = createTrialId(sample)
  }

  /** Runs the rollout. @throws ProxyError of the proxy; `signal.reason` once the agent has been stopped */
  async run(signal: AbortSignal): Promise<RolloutResult> {
    const { maxRetries, retryBaseDelayMs, random } = this.#options
    for (let tryNumber = 1; ; tryNumber += 1) {
      const sessionId = createSessionId(this.#trialId, tryNumber)
      const result = await this.#runAttempt(sessionId, tryNumber, signal)
      let facts = this.#toOutcome(sessionId, tryNumber, result)
      if (this.#isFinal(result)) {
        const collected = await unlessRemoved(this.#collect(facts, signal))
        if (collected !== undefined) return collected
        facts = { ...facts, status: 'failed', error: SESSION_REMOVED }
      }
      this.#logFailure(facts)
      if (tryNumber > maxRetries) {
        const row = createPaddingOutput(facts, { score: null, components: {} }, { failed: 1 })
        return { rows: [row], reward: null, left_out_turns: 0 }
      }
      await pause(computeBackoffMs(retryBaseDelayMs, tryNumber, random), signal)
    }
  }

  #isFinal({ status }: AgentResult): boolean {
    return status === 'completed' || (status === 'timeout' && this.#options.onTimeLimit === 'keep')
  }

  /** Runs the agent once, in a new session that is completed or aborted afterwards. */
  async #runAttempt(sessionId: string, tryNumber: number, signal: AbortSignal): Promise<AgentResult> {
    const { proxy } = this.#options
    const apiKey = await proxy.createSession(this.#newSession(sessionId, tryNumber), signal)
    try {
      const result = await this.#runAgent(this.#createTask(sessionId, tryNumber, apiKey), signal)
      if (this.#isFinal(result)) return await this.#complete(sessionId, result, signal)
      await proxy.abort(sessionId, signal)
      return result
    } catch (error) {
      // An error of the abort must not hide the first error; the session then stays active.
      await proxy.abort(sessionId, AbortSignal.timeout(ABORT_TIMEOUT_MS)).catch(() => {})
      throw error
    }
  }

  #newSession(sessionId: string, tryNumber: number) {
    const instanceId = getInstanceId(this.#sample)
    const metadata = { trial_id: this.#trialId, try: tryNumber }
    return {
      session_id: sessionId,
      metadata: { ...metadata, instance_id: instanceId },
      sampling_params: withoutRecording(this.#samplingParams),
      trust_agent: this.#options.trustAgent || undefined,
      continue_responses: this.#options.continueResponses,
      record: this.#options.record?.length ? this.#options.record : undefined,
    }
  }

  #createTask(sessionId: string, tryNumber: number, apiKey: string): AgentTask {
    const { agentFacingUrl, modelName, findTaskPath: taskPathOf, proxy, agent } = this.#options
    const sample = structuredClone(this.#sample)
    const anthropicBaseUrl = `${agentFacingUrl}/${toSessionSegment(sessionId)}`
    return {
      trialId: this.#trialId,
      sessionId,
      tryNumber,
      sample,
      taskPath: taskPathOf(sample),
      samplingParams: cloneJson(this.#samplingParams),
      openaiBaseUrl: `${anthropicBaseUrl}/v1`,
      anthropicBaseUrl,
      apiKey,
      modelName,
      settings: agent,
      untilEnded: (untilSignal) => proxy.waitForEnd(sessionId, untilSignal),
    }
  }

  async #runAgent(task: AgentTask, signal: AbortSignal): Promise<AgentResult> {
    try {
      const result = await this.#options.runner.run(task, signal)
      return rejectRewards(result) ?? result
    } catch (error) {
      signal.throwIfAborted()
      return { status: 'error', rewards: {}, error: getMessage(toProxyError(error)) }
    }
  }

  /** Completes the session with its reward. The result is `failed` if the session was removed or aborted. */
  async #complete(sessionId: string, result: AgentResult, signal: AbortSignal): Promise<AgentResult> {
    const status = (await unlessRemoved(this.#sendEnd(sessionId, result, signal))) ?? 'not_found'
    if (status === 'completed') return result
    const error = status === 'not_found' ? SESSION_REMOVED : 'its session was aborted'
    return { ...result, status: 'failed', error }
  }

  async #sendEnd(sessionId: string, { rewards }: AgentResult, signal: AbortSignal) {
    const { proxy } = this.#options
    const parts = Object.values(rewards)
    if (parts.length > 0) {
      const reward = parts.reduce((sum, part) => sum + part, 0)
      await proxy.setReward(sessionId, { reward, components: { ...rewards } }, signal)
    }
    return await proxy.complete(sessionId, signal)
  }

  /**
   * Fetches the rows. Selected rows are requested separately, because tokens that they share with omitted rows are then
   * trained in them.
   */
  async #collect(facts: RolloutOutcome, signal: AbortSignal): Promise<RolloutResult> {
    const { proxy, ...choice } = this.#options
    const all = await proxy.getTrajectories(facts.sessionId, { ...choice, select: 'all' }, signal)
    const isComplete =
      choice.select === 'all' || (choice.select === 'longest' && all.trajectories.length <= 1)
    const chosen = isComplete ? all : await proxy.getTrajectories(facts.sessionId, choice, signal)
    return toRolloutResult(all, chosen, facts)
  }

  #toOutcome(sessionId: string, tries: number, { status, error }: AgentResult): RolloutOutcome {
    const agentSeconds = (performance.now() - this.#startedAtMs) / 1000
    return { trialId: this.#trialId, sessionId, status, error: error ?? null, tries, agentSeconds }
  }

  #logFailure({ trialId, sessionId, status, error, tries }: RolloutOutcome): void {
    logEvent(this.#options.logger, 'agent_failed', {
      ...{ trial_id: trialId, session_id: sessionId, agent_status: status, attempt: tries },
      reason: error ?? undefined,
    })
  }
}

/**
 * Removes verl's parameter `logprobs`, which requests that logprobs be captured: the proxy always records them, and
 * must not send them to an agent that did not request them.
 */
function withoutRecording({ logprobs: _, ...params }: RolloutParams): Record<string, unknown> {
  return params
}

/** Returns an `error` result if a reward is not a finite number, which JSON cannot represent; otherwise undefined. */
function rejectRewards({ rewards, ...result }: AgentResult): AgentResult | undefined {
  const wrong = Object.entries(rewards).find(([, part]) => !Number.isFinite(part))
  if (wrong === undefined) return undefined
  return {
    ...result,
    status: 'error',
    rewards: {},
    error: `its reward "${wrong[0]}" is ${wrong[1]}, which is not a finite number`,
  }
}

/** Returns the result of a request for a session; undefined if the proxy no longer has the session. */
async function unlessRemoved<T>(request: Promise<T>): Promise<T | undefined> {
  try {
    return await request
  } catch (error) {
    if (error instanceof ProxyError && error.code === 'session_not_found') return undefined
    throw error
  }
}

function getMessage(error: ProxyError): string {
  const { cause } = error
  if (error.code === 'internal' && cause instanceof Error) return cause.message
  return cause instanceof Error ? `${error.message}: ${cause.message}` : error.message
}
