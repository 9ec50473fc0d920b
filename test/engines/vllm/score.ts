/** A teacher's logprobs of recorded tokens equal those that vLLM returns for the same prompt. */
import type { Test } from 'tap'
import { AGENTS, MODEL } from '../parts/agents.ts'
import { getJson } from '../parts/check-session.ts'
import { Dice } from '../parts/dice.ts'
import type { EngineProcess } from '../parts/engine-process.ts'
import type { Mode } from '../parts/proxies.ts'

/** Tolerance: the engine computes both in batches of different sizes. */
const NEAR = 1e-4

export async function checkScore(t: Test, modes: readonly Mode[], vllm: EngineProcess): Promise<void> {
  const check = async (mode: Mode) => {
    const sessionId = `score-${mode.name}`
    const agent = new AGENTS.chat!(new Dice(6))
    for (let turn = 0; turn < 2; turn += 1)
      agent.addResponse(
        await agent.sendRequest(`${mode.url}/${sessionId}`, { stream: false, sampling: { max_tokens: 12 } }),
      )
    const scored = await fetch(`${mode.url}/sessions/${sessionId}/score`, { method: 'POST' })
    const scores = await scored.json()
    const read = `${mode.url}/sessions/${sessionId}/trajectories?details=teacher_logprobs`
    const { trajectories } = await getJson(read)
    let tokens = 0
    for (const { prompt_ids, response_ids, response_mask, teacher_logprobs, teacher } of trajectories) {
      t.equal(teacher, MODEL, `${mode.name}: the teacher's name`)
      const own = await getPromptLogprobs(vllm, [...prompt_ids, ...response_ids])
      const sampled = response_ids.flatMap((_: number, index: number) =>
        response_mask[index] === 1 ? [index] : [],
      )
      const wrong = sampled.filter(
        (index: number) => !(Math.abs(teacher_logprobs[index] - own[prompt_ids.length + index]!) < NEAR),
      )
      t.strictSame(wrong, [], `${mode.name}: each of ${sampled.length} tokens as vLLM scores it`)
      tokens += sampled.length
    }
    t.match(scores, { rows: trajectories.length, tokens }, mode.name)
    t.ok(tokens > 0, `${mode.name}: ${tokens} tokens`)
  }
  await Promise.all(modes.map(check))
}

/** Returns prompt logprobs from vLLM's completions route, which has none for the first token. */
async function getPromptLogprobs(vllm: EngineProcess, prompt: readonly number[]): Promise<(number | null)[]> {
  const body = JSON.stringify({ model: MODEL, prompt, max_tokens: 1, prompt_logprobs: 0 })
  const headers = { 'content-type': 'application/json', connection: 'close' }
  const response = await fetch(`${vllm.url}/v1/completions`, { method: 'POST', headers, body })
  const { choices } = (await response.json()) as {
    choices: { prompt_logprobs: (Record<string, { logprob: number }> | null)[] }[]
  }
  return choices[0]!.prompt_logprobs.map((entry, index) => entry?.[String(prompt[index])]?.logprob ?? null)
}
