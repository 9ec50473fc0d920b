/**
 * Writes OpenEnv's `TrainingTrace`, version 1 (`openenv/core/harness/training.py` of 0.10.0), which TRL's AsyncGRPO
 * trains on (`trl/experimental/async_grpo/openenv_harness.py` of 1.16.0).
 */
import { getTextsUpTo } from '../../../../protocol/canonical/conversation.ts'
import { withFormerNames } from '../../../../protocol/schema/former-names.ts'
import type { Trajectory, TurnSpan } from '../../../session/trajectories/trajectories.ts'
import { openObject, writeMember, writeNumbers, writeTexts } from '../sessions/json-stream.ts'
import { buildResponseMessage } from '../traces/serialise.ts'
import type { TurnText } from './read-session.ts'

/**
 * Writes each trained turn once, row by row. TRL appends a turn to the previous one if its prompt begins with the
 * tokens of that turn, and otherwise begins a new row. Turns without exact ids are omitted; later prompts contain their
 * texts.
 * @param turns the texts of turns by turn id
 * @returns chunks of one JSON text. One row is in memory at a time
 */
export function* writeTrainingTrace(
  rows: Iterable<Trajectory>,
  turns: ReadonlyMap<string, TurnText>,
): Generator<string> {
  yield '{"schema_version":1,"turns":['
  let separator = ''
  for (const row of rows) {
    for (const span of row.turns) {
      if (!row.exact || !span.trained) continue
      yield separator
      yield* writeTrainingTurn(row, span, turns.get(span.turn_id)!)
      separator = ','
    }
  }
  yield ']}'
}

function* writeTrainingTurn(row: Trajectory, span: TurnSpan, turn: TurnText): Generator<string> {
  const { turn_id, start, end, weight_version_start, weight_version_end } = span
  const { index, agent_role, policy, reward, labels } = span
  const promptLength = row.prompt_ids.length + start
  const prompt = new Int32Array(promptLength)
  prompt.set(row.prompt_ids)
  prompt.set(row.response_ids.subarray(0, start), row.prompt_ids.length)
  const mask = new Uint8Array(promptLength + end - start).fill(1, promptLength)
  const versions = { weight_version_start, weight_version_end }
  const own = { index, agent_role, policy, reward, labels, model: turn.model }
  const metadata = { ...withFormerNames(own), ...versions }
  yield openObject({ node_id: turn_id, metadata })
  yield* writeMember('prompt_token_ids', writeNumbers(prompt))
  yield* writeMember('completion_token_ids', writeNumbers(row.response_ids.subarray(start, end)))
  yield* writeMember('per_token_logps', writeNumbers(row.response_logprobs.subarray(start, end)))
  yield* writeMember('loss_mask', writeNumbers(mask))
  yield ',"request":{"messages":'
  yield* writeTexts(getTextsUpTo(turn.lastMessage))
  yield* writeMember('tools', [turn.tools ?? '[]'])
  yield '},"response":{"choices":[{"message":'
  yield* buildResponseMessage(turn)
  yield* writeMember('finish_reason', [JSON.stringify(turn.finishReason)])
  yield '}]}}'
}
