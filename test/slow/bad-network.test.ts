/**
 * Agents behind a bad tunnel: of each five tries in a hundred are refused, break before, during or after the answer, or go
 * silent. Every rollout comes to its end, each call is sampled once, and each sampled token trains once.
 */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import t from 'tap'
import { startEngine } from '../helpers/engine.ts'
import { type Loss, lossyFetch } from '../helpers/lossy-fetch.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { until } from '../helpers/until.ts'

/** More by environment, for figures by hand. */
const ROLLOUTS = Number(process.env.NETWORK_ROLLOUTS ?? 5)
const CALLS = Number(process.env.NETWORK_CALLS ?? 10)
const SHARE = 0.05
const LOSSES: readonly Loss[] = ['refused', 'broken', 'silent', 'unread']
/** Of all tries: a break before the answer's first byte is told from a refused connection by nobody. */
const SHARES = { refused: 2 * SHARE, broken: SHARE, silent: SHARE, unread: SHARE }

/** The same numbers on each run (mulberry32). */
function random(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

/** What happens to the tries of one call: losses, until one gets through. */
function lossesOf(draw: () => number): Loss[] {
  const losses: Loss[] = []
  for (;;) {
    let left = draw()
    const loss = LOSSES.find((each) => {
      left -= SHARES[each]
      return left < 0
    })
    if (loss === undefined) return losses
    losses.push(loss)
  }
}

type Say = (baseUrl: string, said: string[], lossy: typeof fetch) => Promise<string>

const MAX_RETRIES = 12
const SAMPLING = { model: 'embedded', max_tokens: 8 }

const turnsAs = (said: string[]) =>
  said.map((content, i) => ({ role: i % 2 === 0 ? ('user' as const) : ('assistant' as const), content }))

const CLIENTS: Record<string, Say> = {
  openai: async (baseURL, said, fetch) => {
    const client = new OpenAI({ baseURL, apiKey: 'none', fetch, maxRetries: MAX_RETRIES })
    const { choices } = await client.chat.completions.create({ ...SAMPLING, messages: turnsAs(said) })
    return choices[0]?.message.content ?? ''
  },
  anthropic: async (baseUrl, said, fetch) => {
    const baseURL = baseUrl.replace(/\/v1$/, '')
    const client = new Anthropic({ baseURL, apiKey: 'none', fetch, maxRetries: MAX_RETRIES })
    const { content } = await client.messages.create({ ...SAMPLING, messages: turnsAs(said) })
    return content.map((part) => (part.type === 'text' ? part.text : '')).join('')
  },
}

async function rollOut(proxy: TestProxy, sessionId: string, say: Say, draw: () => number): Promise<number> {
  const said = [`Begin ${sessionId}.`]
  let lost = 0
  for (let call = 0; call < CALLS; call += 1) {
    const losses = lossesOf(draw)
    lost += losses.length
    const underWay = () =>
      until(async () => (await proxy.get(`/sessions/${sessionId}/tree`)).turns?.length > call)
    const { fetch } = lossyFetch(losses, underWay)
    said.push(await say(proxy.baseUrl(sessionId), said, fetch), `Go on, ${call}.`)
  }
  return lost
}

for (const [name, say] of Object.entries(CLIENTS)) {
  t.test(`${ROLLOUTS} rollouts of ${CALLS} calls over a bad network, by the client of ${name}`, async (t) => {
    const engine = await startEngine(t)
    const proxy = await startProxy(t, { engineUrls: [engine.url], tokenizer: 'embedded' })
    const ids = Array.from({ length: ROLLOUTS }, (_, i) => `${name}-${i}`)
    const lost = await Promise.all(ids.map((id, seed) => rollOut(proxy, id, say, random(seed))))
    let answered = 0
    for (const id of ids) {
      const { turns } = await proxy.get(`/sessions/${id}`)
      t.equal(turns.length, CALLS, `${id}: each call was sampled once`)
      const { trajectories } = await proxy.get(`/sessions/${id}/trajectories`)
      const masks = trajectories.flatMap((row: { response_mask: number[] }) => row.response_mask)
      const sampled = turns.flatMap((turn: { completion_token_ids: number[] }) => turn.completion_token_ids)
      t.equal(
        masks.filter((bit: number) => bit === 1).length,
        sampled.length,
        `${id}: each token trains once`,
      )
      for (const { annotations } of turns) answered += annotations.answered_retries?.length ?? 0
    }
    const tries = lost.reduce((sum, each) => sum + each, 0)
    t.comment(
      `${tries} tries of ${ROLLOUTS * CALLS} calls were lost; ${answered} retries were answered without sampling`,
    )
    t.ok(answered > 0)
  })
}
