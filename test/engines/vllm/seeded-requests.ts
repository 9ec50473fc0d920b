/** The same seeded request sent to vLLM, to chat mode and to token mode. */
import type { Test } from 'tap'
import { AGENTS, type AgentOutput } from '../parts/agents.ts'
import { Dice } from '../parts/dice.ts'
import type { Mode } from '../parts/proxies.ts'

/** Concurrent requests. */
const CONCURRENCY = 4

/**
 * Checks that chat mode returns vLLM's responses, complete and streamed, and that token mode samples the same ids. Where
 * token mode parses them differently, which docs/engines.md explains, the test prints a comment.
 */
export async function checkSeededRequests(
  t: Test,
  [chat, token]: readonly Mode[],
  engineUrl: string,
  { requests, seed }: { requests: number; seed: number },
): Promise<void> {
  const numbers = Array.from({ length: requests }, (_, index) => seed * 1_009 + index)
  const wrong: string[] = []
  const parsedDifferently: string[] = []
  let unserializable = 0
  const sendRequest = async (number: number) => {
    const own = await Promise.all([false, true].map((stream) => sample(engineUrl, number, stream))).catch(
      ignoreUnserializable,
    )
    if (own === undefined) {
      unserializable += 1
      return
    }
    for (const [index, stream] of [false, true].entries()) {
      const what = `${number}, ${stream ? 'streamed' : 'complete'}`
      const session = `same-${number}-${stream}`
      const byChat = await sample(`${chat!.url}/${session}`, number, stream)
      const byToken = await sample(`${token!.url}/${session}`, number, stream)
      if (show(byChat) !== show(own[index]!))
        wrong.push(`${what}, chat: ${show(byChat)}, vLLM ${show(own[index]!)}`)
      if (byToken.ids.join() !== own[0]!.ids.join())
        wrong.push(`${what}, token: ${byToken.ids}, vLLM ${own[0]!.ids}`)
      else if (show(byToken) !== show(own[0]!))
        parsedDifferently.push(`${what}: ${show(byToken)}, vLLM ${show(own[0]!)}`)
    }
  }
  const agents = Array.from({ length: CONCURRENCY }, async () => {
    for (let next = numbers.pop(); next !== undefined; next = numbers.pop()) await sendRequest(next)
  })
  await Promise.all(agents)
  t.strictSame(wrong, [], `${requests} requests, complete and streamed`)
  t.ok(unserializable < requests / 4, `vLLM could not serialize ${unserializable} responses`)
  for (const one of parsedDifferently) t.comment(`token mode parses differently: ${one}`)
}

/** Ignores that vLLM cannot serialize a response whose tool-call arguments contain half of a surrogate pair. */
function ignoreUnserializable(error: unknown): undefined {
  if (!/surrogates not allowed/.test(`${error}`)) throw error
}

/** Sends the first request of the conversation that `number` seeds. */
function sample(url: string, number: number, stream: boolean): Promise<AgentOutput> {
  const dice = new Dice(number)
  const agent = new AGENTS.chat!(dice)
  const sampling = {
    seed: number,
    temperature: dice.pick([1, 0.7, 1.4]),
    max_tokens: dice.pick([3, 30, 90]),
    ...(dice.chance(0.2) && { stop: dice.pick([['the'], ['\n\n', ' sea']]) }),
    return_token_ids: true,
  }
  return agent.sendRequest(url, { stream, sampling })
}

/** Serializes a response without tool-call ids, which are random. */
function show({ toolCalls, ...content }: AgentOutput): string {
  return JSON.stringify({
    ...content,
    toolCalls: toolCalls.map(({ name, arguments: input }) => [name, input]),
  })
}
