/**
 * Writes rows as tokenized data for TRL's `SFTTrainer` and most other trainers: `input_ids`, and `labels` with -100 for
 * tokens without loss.
 */
import { withFormerNames } from '../../../../protocol/schema/former-names.ts'
import type { Trajectory } from '../../../session/trajectories/trajectories.ts'
import { openObject, writeMember, writeNumbers } from '../sessions/json-stream.ts'

/** The label of a token without loss, which PyTorch's cross entropy ignores by default. */
const NO_LOSS = -100

/** Yields a line for each row with trained tokens. One row is in memory at a time. */
export function* writeSftLines(sessionId: string, rows: Iterable<Trajectory>): Generator<string> {
  for (const row of rows) {
    const { prompt_ids: prompt, response_ids: response, response_mask: mask } = row
    if (!mask.includes(1)) continue
    const ids = new Int32Array(prompt.length + response.length)
    ids.set(prompt)
    ids.set(response, prompt.length)
    const labels = new Int32Array(ids.length).fill(NO_LOSS)
    mask.forEach((bit, index) => {
      if (bit === 1) labels[prompt.length + index] = response[index]!
    })
    const { agent_role, num_turns, reward } = row
    yield openObject(withFormerNames({ session_id: sessionId, agent_role, num_turns, reward }))
    yield* writeMember('input_ids', writeNumbers(ids))
    yield* writeMember('labels', writeNumbers(labels))
    yield '}\n'
  }
}
