import { connect } from 'node:net'
import Database from 'better-sqlite3'
import t from 'tap'
import { Children } from '../../bench/parts/children.ts'
import { startEngine } from '../../bench/parts/start-engine.ts'
import { Targets } from '../../bench/parts/targets.ts'

const TOKENS = 20

const createRequest = (stream: boolean) => ({
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify({
    model: 'stand-in',
    messages: [],
    max_tokens: TOKENS,
    stream,
    mark: `stream ${stream}`,
  }),
})

/** Returns the number of events in each chunk of a stream's body; each write of the engine is a chunk. */
async function countEventsPerWrite(url: string, init: ReturnType<typeof createRequest>): Promise<number[]> {
  const { hostname, port, pathname } = new URL(url)
  const socket = connect(Number(port), hostname)
  const head = `POST ${pathname} HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n`
  socket.write(`${head}content-length: ${init.body.length}\r\n\r\n${init.body}`)
  const [, body = ''] = Buffer.concat(await socket.toArray())
    .toString()
    .split(/\r\n\r\n(.*)/s)
  const chunks = body.split(/(?:^|\r\n)[\da-f]+\r\n/).slice(1, -1)
  return chunks.map((chunk) => chunk.split('\n\n').length - 1)
}

t.test(
  'the fake engine writes as many events at once as requested, and the floor records them',
  async (t) => {
    await using children = new Children()
    const engine = await startEngine(children, { eventsPerWrite: 8 })
    const db = `${t.testdir({})}/floor.db`
    const { url } = await new Targets(children, engine.url).start('floor', { db })

    const writes = await countEventsPerWrite(`${engine.url}/v1/chat/completions`, createRequest(true))
    t.strictSame(writes, [1, 8, 8, 4, 2], 'the first event has no token, and the last ones end the stream')

    const streamed = await (await fetch(url, createRequest(true))).text()
    t.equal(streamed.match(/"token_ids":\[\d+\]/g)?.length, TOKENS, 'the agent receives the ids')
    t.ok(streamed.endsWith('data: [DONE]\n\n'))
    const turns = new Database(db).prepare('SELECT * FROM turns ORDER BY id')
    const rows = () =>
      turns.all() as Record<'request' | 'response' | 'prompt_ids' | 'ids' | 'logprobs', Buffer>[]
    t.equal(rows().length, 1, 'committed before the last byte')

    // biome-ignore lint/suspicious/noExplicitAny: the parts that the test reads are asserted
    const complete: any = await (await fetch(url, createRequest(false))).json()
    const [first, second] = rows()
    for (const row of [first!, second!]) {
      t.equal(row.ids.byteLength, 4 * TOKENS)
      t.equal(row.logprobs.byteLength, 8 * TOKENS)
      t.ok(row.prompt_ids.byteLength > 0)
    }
    t.match(JSON.parse(String(first!.request)), JSON.parse(createRequest(true).body))
    t.strictSame(JSON.parse(String(second!.response)), [complete.choices[0].message])
    t.strictSame([...new Int32Array(new Uint8Array(second!.ids).buffer)], complete.choices[0].token_ids)
  },
)
