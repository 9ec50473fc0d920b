/** Random agents of every dialect in every mode: recorded turns equal the requests and samples of the core. */
import type { Test } from 'tap'
import { AGENTS, type RequestOptions } from './agents.ts'
import { checkSession, type SentRequest } from './check-session.ts'
import type { CoreLog, CoreRequest } from './core-log.ts'
import { Dice } from './dice.ts'
import type { Mode } from './proxies.ts'

const DIALECTS = Object.keys(AGENTS)
const MAX_TURNS = 7
/** Concurrent agents per mode. */
const CONCURRENCY = 4
const MAX_TOKENS = 160
const ATTEMPTS = 3
/**
 * Share of turns. One request with a `top_p` makes the engine sort the vocabulary for the complete batch, which takes
 * most of a step on a CPU. The agents therefore send these requests first, together.
 */
const TOP_P_SHARE = 0.2

interface Conversation {
  sessionId: string
  sent: SentRequest[]
  /** The agent's error, which ended the conversation. */
  error?: string
  /** Whether vLLM sampled a completion that it cannot serialize. */
  isUnserializable?: boolean
}

/**
 * @param turns per mode and round
 * @param seconds for rounds after the first one, each with the next seed
 */
export async function checkTurns(
  t: Test,
  modes: readonly Mode[],
  core: CoreLog,
  { turns, seed, seconds }: { turns: number; seed: number; seconds: number },
): Promise<void> {
  const endMs = performance.now() + seconds * 1_000
  let round = seed
  do {
    const all = await Promise.all(
      modes.map((mode, index) => runConversations(mode, turns, round + index * 1_000_003)),
    )
    for (const [index, mode] of modes.entries())
      await t.test(`${mode.name}, seed ${round}`, (t) =>
        checkConversations(t, mode, core, all[index]!, turns),
      )
    round += 1
  } while (performance.now() < endMs)
}

async function checkConversations(
  t: Test,
  { name, url, countInterruptions }: Mode,
  core: CoreLog,
  conversations: readonly Conversation[],
  turns: number,
): Promise<void> {
  let [exact, tokens, unversioned] = [0, 0, 0]
  for (const { sessionId, sent, error } of conversations) {
    if (error !== undefined) t.fail(`${sessionId}: turn ${sent.length} failed: ${error}`)
    const verdict = await checkSession(url, sessionId, sent, core, { allowsUnknownWeights: true })
    t.strictSame(verdict.wrong, [], `${sessionId}: ${sent.length} turns, ${verdict.tokens} tokens`)
    if (verdict.wrong.length === 0) exact += verdict.turns
    tokens += verdict.tokens
    unversioned += verdict.unversioned
  }
  t.comment(`${name}: ${exact} turns exact, ${tokens} tokens`)
  t.equal(exact, turns, 'every turn')
  // A proxy knows the weights unless it misses health checks, as on a busy machine, which it logs.
  t.ok(
    unversioned === 0 || countInterruptions() > 0,
    `${unversioned} turns of unknown weights, ${countInterruptions()} interruptions`,
  )
}

/** Checks that `checkSession` detects planted mismatches. */
export async function checkPlantedMismatches(t: Test, mode: Mode, core: CoreLog): Promise<void> {
  // After a missed health check, as on a busy machine, the weights are unknown.
  for (let attempt = 1; attempt <= ATTEMPTS; attempt += 1)
    if (await checkControl(t, mode, core, { sessionId: `control-${attempt}`, isLast: attempt === ATTEMPTS }))
      return
}

/** @returns whether the unmodified response passes the check */
async function checkControl(
  t: Test,
  { url }: Mode,
  core: CoreLog,
  { sessionId, isLast }: { sessionId: string; isLast: boolean },
): Promise<boolean> {
  const agent = new AGENTS.chat!(new Dice(1))
  const sampling = { temperature: 1, max_tokens: 8, min_tokens: 8 }
  const response = await agent.sendRequest(`${url}/${sessionId}`, { stream: false, sampling })
  const check = (plant: (request: CoreRequest) => Partial<CoreRequest>, text = response.text) => {
    const change = (found: CoreRequest | undefined) => found && { ...found, ...plant(found) }
    const log = { find: (...ids: Parameters<CoreLog['find']>) => change(core.find(...ids)) }
    const sent = [{ dialect: 'chat', stream: false, response: { ...response, text } }]
    return checkSession(url, sessionId, sent, log)
  }
  const { wrong } = await check((request) => request)
  if (wrong.length > 0 && !isLast) return false
  t.same(wrong, [])
  const plants: Record<string, (request: CoreRequest) => Partial<CoreRequest>> = {
    'a logprob at 3': ({ logprobs }) => ({
      logprobs: logprobs.map((value, index) => (index === 3 ? value - 1e-4 : value)),
    }),
    '8 ids of the 9': ({ ids }) => ({ ids: [...ids, 1] }),
    'ended by length': () => ({ finish: 'stop' }),
    'sampled by 7': ({ weights }) => ({ weights: weights.map(() => '7') }),
    'temperature 1 recorded': ({ params }) => ({ params: { ...params, temperature: 0.9 } }),
  }
  for (const [mismatch, plant] of Object.entries(plants)) t.match((await check(plant)).wrong.join(), mismatch)
  t.match((await check((request) => request, `${response.text}!`)).wrong.join(), 'text')
  return true
}

/** Runs agents with random sampling parameters until they have sent `turns` requests. */
async function runConversations({ name, url }: Mode, turns: number, seed: number): Promise<Conversation[]> {
  const conversations: Conversation[] = []
  let left = turns
  const agents = Array.from({ length: CONCURRENCY }, async () => {
    while (left > 0) {
      const number = conversations.length
      const dice = new Dice(seed * 10_007 + number)
      const dialect = DIALECTS[number % DIALECTS.length]!
      const agent = new AGENTS[dialect]!(dice)
      const sent: SentRequest[] = []
      const sessionId = `${name}-${seed}-${number}`
      const conversation: Conversation = { sessionId, sent }
      conversations.push(conversation)
      for (let more = dice.int(1, MAX_TURNS); more > 0 && left > 0; more -= 1) {
        left -= 1
        const options = drawOptions(dice, dialect, left >= turns * (1 - TOP_P_SHARE))
        try {
          const response = await agent.sendRequest(`${url}/${sessionId}`, options)
          sent.push({ dialect, stream: options.stream, response })
          // vLLM's tokenizer rejects half of a surrogate pair (`TextEncodeInput must be …`) from every client.
          if (response.toolCalls.some(({ arguments: json }) => /\\u[dD][89a-fA-F]/.test(json))) break
          agent.addResponse(response)
        } catch (error) {
          // vLLM cannot serialize a response whose tool-call arguments contain half of a pair.
          conversation.isUnserializable = /surrogates not allowed/.test(`${error}`)
          if (conversation.isUnserializable) left += sent.length + 1
          else
            conversation.error = `${options.stream ? 'streamed' : 'complete'}, ${JSON.stringify(options.sampling)}: ${error}`
          break
        }
      }
    }
  })
  await Promise.all(agents)
  return conversations.filter(({ isUnserializable }) => !isUnserializable)
}

function drawOptions(dice: Dice, dialect: string, hasTopP: boolean): RequestOptions {
  const sampling = {
    temperature: dice.pick([1, 1, 0, 0.7, 1.3].filter((each) => each <= 1 || dialect !== 'messages')),
    top_p: hasTopP ? dice.pick([1, 0.95, 0.5]) : 1,
    ...(dialect !== 'responses' && dice.chance(0.3) && { top_k: dice.pick([0, 5, 50]) }),
    ...(dice.chance(0.15) && { stop: dice.pick([['the'], ['\n\n', ' sea'], ['}']]) }),
    max_tokens: dice.pick([1, 2, MAX_TOKENS / 2, MAX_TOKENS / 2, MAX_TOKENS]),
  }
  return { stream: dice.chance(0.5), sampling }
}
