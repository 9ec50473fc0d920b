/**
 * `node test/bench/search-index.ts [TURNS]`: measures the search index. Sessions of twenty turns read and write files of
 * this repository. CPU time is that of all threads of the process; commits are timed with and without concurrent
 * indexing.
 */
import { globSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import { openForReading } from '../../src/proxy/store/sqlite/database.ts'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { createReader } from '../../src/proxy/store/sqlite/reader.ts'
import { aTurn, createSession, record } from '../conformance/turn-store.ts'

const TURNS = Number(process.argv[2] ?? 20_000)
const TURNS_PER_SESSION = 20
/** The content that a turn adds: the result of a tool, and a completion with a tool call. */
const OUTPUT_CHARS = 2_000
const COMPLETION_CHARS = 500
const SYSTEM_CHARS = 20_000
const CONCURRENCY = 16
/** Texts that occur in few turns. */
const QUERIES = ['keepIndexing(', 'zebra crossing']

const ROOT = join(import.meta.dirname, '../..')
const CORPUS = globSync('{src,docs,test}/**/*.{ts,md}', { cwd: ROOT })
  .map((path) => readFileSync(join(ROOT, path), 'utf8'))
  .join('\n')
const getExcerpt = (index: number, chars: number) => {
  const start = (index * 7_919) % (CORPUS.length - chars)
  return CORPUS.slice(start, start + chars)
}
const createMessage = (role: string, content: string) => JSON.stringify({ role, content })

async function recordSession(store: TurnStore, session: number, durationsMs: number[]): Promise<void> {
  const sessionId = `s${session}`
  await store.createSession(createSession(sessionId))
  const messages = [
    createMessage('system', getExcerpt(0, SYSTEM_CHARS)),
    createMessage('user', getExcerpt(session, 300)),
  ]
  for (let index = 0; index < TURNS_PER_SESSION; index++) {
    const completionText = getExcerpt(session * 31 + index, COMPLETION_CHARS)
    const startedAtMs = performance.now()
    const requestMessages = [...messages]
    await record(store, aTurn(`${sessionId}-${index}`, { sessionId, index, requestMessages }), {
      sessionId,
      completionText,
    })
    durationsMs.push(performance.now() - startedAtMs)
    messages.push(
      createMessage('assistant', completionText),
      createMessage('tool', getExcerpt(session * 37 + index, OUTPUT_CHARS)),
    )
  }
}

/**
 * Records all sessions.
 * @returns milliseconds of CPU time per turn, and the duration of commits
 */
async function recordAll(store: TurnStore, from: number) {
  const durationsMs: number[] = []
  const startCpu = process.cpuUsage()
  const sessions = TURNS / TURNS_PER_SESSION
  for (let session = 0; session < sessions; session += CONCURRENCY) {
    const batch = Array.from({ length: CONCURRENCY }, (_, index) =>
      recordSession(store, from + session + index, durationsMs),
    )
    await Promise.all(batch)
  }
  durationsMs.sort((a, b) => a - b)
  const getQuantile = (share: number) => durationsMs[Math.floor(durationsMs.length * share)]!.toFixed(2)
  return {
    cpuMs: getCpuMsSince(startCpu) / durationsMs.length,
    p50: getQuantile(0.5),
    p99: getQuantile(0.99),
  }
}

function getCpuMsSince(start: NodeJS.CpuUsage): number {
  const { user, system } = process.cpuUsage(start)
  return (user + system) / 1_000
}

async function measureSearch(store: TurnStore, wanted: string) {
  const startedAtMs = performance.now()
  let [hits, pages] = [0, 0]
  let cursor: string | undefined
  do {
    const page = await store.searchTurns({ wanted, limit: 100, perSession: 1, ...(cursor && { cursor }) })
    hits += page.hits.length
    pages += 1
    cursor = page.nextCursor
  } while (cursor !== undefined && hits < 100)
  return `${(performance.now() - startedAtMs).toFixed(0)} ms (${hits} hits, ${pages} pages)`
}

/**
 * Builds the index without the pauses in which a proxy does its other work.
 * @returns milliseconds of CPU time
 */
function buildIndex(): number {
  const db = openForReading(path)
  const reader = createReader(db, 1024 * 1024, { path: `${path}-search`, mayWrite: true })
  const start = process.cpuUsage()
  while (reader.indexSome());
  const cpuMs = getCpuMsSince(start)
  reader.close()
  db.close()
  return cpuMs
}

const folder = mkdtempSync(join(tmpdir(), 'search-index-'))
const path = join(folder, 'turns.db')
const open = (searchIndex: boolean) => openSqliteStore({ path, durability: 'power', searchIndex })
try {
  const plain = await open(false)
  console.log('commits without index', await recordAll(plain, 0))
  for (const wanted of QUERIES) console.log('no index', wanted, await measureSearch(plain, wanted))
  await plain.close()

  console.log('CPU ms of indexing per turn', (buildIndex() / TURNS).toFixed(3))
  console.log('MB of database, index', statSync(path).size / 1e6, statSync(`${path}-search`).size / 1e6)
  const indexed = await open(true)
  for (const wanted of QUERIES) console.log('index', wanted, await measureSearch(indexed, wanted))
  console.log('commits with concurrent indexing', await recordAll(indexed, TURNS))
  await indexed.close()
} finally {
  rmSync(folder, { recursive: true, force: true })
}
