/** Routed experts of each token, from vLLM's responses to rows. */
import { rmSync, writeFileSync } from 'node:fs'
import type { Test } from 'tap'
import { AGENTS } from '../parts/agents.ts'
import { getJson } from '../parts/check-session.ts'
import { Dice } from '../parts/dice.ts'
import type { EngineProcess } from '../parts/engine-process.ts'
import type { Mode } from '../parts/proxies.ts'

const [LAYERS, RANKS] = [3, 2]

/**
 * Creates the experts of `make_experts` in `plugin/core_log.py`. The last token has none, because no step computed it.
 */
function createExpected(tokenCount: number): Buffer {
  const experts = Buffer.alloc(tokenCount * LAYERS * RANKS)
  for (let index = 0; index < tokenCount - 1; index += 1)
    for (let layer = 0; layer < LAYERS; layer += 1)
      for (let rank = 0; rank < RANKS; rank += 1)
        experts[(index * LAYERS + layer) * RANKS + rank] = (index * 7 + layer * 3 + rank) % 256
  return experts
}

/** A second turn requests only the experts that are not recorded yet. */
export async function checkExperts(t: Test, modes: readonly Mode[], vllm: EngineProcess): Promise<void> {
  writeFileSync(vllm.expertsFile, '')
  const check = async (mode: Mode) => {
    for (const stream of [false, true]) {
      const sessionId = `experts-${mode.name}-${stream}`
      await fetch(`${mode.url}/sessions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', connection: 'close' },
        body: JSON.stringify({ session_id: sessionId, record: ['routed_experts'] }),
      })
      const agent = new AGENTS.chat!(new Dice(5))
      for (let turn = 0; turn < 2; turn += 1)
        agent.addResponse(
          await agent.sendRequest(`${mode.url}/${sessionId}`, { stream, sampling: { max_tokens: 12 } }),
        )
      const { trajectories } = await getJson(
        `${mode.url}/sessions/${sessionId}/trajectories?details=routed_experts`,
      )
      const what = `${mode.name}, ${stream ? 'streamed' : 'complete'}`
      t.ok(trajectories.length > 0, `${what}: the turns are in rows`)
      for (const { prompt_ids, response_ids, routed_experts: experts } of trajectories) {
        const positions = prompt_ids.length + response_ids.length
        t.match(
          experts,
          { dtype: 'uint8', shape: [positions, LAYERS, RANKS], known: [[0, positions - 1]] },
          what,
        )
        const wrong = Buffer.compare(Buffer.from(experts.data, 'base64'), createExpected(positions))
        t.equal(wrong, 0, `${what}: the experts of each token, of ${positions}`)
      }
    }
  }
  await Promise.all(modes.map(check))
  rmSync(vllm.expertsFile)
}
