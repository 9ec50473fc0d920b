/**
 * Hostile agents of a soak, beside regular ones: they run in half of each leg, so that latencies with and without them can
 * be compared.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { Agent, request } from 'undici'
import { seededRandom } from '../parts/text.ts'
import type { Leg } from './plan.ts'
import type { SoakWorld } from './world.ts'

/** The number of parts of a leg; hostile agents run in every second one. */
const PARTS = 6
const PAUSE_MS = 2_000
/** Requests without a response time out, too, such as incomplete ones. */
const TIMEOUT_MS = 10_000

export interface HostileCounts {
  requests: number
  /** Requests by status; 0 for those without a response. */
  statuses: Record<string, number>
  faults: string[]
}

/** Returns whether hostile agents run at a time, in milliseconds since 1970. */
export function isHostileTime(legs: readonly Leg[], atMs: number): boolean {
  const leg = legs.find(({ fromMs, toMs }) => atMs >= fromMs && atMs < toMs)
  return leg !== undefined && Math.floor((PARTS * (atMs - leg.fromMs)) / (leg.toMs - leg.fromMs)) % 2 === 1
}

/** Runs them until the last leg's end. An internal error of the proxy is a fault; the world detects stalls. */
export async function runHostile(
  world: SoakWorld,
  { count, legs, seed }: { count: number; legs: readonly Leg[]; seed: number },
  counts: HostileCounts,
): Promise<void> {
  const untilMs = legs.at(-1)!.toMs
  // A new connection for each request, which also leaves incomplete requests behind.
  const dispatcher = new Agent({ pipelining: 0 })
  const runOne = async (number: number) => {
    const random = seededRandom(seed + 1_000_003 * (number + 1))
    for (let index = 0; Date.now() < untilMs; index += 1) {
      await sleep(PAUSE_MS * (0.5 + random()))
      if (!isHostileTime(legs, Date.now())) continue
      const body = ATTACKS[Math.floor(random() * ATTACKS.length)]!(random)
      const status = await send(`${world.url}/hostile-${number}-${index}/v1/chat/completions`, body)
      counts.requests += 1
      counts.statuses[status] = (counts.statuses[status] ?? 0) + 1
      if (status === 500) counts.faults.push(`hostile-${number}-${index}: an internal error`)
    }
  }
  await Promise.all(Array.from({ length: count }, (_, number) => runOne(number)))
  await dispatcher.destroy()

  async function send(url: string, { text, headers, timeoutMs = TIMEOUT_MS }: Attack): Promise<number> {
    try {
      const { statusCode, body } = await request(url, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...headers },
        body: text,
        signal: AbortSignal.timeout(timeoutMs),
        dispatcher,
      })
      await body.dump({ limit: Number.MAX_SAFE_INTEGER })
      return statusCode
    } catch {
      return 0
    }
  }
}

interface Attack {
  text: string
  headers?: Record<string, string>
  timeoutMs?: number
}

const createBody = (messages: unknown, fields: object = {}): string =>
  JSON.stringify({ model: 'soak', messages, max_tokens: 2, ...fields })
const user = (content: unknown) => [{ role: 'user', content }]

const ATTACKS: readonly ((random: () => number) => Attack)[] = [
  // Very many new messages.
  (random) => ({
    text: createBody(
      Array.from({ length: 5_000 }, (_, index) => ({ role: 'user', content: `${random()} ${index}` })),
    ),
  }),
  // One long text of the beginnings of markup, of white space, and of one letter.
  () => ({ text: createBody(user('<'.repeat(1_000_000))) }),
  () => ({ text: createBody(user(' \n'.repeat(1_000_000))) }),
  (random) => ({ text: createBody(user(`${random()}${'a'.repeat(2_000_000)}`)) }),
  // Deeply nested and very many values.
  () => ({ text: '['.repeat(1_000_000) }),
  () => ({ text: createBody(JSON.parse(`${'[[{"a":'.repeat(90)}1${'}]]'.repeat(90)}`)) }),
  () => ({ text: `{"model":"soak","messages":[${'{},'.repeat(200_000)}{}]}` }),
  // An invalid image.
  () => ({
    text: createBody(
      user([{ type: 'image_url', image_url: { url: `data:image/jpeg;base64,/9j/${'A'.repeat(500_000)}` } }]),
    ),
  }),
  // Arguments of a tool call that are one long text and not JSON, and stop strings.
  () => ({
    text: createBody([
      ...user('Go on.'),
      {
        role: 'assistant',
        content: null,
        tool_calls: [
          { id: 'a', type: 'function', function: { name: 'run', arguments: '{"a":"'.repeat(100_000) } },
        ],
      },
      { role: 'tool', tool_call_id: 'a', content: 'done' },
    ]),
  }),
  () => ({
    text: createBody(user('Stop.'), {
      stop: Array.from({ length: 4 }, (_, index) => `${index}`.repeat(50_000)),
    }),
  }),
  // Sends a request and disconnects; declares a retry of a request that was never sent.
  (random) => ({
    text: createBody(user(`${random()}`), { stream: true, max_tokens: 200 }),
    timeoutMs: Math.floor(random() * 300),
  }),
  (random) => ({ text: createBody(user(`${random()}`)), headers: { 'x-stainless-retry-count': '7' } }),
  // Fills a session with one request.
  (random) => ({
    text: createBody(Array.from({ length: 40 }, () => user(`${random()}${'é'.repeat(20_000)}`)[0])),
  }),
]
