/** A response that an agent has read completely is on disk, even if the process is killed next. */
import OpenAI from 'openai'
import t from 'tap'
import { openSqliteReader } from '../../src/proxy/store/sqlite/open.ts'
import { killChild, waitForExit, waitForOutput } from '../helpers/children.ts'
import { startLlmProxy } from '../helpers/llm-proxy.ts'
import { IS_FULL } from '../helpers/tier.ts'

const REQUESTS = IS_FULL ? 300 : 100
const CONCURRENCY = 16
/** Set by the environment for a long manual run. */
const ROUNDS = Number(process.env.KILL_ROUNDS ?? (IS_FULL ? 2 : 1))

async function startServe(db: string) {
  const child = startLlmProxy([
    'serve',
    '--engine-kind',
    'embedded',
    '--port',
    '0',
    '--db',
    db,
    '--log-level',
    'error',
  ])
  const [url] = await waitForOutput(child.stdout, /http:\/\/[\d.]+:\d+/)
  return { child, url }
}

/** @returns the id and text of the response that the agent read */
async function sendRequest(openai: OpenAI, stream: boolean): Promise<{ id: string; text: string }> {
  const body = {
    model: 'm',
    messages: [{ role: 'user' as const, content: 'Tell me something.' }],
    max_tokens: 12,
  }
  if (!stream) {
    const { id, choices } = await openai.chat.completions.create(body)
    return { id, text: choices[0]?.message.content ?? '' }
  }
  const response = await openai.chat.completions.stream(body).finalChatCompletion()
  return { id: response.id, text: response.choices[0]?.message.content ?? '' }
}

for (let round = 1; round <= ROUNDS; round++) {
  t.test(
    `${REQUESTS} acknowledged requests, then SIGKILL: ${REQUESTS} turns are in the database (round ${round})`,
    async (t) => {
      const db = `${t.testdir({})}/killed.db`
      const { child, url } = await startServe(db)
      t.teardown(() => killChild(child))
      const acknowledged = new Map<string, string>()
      let requestCount = 0
      const agent = async (_: unknown, i: number) => {
        const openai = new OpenAI({ baseURL: `${url}/s${i}/v1`, apiKey: 'none', maxRetries: 0 })
        while (requestCount++ < REQUESTS) {
          const { id, text } = await sendRequest(openai, requestCount % 2 === 0)
          acknowledged.set(id.replace('chatcmpl-', ''), text)
        }
      }
      await Promise.all(Array.from({ length: CONCURRENCY }, agent))
      child.kill('SIGKILL')
      await waitForExit(child)
      t.equal(acknowledged.size, REQUESTS)

      const reader = await openSqliteReader(db)
      const recorded = new Map<string, string>()
      for (let i = 0; i < CONCURRENCY; i++) {
        for await (const turn of reader.readTurns(`s${i}`)) {
          if (turn.status === 'completed') recorded.set(turn.turnId, turn.completionText ?? '')
        }
      }
      await reader.close()
      t.same(recorded, acknowledged, 'each one, with the text that the agent read')
    },
  )
}

t.test('killed during responses: acknowledged turns are complete, others interrupted', async (t) => {
  const db = `${t.testdir({})}/killed.db`
  const { child, url } = await startServe(db)
  t.teardown(() => killChild(child))
  const acknowledged: string[] = []
  const agent = async (_: unknown, i: number) => {
    const openai = new OpenAI({ baseURL: `${url}/s${i}/v1`, apiKey: 'none', maxRetries: 0 })
    for (;;) acknowledged.push((await sendRequest(openai, i % 2 === 0)).id.replace('chatcmpl-', ''))
  }
  const agents = Array.from({ length: 8 }, (_, i) => agent(_, i).catch(() => undefined))
  while (acknowledged.length < 50) await new Promise((resolve) => setImmediate(resolve))
  child.kill('SIGKILL')
  await Promise.all(agents)

  const second = await startServe(db)
  t.teardown(() => killChild(second.child))
  const statuses = new Map<string, string>()
  for (let i = 0; i < 8; i++) {
    const { turns } = (await (await fetch(`${second.url}/sessions/s${i}`)).json()) as {
      turns: { turn_id: string; status: string }[]
    }
    for (const turn of turns) statuses.set(turn.turn_id, turn.status)
  }
  t.same([...new Set(acknowledged.map((id) => statuses.get(id)))], ['completed'])
  t.notOk([...statuses.values()].includes('open'), 'no turn is left open')
  second.child.kill('SIGTERM')
  t.same(await waitForExit(second.child), [0, null])
})

t.test(
  'killed after its response: an equal request without retry info supersedes that response',
  async (t) => {
    const db = `${t.testdir({})}/killed.db`
    const openai = (url: string) => new OpenAI({ baseURL: `${url}/s/v1`, apiKey: 'none', maxRetries: 0 })
    const start = async () => {
      const { child, url } = await startServe(db)
      t.teardown(() => killChild(child))
      return { child, url: url! }
    }
    const first = await start()
    const lost = await sendRequest(openai(first.url), false)
    first.child.kill('SIGKILL')
    await waitForExit(first.child)

    const second = await start()
    const responses = [
      await sendRequest(openai(second.url), false),
      await sendRequest(openai(second.url), true),
    ]
    second.child.kill('SIGTERM')
    await waitForExit(second.child)

    // A process that stopped gracefully has delivered its responses.
    const { child, url } = await start()
    responses.push(await sendRequest(openai(url), false))
    const response = await fetch(`${url}/sessions/s/trajectories`)
    const { trajectories, excluded_turns } = (await response.json()) as {
      trajectories: { turns: { turn_id: string }[] }[]
      excluded_turns: Record<string, number>
    }
    t.equal(excluded_turns.superseded, 1)
    const trained = trajectories.flatMap(({ turns }) => turns.map(({ turn_id }) => `chatcmpl-${turn_id}`))
    t.strictSame(
      trained,
      responses.map(({ id }) => id),
      `not ${lost.id}; the others are samples`,
    )
    child.kill('SIGTERM')
    await waitForExit(child)
  },
)
