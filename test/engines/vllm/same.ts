/** The same seeded call by three ways: vLLM's own route, chat mode and token mode. */
import type { Test } from 'tap'
import { AGENTS, type Said } from '../parts/agents.ts'
import { Dice } from '../parts/dice.ts'
import type { Mode } from '../parts/proxies.ts'

/** Calls that are asked at once. */
const AT_ONCE = 4

/**
 * Chat mode gives what vLLM itself gives, whole as whole and stream as stream. Token mode samples the same ids, and reads
 * them as vLLM's whole answer does; how many it reads in another way is told, for docs/engines.md to say which.
 */
export async function checkSame(
  t: Test,
  [chat, token]: readonly Mode[],
  engineUrl: string,
  { calls, seed }: { calls: number; seed: number },
): Promise<void> {
  const numbers = Array.from({ length: calls }, (_, at) => seed * 1_009 + at)
  const wrong: string[] = []
  const read: string[] = []
  const ask = async (number: number) => {
    const own = await Promise.all([false, true].map((stream) => sampled(engineUrl, number, stream)))
    for (const [at, stream] of [false, true].entries()) {
      const what = `${number}, ${stream ? 'streamed' : 'whole'}`
      const session = `same-${number}-${stream}`
      const byChat = await sampled(`${chat!.url}/${session}`, number, stream)
      const byToken = await sampled(`${token!.url}/${session}`, number, stream)
      if (shown(byChat) !== shown(own[at]!))
        wrong.push(`${what}, chat: ${shown(byChat)}, vLLM ${shown(own[at]!)}`)
      if (byToken.ids.join() !== own[0]!.ids.join())
        wrong.push(`${what}, token: ${byToken.ids}, vLLM ${own[0]!.ids}`)
      else if (shown(byToken) !== shown(own[0]!))
        read.push(`${what}: ${shown(byToken)}, vLLM ${shown(own[0]!)}`)
    }
  }
  const agents = Array.from({ length: AT_ONCE }, async () => {
    for (let next = numbers.pop(); next !== undefined; next = numbers.pop()) await ask(next)
  })
  await Promise.all(agents)
  t.strictSame(wrong, [], `${calls} calls, whole and streamed`)
  for (const one of read) t.comment(`token mode reads in its own way: ${one}`)
}

/** The agent's first call of a conversation that its number makes. */
function sampled(url: string, number: number, stream: boolean): Promise<Said> {
  const dice = new Dice(number)
  const agent = new AGENTS.chat!(dice)
  const sampling = {
    seed: number,
    temperature: dice.pick([1, 0.7, 1.4]),
    max_tokens: dice.pick([3, 30, 90]),
    ...(dice.chance(0.2) && { stop: dice.pick([['the'], ['\n\n', ' sea']]) }),
    return_token_ids: true,
  }
  return agent.call(url, { stream, sampling })
}

/** Without the ids of calls, which are drawn anew each time. */
function shown({ calls, ...said }: Said): string {
  return JSON.stringify({ ...said, calls: calls.map(({ name, arguments: given }) => [name, given]) })
}
