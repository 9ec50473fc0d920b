/** Random agents of every dialect, through every mode: recorded turns equal the requests and samples of the core. */
import type { Test } from 'tap'
import { AGENTS, type Asked } from './agents.ts'
import type { CoreCall, CoreLog } from './core-log.ts'
import { Dice } from './dice.ts'
import type { Mode } from './proxies.ts'
import { checkSession, type MadeCall } from './record.ts'

const DIALECTS = Object.keys(AGENTS)
const MOST_TURNS = 7
/** Concurrent agents per mode. */
const AT_ONCE = 4
const LONGEST = 160
const TRIES = 3
/**
 * Share of turns. One request with a `top_p` makes the engine sort the vocabulary for the whole batch, most of a step's
 * time on a CPU. These requests therefore come first, together.
 */
const WITH_TOP_P = 0.2

interface Conversation {
  sessionId: string
  made: MadeCall[]
  /** Error of its agent, which ended the conversation. */
  failed?: string
  /** Whether vLLM has sampled a completion that it cannot serialize. */
  isUnwritten?: boolean
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
      modes.map((mode, index) => converse(mode, turns, round + index * 1_000_003)),
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
  for (const { sessionId, made, failed } of conversations) {
    if (failed !== undefined) t.fail(`${sessionId}: turn ${made.length} failed: ${failed}`)
    const verdict = await checkSession(url, sessionId, made, core, { mayNotKnowWeights: true })
    t.strictSame(verdict.wrong, [], `${sessionId}: ${made.length} turns, ${verdict.tokens} tokens`)
    if (verdict.wrong.length === 0) exact += verdict.turns
    tokens += verdict.tokens
    unversioned += verdict.unversioned
  }
  t.comment(`${name}: ${exact} turns exact, ${tokens} tokens`)
  t.equal(exact, turns, 'every turn')
  // The weights are unknown only to a proxy that has missed health checks, as on a busy machine; the proxy logs this.
  t.ok(
    unversioned === 0 || countInterruptions() > 0,
    `${unversioned} turns of unknown weights, ${countInterruptions()} interruptions`,
  )
}

/** Proves that the check detects planted mismatches. */
export async function checkTheCheck(t: Test, mode: Mode, core: CoreLog): Promise<void> {
  // A busy machine may miss a health check of its engine: the weights are unknown then.
  for (let tries = 1; tries <= TRIES; tries += 1)
    if (await control(t, mode, core, { sessionId: `control-${tries}`, isLast: tries === TRIES })) return
}

/** @returns whether the unmodified response passed the check */
async function control(
  t: Test,
  { url }: Mode,
  core: CoreLog,
  { sessionId, isLast }: { sessionId: string; isLast: boolean },
): Promise<boolean> {
  const agent = new AGENTS.chat!(new Dice(1))
  const sampling = { temperature: 1, max_tokens: 8, min_tokens: 8 }
  const response = await agent.call(`${url}/${sessionId}`, { stream: false, sampling })
  const check = (call: (call: CoreCall) => Partial<CoreCall>, text = response.text) => {
    const change = (found: CoreCall | undefined) => found && { ...found, ...call(found) }
    const log = { find: (...ids: Parameters<CoreLog['find']>) => change(core.find(...ids)) }
    const made = [{ dialect: 'chat', stream: false, response: { ...response, text } }]
    return checkSession(url, sessionId, made, log)
  }
  const { wrong } = await check((call) => call)
  if (wrong.length > 0 && !isLast) return false
  t.same(wrong, [])
  const plants: Record<string, (call: CoreCall) => Partial<CoreCall>> = {
    'a logprob at 3': ({ logprobs }) => ({
      logprobs: logprobs.map((value, index) => (index === 3 ? value - 1e-4 : value)),
    }),
    '8 ids of the 9': ({ ids }) => ({ ids: [...ids, 1] }),
    'ended by length': () => ({ finish: 'stop' }),
    'sampled by 7': ({ weights }) => ({ weights: weights.map(() => '7') }),
    'temperature 1 recorded': ({ params }) => ({ params: { ...params, temperature: 0.9 } }),
  }
  for (const [found, plant] of Object.entries(plants)) t.match((await check(plant)).wrong.join(), found)
  t.match((await check((call) => call, `${response.text}!`)).wrong.join(), 'text')
  return true
}

/** Runs agents with temperatures, limits and stops of all kinds until `turns` requests were sent. */
async function converse({ name, url }: Mode, turns: number, seed: number): Promise<Conversation[]> {
  const conversations: Conversation[] = []
  let left = turns
  const agents = Array.from({ length: AT_ONCE }, async () => {
    while (left > 0) {
      const number = conversations.length
      const dice = new Dice(seed * 10_007 + number)
      const dialect = DIALECTS[number % DIALECTS.length]!
      const agent = new AGENTS[dialect]!(dice)
      const made: MadeCall[] = []
      const sessionId = `${name}-${seed}-${number}`
      const conversation: Conversation = { sessionId, made }
      conversations.push(conversation)
      for (let more = dice.int(1, MOST_TURNS); more > 0 && left > 0; more -= 1) {
        left -= 1
        const options = describeRequest(dice, dialect, left >= turns * (1 - WITH_TOP_P))
        try {
          const response = await agent.call(`${url}/${sessionId}`, options)
          made.push({ dialect, stream: options.stream, response })
          // vLLM's tokenizer rejects half of a surrogate pair (`TextEncodeInput must be …`) from every client.
          if (response.calls.some(({ arguments: json }) => /\\u[dD][89a-fA-F]/.test(json))) break
          agent.goOn(response)
        } catch (error) {
          // Nor can vLLM serialize a response whose tool-call arguments contain half of a pair.
          conversation.isUnwritten = /surrogates not allowed/.test(`${error}`)
          if (conversation.isUnwritten) left += made.length + 1
          else
            conversation.failed = `${options.stream ? 'streamed' : 'whole'}, ${JSON.stringify(options.sampling)}: ${error}`
          break
        }
      }
    }
  })
  await Promise.all(agents)
  return conversations.filter(({ isUnwritten }) => !isUnwritten)
}

function describeRequest(dice: Dice, dialect: string, hasTopP: boolean): Asked {
  const sampling = {
    temperature: dice.pick([1, 1, 0, 0.7, 1.3].filter((each) => each <= 1 || dialect !== 'messages')),
    top_p: hasTopP ? dice.pick([1, 0.95, 0.5]) : 1,
    ...(dialect !== 'responses' && dice.chance(0.3) && { top_k: dice.pick([0, 5, 50]) }),
    ...(dice.chance(0.15) && { stop: dice.pick([['the'], ['\n\n', ' sea'], ['}']]) }),
    max_tokens: dice.pick([1, 2, LONGEST / 2, LONGEST / 2, LONGEST]),
  }
  return { stream: dice.chance(0.5), sampling }
}
