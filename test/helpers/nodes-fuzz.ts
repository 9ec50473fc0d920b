/**
 * Hostile requests against two nodes of one database: methods × framings × targets × headers × keys, over raw sockets,
 * in parallel with well-behaved agents and trainers. The test checks who receives what.
 */
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import fc from 'fast-check'
import type { Test } from 'tap'
import { KEYS } from './keys.ts'
import { chatBody, encodeChunked, type NodePair, runKey, sendRequest } from './node-pair.ts'
import { sendRaw } from './raw-connection.ts'

const VICTIMS = 4
/** Sessions of the attacker: attacks end some of them. */
const OWN_SESSIONS = 32
const ATTACKERS = 8
/** The maximum duration of a response in these attacks, except for streams, which are abandoned. */
const ATTACK_MS = 250
const SECRET = 'words of a victim'

interface FuzzFigures {
  attacks: number
  /** Statuses of the responses to attacks. */
  statuses: Record<string, number>
  /** LLM requests of victims that were served, and sessions that trainers completed, during the attacks. */
  served: number
  /** Descriptions of the first violations. */
  faults: string[]
}

interface Attack {
  method: string
  target: string
  key: string | undefined
  headers: string[]
  framing: keyof typeof FRAMINGS
  /** The type of its body: another request, or a chat body. */
  bodyType: 'request' | 'chat'
}

/**
 * Bodies that contain another request, with the number of requests that a server may see and the headers that frame it.
 */
const FRAMINGS = {
  none: () => ({ headers: [], body: '', requests: 1 }),
  length: (inner: string) => ({ headers: [`content-length: ${inner.length}`], body: inner, requests: 1 }),
  chunked: (inner: string) => ({
    headers: ['transfer-encoding: chunked'],
    body: encodeChunked(inner),
    requests: 1,
  }),
  'chunked, in other letters': (inner: string) => ({
    ...{ headers: ['Transfer-Encoding: ChUnKeD'], body: encodeChunked(inner), requests: 1 },
  }),
  'chunked with extensions and trailers': (inner: string) => ({
    headers: ['transfer-encoding: chunked', 'trailer: x-llm-proxy-hops'],
    body: `${inner.length.toString(16)};a="b"\r\n${inner}\r\n0\r\nx-llm-proxy-hops: 1\r\n\r\n`,
    requests: 1,
  }),
  'length and chunked': (inner: string) => ({
    headers: [`content-length: ${encodeChunked(inner).length}`, 'transfer-encoding: chunked'],
    body: encodeChunked(inner),
    requests: 1,
  }),
  'chunked and length 0': (inner: string) => ({
    headers: ['transfer-encoding: chunked', 'content-length: 0'],
    body: encodeChunked(inner),
    requests: 1,
  }),
  'two lengths': (inner: string) => ({
    headers: [`content-length: ${inner.length}`, 'content-length: 0'],
    body: inner,
    requests: 1,
  }),
  'an encoding before chunked': (inner: string) => ({
    headers: ['transfer-encoding: gzip, chunked'],
    body: encodeChunked(inner),
    requests: 1,
  }),
  'chunked, hidden by a space': (inner: string) => ({
    headers: ['transfer-encoding : chunked', 'content-length: 0'],
    body: encodeChunked(inner),
    requests: 1,
  }),
  'chunked, hidden by a fold': (inner: string) => ({
    headers: ['x-a: b\r\n transfer-encoding: chunked', 'content-length: 0'],
    body: encodeChunked(inner),
    requests: 1,
  }),
  'a length that is none': (inner: string) => ({
    headers: [`content-length: +${inner.length}`],
    body: inner,
    requests: 1,
  }),
  'more than its length': (inner: string) => ({
    headers: [`content-length: ${Math.max(0, inner.length - 7)}`],
    body: inner,
    requests: 1,
  }),
  'bare line feeds': (inner: string) => ({
    headers: ['transfer-encoding: chunked'],
    body: `${inner.length.toString(16)}\n${inner}\n0\n\n`,
    requests: 1,
  }),
} as const satisfies Record<string, (inner: string) => { headers: string[]; body: string; requests: number }>

const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'QUERY', 'TRACE'] as const

/** Routes for a session of the attacker, each with its method. */
const ROUTES: readonly (readonly [method: string, path: (id: string) => string])[] = [
  ['POST', (id) => `/${id}/v1/chat/completions`],
  ['POST', (id) => `/sessions/${id}/v1/messages`],
  ['POST', (id) => `/v1/chat/completions/${id}`],
  ['POST', (id) => `/sessions/${id}/complete`],
  ['POST', (id) => `/sessions/${id}/reset`],
  ['POST', (id) => `/sessions/${id}/abort`],
  ['DELETE', (id) => `/sessions/${id}`],
  ['GET', (id) => `/sessions/${id}`],
  ['GET', (id) => `/sessions/${id}/live`],
  ['HEAD', (id) => `/sessions/${id}/live`],
  ['POST', () => '/v1/responses'],
  ['GET', () => '/events'],
  ['GET', () => '/admin/turns'],
  ['POST', () => '/nodes/deliveries'],
]

/** Forms of a target, built from a path and a host that must not be reached. */
const TARGETS = [
  (path: string) => path,
  (path: string, host: string) => `http://${host}${path}`,
  (path: string, host: string) => `https://${host}${path}`,
  (path: string, host: string) => `http://user@${host}${path}?a=b#c`,
  (path: string, host: string) => `//${host}${path}`,
  (path: string, host: string) => `/\\${host}${path}`,
  (path: string, host: string) => `\\\\${host}${path}`,
  (path: string, host: string) => `ftp://${host}${path}`,
  (path: string, host: string) => `${path}?x=http://${host}/`,
  (path: string, host: string) => `/http://${host}${path}`,
  (path: string, host: string) => `${path}/../..//${host}`,
]

const HEADERS = (host: string) => [
  'x-llm-proxy-hops: 1',
  'x-llm-proxy-hops: 3',
  `x-llm-proxy-node: 1 1 2 id ${'A'.repeat(43)}`,
  'x-llm-proxy-delivery: tracked',
  'connection: close, content-length, authorization',
  'connection: keep-alive, transfer-encoding',
  `x-forwarded-host: ${host}`,
  `host: ${host}`,
  'expect: 100-continue',
  'upgrade: h2c',
  'connection: upgrade',
  'content-encoding: gzip',
  'content-type: text/plain',
  'te: trailers',
]

interface FuzzOptions {
  /** A name of this run, for names of sessions. */
  name: string
  /** The number of hostile requests. */
  attacks: number
  /** The targets. Default: both nodes. */
  urls?: readonly string[]
  seed: number
}

export async function fuzzNodes(
  t: Test,
  pair: NodePair,
  { attacks, urls, seed, name }: FuzzOptions,
): Promise<FuzzFigures> {
  const { owner, other, open } = pair
  const canary = await startCanary(t)
  const targetUrls = urls ?? [other.url, owner.url]
  const tag = `${name}-${seed}`
  const faults: string[] = []
  const statuses: Record<string, number> = {}
  let isOver = false
  let served = 0
  const victim = async (number: number) => {
    const id = `victim-${tag}-${number}`
    const key = await open(id)
    for (let requestCount = 0; !isOver; requestCount += 1) {
      const question = `${SECRET} ${number} ${requestCount};`
      const url = targetUrls[requestCount % targetUrls.length]!
      const { status, text } = await sendRequest({ url }, id, question, key).catch((error) => ({
        status: 0,
        text: String(error.cause ?? error),
      }))
      if (status === 200 && !text.includes(`answer to ${question}`)) faults.push(`a victim received ${text}`)
      else if (status !== 200) faults.push(`a victim's request failed: ${status} ${text.slice(0, 200)}`)
      served += 1
    }
  }
  const trainer = async () => {
    for (let made = 0; !isOver; made += 1) {
      const id = `trained-${tag}-${made}`
      await open(id)
      const response = await fetch(`${targetUrls[made % targetUrls.length]}/sessions/${id}/complete`, {
        method: 'POST',
        headers: { authorization: `Bearer ${KEYS.adminKeys[0]}` },
      })
      const text = await response.text()
      if (!text.includes(`"session_id":"${id}"`))
        faults.push(`complete of ${id} returned ${text.slice(0, 200)}`)
      served += 1
    }
  }
  const run = runKey('fuzz')
  const keys = [
    undefined,
    run,
    run,
    run,
    run,
    KEYS.adminKeys[0],
    KEYS.viewKeys[0],
    KEYS.metricsKeys[0],
    KEYS.workerKeys[0],
    'no-key',
  ]
  const own = Array.from({ length: OWN_SESSIONS }, (_, number) => `runs/fuzz/${tag}/${number}`)
  const [agent] = await Promise.all(own.map(open))
  const drawn = fc.sample(drawAttack(own, [...keys, agent, agent], canary.host), { numRuns: attacks, seed })
  const queue = drawn.entries()
  const attacker = async () => {
    for (const [number, attack] of queue) {
      const url = targetUrls[number % targetUrls.length]!
      const marker = `smuggled-${tag}-${number}`
      const { bytes, requests } = toBytes(attack, marker)
      const received = await sendRaw(url, bytes, ATTACK_MS)
      const responses = received.match(/^HTTP\/1\.1 (?!100)\d{3}/gm) ?? []
      for (const response of responses) statuses[response.slice(9)] = (statuses[response.slice(9)] ?? 0) + 1
      const described = JSON.stringify({ ...attack, key: attack.key?.slice(0, 8), number })
      if (received.includes(SECRET)) faults.push(`an attacker read a victim: ${described}`)
      if (received.includes('CANARY')) faults.push(`a node fetched another host: ${described}`)
      if (responses.length > requests + 1) faults.push(`${responses.length} responses: ${described}`)
    }
  }
  const wellBehaved = [...Array.from({ length: VICTIMS }, (_, number) => victim(number)), trainer()]
  await Promise.all(Array.from({ length: ATTACKERS }, attacker))
  isOver = true
  await Promise.all(wellBehaved)
  faults.push(...(await findRecordedFaults(pair, tag)))
  if (canary.seen.length > 0) faults.push(`the other host received ${canary.seen.slice(0, 3)}`)
  return { attacks, statuses, served, faults: faults.slice(0, 10) }
}

/** Generates attacks. Half of them have at most one fault, so that they reach the owner. */
function drawAttack(
  own: readonly string[],
  keys: readonly (string | undefined)[],
  host: string,
): fc.Arbitrary<Attack> {
  const ids = own.flatMap((id) => [id, encodeURIComponent(id)])
  const mostly = <T>(usual: fc.Arbitrary<T>, other: fc.Arbitrary<T>) =>
    fc.oneof({ arbitrary: usual, weight: 3 }, { arbitrary: other, weight: 1 })
  const framings = Object.keys(FRAMINGS) as Attack['framing'][]
  return fc
    .record({
      route: fc.constantFrom(...ROUTES),
      id: fc.constantFrom(...ids),
      bodyType: fc.constantFrom('request', 'chat'),
      method: mostly(fc.constant(undefined), fc.constantFrom(...METHODS)),
      form: mostly(fc.constant(TARGETS[0]!), fc.constantFrom(...TARGETS)),
      key: fc.constantFrom(...keys),
      headers: mostly(
        fc.constant<string[]>([]),
        fc.uniqueArray(fc.constantFrom(...HEADERS(host)), { maxLength: 3 }),
      ),
      framing: mostly(fc.constantFrom('none', 'length', 'chunked'), fc.constantFrom(...framings)),
    })
    .map(({ route: [usual, path], id, method, form, ...rest }) => {
      return { ...rest, method: method ?? usual, target: form(path(id), host) }
    })
}

/**
 * Serializes the request. If a server executes its body as a request, it creates a session whose id contains the
 * marker.
 */
function toBytes({ method, target, key, headers, framing, bodyType }: Attack, marker: string) {
  const authorization = `authorization: Bearer ${runKey('fuzz')}`
  const body = chatBody('POISON')
  const inner =
    `POST /runs/fuzz/${marker}/v1/chat/completions HTTP/1.1\r\nhost: x\r\n${authorization}\r\n` +
    `content-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`
  const framed = FRAMINGS[framing](bodyType === 'request' ? inner : body)
  const head = [
    `${method} ${target} HTTP/1.1`,
    'host: x',
    ...(key === undefined ? [] : [`authorization: Bearer ${key}`]),
    ...headers,
    ...framed.headers,
  ]
  return { bytes: `${head.join('\r\n')}\r\n\r\n${framed.body}`, requests: framed.requests }
}

/**
 * Checks what was recorded.
 * @returns faults: a body that was executed as a request, or a victim's turn that was recorded as superseded
 */
async function findRecordedFaults({ owner, server, db }: NodePair, tag: string): Promise<string[]> {
  const faults: string[] = []
  const rows = await server.query(
    `SELECT session_id FROM llm_proxy.sessions WHERE session_id LIKE 'runs/fuzz/smuggled-${tag}-%'`,
    new URL(db).pathname.slice(1),
  )
  for (const { session_id: id } of rows) faults.push(`a body was executed: ${id}`)
  for (let number = 0; number < VICTIMS; number += 1) {
    const { excluded_turns: excluded } = await owner.get(`/sessions/victim-${tag}-${number}/trajectories`)
    if (excluded.superseded) faults.push(`${excluded.superseded} turns of a victim were superseded`)
  }
  return faults
}

/** Starts a host to which no request may make a node connect. */
async function startCanary(t: Pick<Test, 'teardown'>): Promise<{ host: string; seen: string[] }> {
  const seen: string[] = []
  const server = createServer((request, response) => {
    seen.push(`${request.method} ${request.url}`)
    response.end('CANARY')
  })
  server.on('connection', () => seen.push('connection'))
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return { seen, host: `127.0.0.1:${(server.address() as AddressInfo).port}` }
}
