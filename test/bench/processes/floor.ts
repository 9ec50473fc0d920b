/**
 * The least that a recorder of token ids costs with llm-proxy's libraries (fastify, undici, better-sqlite3): it requests
 * ids and logprobs, parses every request and every event, and commits each turn to SQLite on another thread, in groups,
 * before the last byte of its response leaves. It has no sessions, dialects, checks, limits, retries or metrics. Frozen:
 * changes would make figures of different commits incomparable.
 *
 * node floor.ts --engine-url URL --db FILE
 */
import { parseArgs } from 'node:util'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import Database from 'better-sqlite3'
import Fastify, { type FastifyReply } from 'fastify'
import { type Dispatcher, Pool } from 'undici'

const PATH = '/v1/chat/completions'
/** The last bytes of a stream, which follow the commit. */
const DONE = Buffer.from('data: [DONE]\n\n')

interface Turn {
  readonly request: string
  content: string
  promptIds: number[]
  readonly ids: number[]
  readonly logprobs: number[]
}

interface Chunk {
  prompt_token_ids?: number[]
  choices?: {
    delta?: { content?: string }
    message?: { content?: string }
    token_ids?: number[]
    logprobs?: { content?: { logprob: number }[] } | null
    prompt_token_ids?: number[]
  }[]
}

if (isMainThread) await serve()
else write(workerData as string)

async function serve(): Promise<void> {
  const { values } = parseArgs({ options: { 'engine-url': { type: 'string' }, db: { type: 'string' } } })
  const pool = new Pool(values['engine-url']!)
  const writer = new Worker(import.meta.filename, { workerData: values.db })
  const waiting: (() => void)[] = []
  writer.on('message', (count: number) => {
    for (const resolve of waiting.splice(0, count)) resolve()
  })
  const commit = (turn: Turn) => {
    writer.postMessage([turn.request, turn.content, turn.promptIds, turn.ids, turn.logprobs])
    return new Promise<void>((resolve) => waiting.push(resolve))
  }
  const app = Fastify({ bodyLimit: 64 * 1024 * 1024 })
  app.post(PATH, async (request, reply) => {
    const asked = request.body as { stream?: boolean }
    const extras = asked.stream ? { stream_options: { include_usage: true } } : {}
    const body = JSON.stringify({ ...asked, ...extras, return_token_ids: true, logprobs: true })
    const turn: Turn = { request: body, content: '', promptIds: [], ids: [], logprobs: [] }
    const headers = { 'content-type': 'application/json' }
    const response = await pool.request({ path: PATH, method: 'POST', headers, body })
    if (asked.stream) return await stream(response, turn, commit, reply)
    const text = await response.body.text()
    add(turn, JSON.parse(text) as Chunk)
    await commit(turn)
    return reply.type('application/json').send(text)
  })
  process.stdout.write(`floor on ${await app.listen({ host: '127.0.0.1', port: 0 })}\n`)
}

async function stream(
  { body }: Dispatcher.ResponseData,
  turn: Turn,
  commit: (turn: Turn) => Promise<void>,
  reply: FastifyReply,
): Promise<FastifyReply> {
  reply.hijack()
  reply.raw.writeHead(200, { 'content-type': 'text/event-stream' })
  let rest = ''
  for await (const piece of body as AsyncIterable<Buffer>) {
    const events = (rest + piece.toString('utf8')).split('\n\n')
    rest = events.pop()!
    for (const event of events)
      if (event.startsWith('data: {')) add(turn, JSON.parse(event.slice(6)) as Chunk)
    reply.raw.write(piece.subarray(-DONE.length).equals(DONE) ? piece.subarray(0, -DONE.length) : piece)
  }
  await commit(turn)
  reply.raw.end(DONE)
  return reply
}

function add(turn: Turn, { prompt_token_ids: prompt, choices: [choice] = [] }: Chunk): void {
  if (prompt) turn.promptIds = prompt
  turn.content += choice?.delta?.content ?? choice?.message?.content ?? ''
  for (const id of choice?.token_ids ?? []) turn.ids.push(id)
  for (const { logprob } of choice?.logprobs?.content ?? []) turn.logprobs.push(logprob)
}

/** Commits all turns that have arrived in one transaction. */
function write(path: string): void {
  const db = new Database(path)
  db.pragma('journal_mode = WAL')
  db.pragma('synchronous = FULL')
  db.exec(
    'CREATE TABLE IF NOT EXISTS turns (request TEXT, content TEXT, prompt BLOB, ids BLOB, logprobs BLOB)',
  )
  const insert = db.prepare('INSERT INTO turns VALUES (?, ?, ?, ?, ?)')
  const commit = db.transaction((turns: [string, string, number[], number[], number[]][]) => {
    for (const [request, content, prompt, ids, logprobs] of turns)
      insert.run(
        request,
        content,
        Buffer.from(Int32Array.from(prompt).buffer),
        Buffer.from(Int32Array.from(ids).buffer),
        Buffer.from(Float64Array.from(logprobs).buffer),
      )
  })
  let group: Parameters<typeof commit>[0] = []
  parentPort!.on('message', (turn) => {
    if (group.push(turn) > 1) return
    setImmediate(() => {
      const turns = group
      group = []
      commit(turns)
      parentPort!.postMessage(turns.length)
    })
  })
}
