/**
 * Writes a session in ATIF 1.7, Harbor's Agent Trajectory Interchange Format (`harbor/models/trajectories` of Harbor
 * 0.25.0).
 */
import { yieldToEventLoop } from '../../../../base/yield-to-event-loop.ts'
import { withFormerNames } from '../../../../protocol/schema/former-names.ts'
import { isMainWork } from '../../../session/roles/agent-role.ts'
import { rejectPartial } from '../../../session/trajectories/reject-partial.ts'
import { isTrace } from '../../../session/trajectories/traces.ts'
import type { SessionRecord, TurnReader } from '../../../store/port/turn-store.ts'
import { openObject, writeMember, writeNumbers } from '../sessions/json-stream.ts'
import { type AtifCounts, type AtifStep, AtifSteps, parseTokenCounts } from './atif-steps.ts'
import type { TurnText } from './read-session.ts'

const VERSION = 'ATIF-v1.7'

/** A session to write, and the reader of its token ids. */
interface AtifSource {
  readonly reader: Pick<TurnReader, 'getSession' | 'getTurn'>
  readonly session: SessionRecord
  /** Whether steps have token ids and logprobs. */
  readonly ids: boolean
}

/**
 * Writes the document from the completed turns of a session. The turns of the main agent role, with its compactions, form the
 * trajectory; those of each other agent role form one of `subagent_trajectories`. Memory contains the steps without token
 * ids, which are read step by step.
 * @param turns in the order of their indices
 * @returns chunks of one JSON text; undefined if no turn was completed, because a trajectory has at least one step
 */
export async function writeAtifDocument(
  source: AtifSource,
  turns: Iterable<TurnText>,
): Promise<AsyncGenerator<string> | undefined> {
  const stepsByRole = new Map<string, AtifSteps>()
  for (const turn of turns) {
    if (!isTrace(turn)) continue
    const agentRole = isMainWork(turn.line) ? 'main' : turn.line
    const steps = stepsByRole.get(agentRole) ?? new AtifSteps()
    stepsByRole.set(agentRole, steps)
    steps.add(turn)
    await yieldToEventLoop()
  }
  const [first, ...others] = [...stepsByRole].sort(([a], [b]) => Number(b === 'main') - Number(a === 'main'))
  return first && writeRootDocument(source, first, others)
}

async function* writeRootDocument(
  source: AtifSource,
  first: [string, AtifSteps],
  others: readonly [string, AtifSteps][],
): AsyncGenerator<string> {
  const { status, reward, marks, metadata } = source.session
  yield* writeTrajectory(source, first)
  yield* writeMember('extra', [
    JSON.stringify(
      withFormerNames({
        status,
        reward: reward?.reward ?? null,
        reward_components: reward?.components,
        labels: marks.labels,
        note: marks.note,
        turn_labels: marks.turns,
        metadata,
      }),
    ),
  ])
  let separator = ',"subagent_trajectories":['
  for (const other of others) {
    yield separator
    yield* writeTrajectory(source, other)
    yield '}'
    separator = ','
  }
  if (source.ids) await rejectPartial(source.reader, source.session)
  yield others.length > 0 ? ']}' : '}'
}

/** Yields the JSON object of a trajectory without its closing brace, so that members can be added. */
async function* writeTrajectory(
  source: AtifSource,
  [line, { steps, turns }]: [string, AtifSteps],
): AsyncGenerator<string> {
  const { sessionId, metadata } = source.session
  const last = [...turns.values()].at(-1)!
  const { agent_name: name, agent_version: version } = metadata
  yield openObject({
    schema_version: VERSION,
    session_id: sessionId,
    trajectory_id: `${sessionId}:${line}`,
    agent: {
      name: typeof name === 'string' ? name : 'unknown',
      version: typeof version === 'string' ? version : 'unknown',
      model_name: last.model ?? undefined,
      tool_definitions: last.tools === null ? undefined : JSON.parse(last.tools),
    },
  })
  let separator = ',"steps":['
  for (const step of steps) {
    yield separator
    yield* stepToWire(source, step, turns.get(step))
    separator = ','
  }
  yield ']'
  yield* writeMember('final_metrics', [JSON.stringify(computeFinalMetrics(steps, turns.values()))])
}

async function* stepToWire(
  { reader, session, ids }: AtifSource,
  step: AtifStep,
  turn: TurnText | undefined,
): AsyncGenerator<string> {
  if (turn === undefined) return yield JSON.stringify(step)
  yield `${openObject(step)},"metrics":`
  const counts = parseTokenCounts(turn.usage)
  const fullTurn = ids && turn.exact ? await reader.getTurn(session.sessionId, turn.turnId) : undefined
  if (fullTurn === undefined) return yield `${JSON.stringify(counts)}}`
  yield openObject({
    prompt_tokens: fullTurn.promptTokenIds.length,
    completion_tokens: fullTurn.completionTokenIds.length,
    ...counts,
  })
  yield* writeMember('prompt_token_ids', writeNumbers(fullTurn.promptTokenIds))
  yield* writeMember('completion_token_ids', writeNumbers(fullTurn.completionTokenIds))
  yield* writeMember('logprobs', writeNumbers(fullTurn.completionLogprobs))
  yield '}}'
}

function computeFinalMetrics(steps: readonly AtifStep[], turns: Iterable<TurnText>) {
  const counts = [...turns].map(({ usage }) => parseTokenCounts(usage))
  const sum = (name: keyof AtifCounts) => counts.reduce((sum, each) => sum + (each[name] ?? 0), 0)
  return {
    total_prompt_tokens: sum('prompt_tokens'),
    total_completion_tokens: sum('completion_tokens'),
    total_cached_tokens: sum('cached_tokens'),
    total_steps: steps.length,
  }
}
