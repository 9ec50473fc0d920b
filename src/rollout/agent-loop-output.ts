/**
 * The result of a rollout as a trainer receives it: one output for each row of the session, because a session that
 * branched has several.
 */
import Type from 'typebox'
import {
  type AgentLoopExtraFields,
  type AgentLoopMetrics,
  type AgentLoopOutput,
  extraFields,
  rolloutFields,
  type rowExtraFields,
} from '../protocol/schema/agent-loop-output.ts'
import type { FieldValues } from '../protocol/schema/field.ts'
import { isDeprecated, withFormerNames } from '../protocol/schema/former-names.ts'
import type { SessionTrajectories, TrajectoryRow } from './proxy-client.ts'
import { pickTokenData } from './row-details.ts'
import type { AgentStatus } from './runners/runner.ts'

/** The outcome of a rollout, without its rows. */
export interface RolloutOutcome {
  trialId: string
  sessionId: string
  status: AgentStatus
  error: string | null
  tries: number
  agentSeconds: number
}

/** The rows of a rollout: at least one, because every sample has a result. */
export type AgentLoopOutputs = [AgentLoopOutput, ...AgentLoopOutput[]]

/** The rows of a rollout, and the values that apply to all of them. */
export interface RolloutResult {
  rows: AgentLoopOutputs
  /** null if the rollout has none. */
  reward: number | null
  /** The number of exact turns that are in no row because `select` excluded their rows. */
  left_out_turns: number
  /** The images of the rows: `data:` URLs by SHA-256 digest. Absent: not requested. */
  images?: Readonly<Record<string, string>> | undefined
}

/**
 * Creates the result of a rollout.
 * @param session the session with all its rows
 * @param chosen the session with the selected rows
 */
export function toRolloutResult(
  session: SessionTrajectories,
  chosen: SessionTrajectories,
  facts: RolloutOutcome,
): RolloutResult {
  const getTurns = (rows: readonly TrajectoryRow[]) =>
    new Set(rows.filter((row) => row.exact).flatMap(({ turns }) => turns.map((turn) => turn.turn_id)))
  const chosenTurns = getTurns(chosen.trajectories)
  const { reward, images } = chosen
  return {
    rows: toOutputs(session, facts, chosen.trajectories),
    reward,
    left_out_turns: [...getTurns(session.trajectories)].filter((id) => !chosenTurns.has(id)).length,
    images,
  }
}

/**
 * Converts the rows of a session to outputs. Each output has the complete reward of the session, or that of its agent
 * role. A completion that several rows share is trained in only one of them, so it counts once. A trainer that weights
 * rollouts equally divides by `num_rows`.
 * @returns one padding row if no row has tokens to train on
 */
export function toOutputs(
  session: SessionTrajectories,
  facts: RolloutOutcome,
  chosen: readonly TrajectoryRow[] = session.trajectories,
): AgentLoopOutputs {
  const exact = chosen.filter((row) => row.exact)
  const inexactTurns = session.trajectories
    .filter((row) => !row.exact)
    .reduce((sum, { turns }) => sum + turns.length, 0)
  const reward = { score: session.reward, components: session.reward_components }
  // A truncated branch may contain only tokens that another row trains. Its row would count the reward twice.
  const rows = exact.filter(({ response_mask: mask }) => mask.includes(1))
  if (rows.length === 0) {
    const inexact = session.trajectories.find((row) => !row.exact)?.inexact_reason
    const reason = inexact ? `its turns are not exact: ${inexact}` : explainEmpty(session)
    return [createPaddingOutput({ ...facts, error: facts.error ?? reason }, reward, { inexactTurns })]
  }
  const metrics = toMetrics(facts, { num_rows: rows.length, inexact_turns: inexactTurns })
  return rows.map((row, position) => ({
    prompt_ids: row.prompt_ids,
    response_ids: row.response_ids,
    response_mask: row.response_mask,
    response_logprobs: row.response_logprobs,
    ...pickTokenData(row),
    ...(row.images && { images: row.images }),
    // The reward of the agent role, if it has one.
    reward_score: row.reward ?? reward.score,
    num_turns: row.num_turns,
    metrics: { ...metrics },
    extra_fields: toExtraFields(facts, reward.components, position, row),
  })) as AgentLoopOutputs
}

/**
 * Creates a row that trains no token. It has one token each for prompt and response, because trainers put the reward on
 * the last token of a response and pad from existing tokens; the id is irrelevant, because its mask is 0.
 * @param reward the reward of the rollout; the score is null if none was set, because a 0 would count in the mean of
 *   the sample's group
 */
export function createPaddingOutput(
  facts: RolloutOutcome,
  reward: { score: number | null; components: Record<string, number> },
  counts: { failed?: 1; inexactTurns?: number } = {},
): AgentLoopOutput {
  const { failed = 0, inexactTurns = 0 } = counts
  return {
    prompt_ids: [0],
    response_ids: [0],
    response_mask: [0],
    response_logprobs: [0],
    reward_score: reward.score,
    num_turns: 0,
    metrics: toMetrics(facts, { failed, padding: 1, inexact_turns: inexactTurns }),
    extra_fields: toExtraFields(facts, reward.components, 0),
  }
}

function toMetrics(facts: RolloutOutcome, more: Partial<Omit<AgentLoopMetrics, 'inert'>>): AgentLoopMetrics {
  const { agentSeconds, tries } = facts
  const counts = { failed: 0, padding: 0, num_rows: 1, inexact_turns: 0 } as const
  return withFormerNames({ agent_seconds: agentSeconds, tries, ...counts, ...more })
}

function toExtraFields(
  { trialId, sessionId, status, error }: RolloutOutcome,
  rewardComponents: Record<string, number>,
  position: number,
  /** Absent: a padding row. */
  row?: TrajectoryRow,
): AgentLoopExtraFields {
  const own: Readonly<Record<string, unknown>> = {
    trial_id: trialId,
    session_id: sessionId,
    agent_status: status,
    error,
    row: position,
    reward_components: { ...rewardComponents },
    turn_rewards:
      row?.turns.flatMap(({ start, end, reward }) => (reward === null ? [] : { start, end, reward })) ?? [],
  } satisfies FieldValues<typeof rolloutFields>
  const values = Object.entries(extraFields).flatMap(([name, { type }]) => {
    if (isDeprecated(type)) return []
    if (name in rolloutFields) return [[name, own[name]]]
    const value = row?.[name as keyof typeof rowExtraFields]
    return [[name, value ?? (Type.IsBoolean(type) ? false : null)]]
  })
  return withFormerNames(Object.fromEntries(values)) as AgentLoopExtraFields
}

function explainEmpty({ trajectories, excluded_turns: excluded }: SessionTrajectories): string {
  if (trajectories.length > 0) return 'no sampled token remains in its rows'
  const others = Object.entries(excluded).filter(([, count]) => count > 0)
  if (others.length === 0) return 'the agent sent no request'
  return `no turn to train on: ${others.map(([status, count]) => `${count} ${status}`).join(', ')}`
}
