/**
 * The fastest plain program that records, with llm-proxy's libraries (fastify, undici, better-sqlite3) and none of its
 * features. Frozen: a change makes figures from before and after it incomparable.
 *
 * It parses every request and every event, requests ids and logprobs, and forwards the engine's bytes unchanged. A
 * turn is its request, texts, ids and logprobs. One thread writes them with group commit and `synchronous=FULL`, and
 * commits a turn before the last byte of its response is sent.
 *
 * node floor.ts --engine-url URL --db FILE
 */
import { StringDecoder } from 'node:string_decoder'
import { parseArgs } from 'node:util'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import Database from 'better-sqlite3'
import Fastify from 'fastify'
import { Pool } from 'undici'

interface Completion {
  choices: {
    delta?: { content?: string; tool_calls?: unknown }
    message?: unknown
    token_ids?: number[]
    logprobs?: { content: { logprob: number }[] } | null
  }[]
  prompt_token_ids?: number[] | null
}

/** A turn as the writer receives it: its id, the response, and the request, prompt ids, ids and logprobs. */
type Row = [id: number, response: string, lists: ArrayBuffer[]]

const PATH = '/v1/chat/completions'
const FIELDS = Buffer.from('{"return_token_ids":true,"logprobs":true,')
const DONE = 'data: [DONE]'

if (isMainThread) await serve()
else writeTurns()

class Turn {
  readonly #texts: unknown[] = []
  readonly #ids: number[] = []
  readonly #logprobs: number[] = []
  #promptIds: number[] = []

  add(json: string): void {
    const { choices, prompt_token_ids: promptIds }: Completion = JSON.parse(json)
    if (promptIds) this.#promptIds = promptIds
    for (const { delta, message, token_ids: ids, logprobs } of choices) {
      this.#texts.push(delta?.content ?? delta?.tool_calls ?? message)
      for (const id of ids ?? []) this.#ids.push(id)
      for (const { logprob } of logprobs?.content ?? []) this.#logprobs.push(logprob)
    }
  }

  toRow(id: number, request: Buffer): Row {
    const lists = [
      Int32Array.from(this.#promptIds),
      Int32Array.from(this.#ids),
      Float64Array.from(this.#logprobs),
    ]
    return [id, JSON.stringify(this.#texts), [new Uint8Array(request), ...lists].map(({ buffer }) => buffer)]
  }
}

async function serve(): Promise<void> {
  const { values } = parseArgs({ options: { 'engine-url': { type: 'string' }, db: { type: 'string' } } })
  const writer = new Worker(new URL(import.meta.url), { workerData: values.db })
  const uncommitted = new Map<number, () => void>()
  let lastId = 0
  writer.on('message', (ids: number[]) => {
    for (const id of ids) {
      uncommitted.get(id)!()
      uncommitted.delete(id)
    }
  })
  const pool = new Pool(values['engine-url']!)
  const app = Fastify({ bodyLimit: 64 * 1024 * 1024 })
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
  app.post(PATH, ({ body }, reply) => {
    const request = body as Buffer
    JSON.parse(request.toString())
    const agent = reply.hijack().raw
    const turn = new Turn()
    const decoder = new StringDecoder()
    let isStream = false
    /** The text of the event, or of the response that is not streamed, whose end has not arrived. */
    let rest = ''
    /** Bytes that wait for the commit. */
    const last: Buffer[] = []
    const headers = { 'content-type': 'application/json' }
    pool.dispatch(
      { path: PATH, method: 'POST', headers, body: Buffer.concat([FIELDS, request.subarray(1)]) },
      {
        onRequestStart(controller) {
          agent.on('drain', () => controller.resume())
          agent.on(
            'close',
            () => agent.writableFinished || controller.abort(new Error('the agent disconnected')),
          )
        },
        onResponseStart(_controller, status, { 'content-type': type, 'content-length': length }) {
          isStream = type?.includes('text/event-stream') === true
          agent.writeHead(status, {
            'content-type': String(type),
            ...(length && { 'content-length': String(length) }),
          })
        },
        onResponseData(controller, bytes) {
          const text = decoder.write(bytes)
          rest += text
          if (!isStream) return void last.push(bytes)
          const events = text.includes('\n') ? rest.split('\n\n') : [rest]
          rest = events.pop()!
          for (const event of events) if (event !== DONE) turn.add(event.slice('data: '.length))
          if (events.at(-1) === DONE) last.push(bytes)
          else if (!agent.write(bytes)) controller.pause()
        },
        onResponseEnd() {
          if (!isStream) turn.add(rest)
          lastId += 1
          const row = turn.toRow(lastId, request)
          uncommitted.set(lastId, () => agent.end(Buffer.concat(last)))
          writer.postMessage(row, row[2])
        },
        onResponseError: () => agent.destroy(),
      },
    )
  })
  process.stdout.write(`floor on ${await app.listen({ host: '127.0.0.1', port: 0 })}\n`)
}

function writeTurns(): void {
  const db = new Database(workerData as string)
  db.pragma('journal_mode = WAL')
  db.pragma('synchronous = FULL')
  db.exec('CREATE TABLE turns (id INTEGER PRIMARY KEY, response, request, prompt_ids, ids, logprobs)')
  const insert = db.prepare('INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?)')
  const commit = db.transaction((rows: Row[]) => {
    for (const [id, response, lists] of rows)
      insert.run(id, response, ...lists.map((list) => Buffer.from(list)))
  })
  let group: Row[] = []
  const commitGroup = () => {
    const rows = group
    group = []
    commit(rows)
    parentPort!.postMessage(rows.map(([id]) => id))
  }
  parentPort!.on('message', (row: Row) => {
    if (group.push(row) === 1) setImmediate(commitGroup)
  })
}
