/** `llm-proxy verify [session-id...]`: compares recorded turns with an engine. */
import { ProxyError } from '../../base/errors.ts'
import { openEngines } from '../../open-engines.ts'
import { hasMediaParts } from '../../protocol/canonical/images.ts'
import type { VerifyConfig } from '../../proxy/config/options/verify.ts'
import type { EngineClient, EngineHealth } from '../../proxy/engines/port/engine-client.ts'
import { isFiltered } from '../../proxy/verify/hints.ts'
import { type VerifyRun, verifyTurns } from '../../proxy/verify/run.ts'
import {
  getRecordedLogprobs,
  type SamplingAnnotation,
  type TurnMasks,
} from '../../proxy/verify/turn-masks.ts'
import { type TurnResult, type VerifiableTurn, Verifier } from '../../proxy/verify/verifier.ts'
import type { SessionsApi, TurnJson } from '../sessions/api.ts'
import { listSessionIds } from '../sessions/list.ts'
import { withSessionsApi } from '../sessions/open-api.ts'
import { formatJson } from '../table.ts'
import { formatReport } from './report.ts'

/** The exit codes by verdict. The codes 1 and 2 mean that the command failed. */
const EXIT_CODES: Readonly<Record<VerifyRun['verdict'], number>> = { same: 0, differs: 3, void: 4 }

/** The time limit of the engine's health request. */
const HEALTH_MS = 10_000

/**
 * Runs the command.
 * @returns the exit code
 * @throws ProxyError `config_invalid`, `start_failed`, `session_not_found`, `unsupported`, or the error of an engine
 */
export function run(config: VerifyConfig, sessionIds: string[]): Promise<number> {
  const { engineUrl, engineKind, engineApiKey } = config
  const [engine] = openEngines({
    engineUrls: engineUrl === undefined ? [] : [engineUrl],
    engineKind,
    engineApiKey,
  })
  return withSessionsApi(config, async (api) => {
    try {
      return await verifyWith(engine!, api, config, sessionIds)
    } finally {
      await engine!.close()
    }
  })
}

async function verifyWith(
  engine: EngineClient,
  api: SessionsApi,
  config: VerifyConfig,
  sessionIds: readonly string[],
): Promise<number> {
  const { model, logprobsOf, meanTolerance, tokenTolerance, alternatives, anyWeights, greedy, limit } = config
  const tolerance = { mean: meanTolerance, token: tokenTolerance }
  // The first request to an engine of the kind `auto` determines its kind, which the verifier needs.
  const health = await checkEngine(engine)
  const verifier = new Verifier(engine, health, {
    tolerance,
    logprobsKind: logprobsOf === 'auto' ? undefined : logprobsOf,
    model,
    anyWeights,
    alternatives,
    greedy,
  })
  const turns: TurnResult[] = []
  const run = await verifyTurns(verifier, readRecordedTurns(api, sessionIds), {
    limit,
    signal: new AbortController().signal,
    onTurn: (result) => turns.push(result),
  })
  const report = {
    ...run,
    engine: engine.name,
    weight_version: health.weightVersion ?? null,
    logprobs: verifier.defaultLogprobsKind,
    tolerance,
    turns,
  }
  process.stdout.write(`${config.json ? formatJson(report, 2) : formatReport(report)}\n`)
  return EXIT_CODES[run.verdict]
}

async function checkEngine(engine: EngineClient): Promise<EngineHealth> {
  try {
    return await engine.checkHealth(AbortSignal.timeout(HEALTH_MS))
  } catch (cause) {
    throw new ProxyError('start_failed', `the engine does not respond: ${(cause as Error).message}`, {
      cause,
    })
  }
}

async function* readRecordedTurns(
  api: SessionsApi,
  sessionIds: readonly string[],
): AsyncGenerator<VerifiableTurn> {
  for await (const sessionId of listSessionIds(api, sessionIds)) {
    const { turns } = await api.getWithTurns(sessionId)
    const masks = turns.some(({ params }) => isFiltered(params)) ? await readMasks(api, sessionId) : NO_MASKS
    for (const turn of turns) yield { ...toVerifiableTurn(sessionId, turn), ...masks.get(turn.turn_id) }
  }
}

const NO_MASKS: ReadonlyMap<string, TurnMasks> = new Map()

/** The query for rows that contain one turn each, so that a row has the masks of its turn. */
const MASK_ROWS = {
  select: 'all',
  side_calls: true,
  rejected: true,
  finished_only: false,
  per_turn: true,
  details: 'sampling_mask,sampling_logprobs',
} as const

/** Returns the recorded masks by turn id. */
async function readMasks(api: SessionsApi, sessionId: string): Promise<ReadonlyMap<string, TurnMasks>> {
  const { trajectories } = await api.getWithTrajectories(sessionId, MASK_ROWS)
  const masks = new Map<string, TurnMasks>()
  for (const { turns, sampling_mask: mask, sampling_logprobs: logprobs } of trajectories) {
    const { turn_id: turnId, start, end } = turns[0]!
    masks.set(turnId, {
      samplingMask: mask?.slice(start, end),
      samplingLogprobs: logprobs?.slice(start, end),
    })
  }
  return masks
}

function toVerifiableTurn(sessionId: string, turn: TurnJson): VerifiableTurn {
  const { sampling }: SamplingAnnotation = turn.annotations
  return {
    logprobsKind: getRecordedLogprobs({ sampling }),
    sessionId,
    turnId: turn.turn_id,
    index: turn.index,
    status: turn.status,
    exact: turn.exact,
    model: turn.model,
    params: turn.params,
    defaults: sampling?.defaults,
    hasMedia: turn.request_messages.some(hasMediaParts),
    promptTokenIds: turn.prompt_token_ids,
    completionTokenIds: turn.completion_token_ids,
    completionLogprobs: turn.completion_logprobs,
    weightVersionStart: turn.weight_version_start,
    weightVersionEnd: turn.weight_version_end,
  }
}
