/** Adapters beside the base model: the policy of a session selects the model, and the turn records it. */
import type { Test } from 'tap'
import { AGENTS, MODEL } from '../parts/agents.ts'
import { checkSession, getJson } from '../parts/check-session.ts'
import type { CoreLog } from '../parts/core-log.ts'
import { Dice } from '../parts/dice.ts'
import type { Mode } from '../parts/proxies.ts'

/** Returns arguments with which vLLM serves the adapters as `adapter-1` and so on. */
export function getAdapterFlags(adapters: readonly string[]): string[] {
  const named = adapters.map((path, index) => `adapter-${index + 1}=${path}`)
  return ['--enable-lora', '--max-loras', String(adapters.length), '--lora-modules', ...named]
}

export async function checkAdapters(t: Test, modes: readonly Mode[], core: CoreLog): Promise<void> {
  const check = async (mode: Mode) => {
    for (const policy of [undefined, 'adapter-1', 'adapter-2'])
      for (const stream of [true, false]) {
        const what = `${mode.name}, ${policy ?? 'no policy'}, ${stream ? 'streamed' : 'complete'}`
        const sessionId = `adapters-${mode.name}-${policy}-${stream}`
        await fetch(`${mode.url}/sessions`, {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify({ session_id: sessionId, ...(policy && { policy }) }),
        })
        const agent = new AGENTS.chat!(new Dice(3))
        const response = await agent.sendRequest(`${mode.url}/${sessionId}`, {
          stream,
          sampling: { max_tokens: 20 },
        })
        const sent = [{ dialect: 'chat', stream, response }]
        t.strictSame((await checkSession(mode.url, sessionId, sent, core)).wrong, [], what)
        const { turns } = await getJson(`${mode.url}/sessions/${sessionId}`)
        const [{ model, prompt_token_ids: prompt, completion_token_ids: ids }] = turns
        t.equal(model, policy ?? MODEL, `${what}: recorded`)
        t.equal(core.find(prompt, ids)?.lora ?? null, policy ?? null, `${what}: at the core`)
      }
  }
  await Promise.all(modes.map(check))
}
