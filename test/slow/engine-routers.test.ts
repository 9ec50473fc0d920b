/** Real routers in front of engines, from PyPI: the header that names a session keeps its requests on one engine. */
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { openEngines } from '../../src/open-engines.ts'
import { installFromPyPI } from '../agents/parts/install.ts'
import { chatRequest, collect, noAbort } from '../conformance/engine-client.ts'
import { startChild } from '../helpers/children.ts'
import { pull } from '../helpers/event-stream.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import { freePort } from '../helpers/free-port.ts'

/** The number of sessions; more, up to the maximum, until both engines are used: a hash may favor one. */
const SESSIONS = 8
const MAX_SESSIONS = 100
const REQUESTS = 6
const READY_MS = 30_000

interface Router {
  name: string
  version: string
  header: string
  /** @returns the command after the name of its program */
  args(port: number, metricsPort: number, engineUrls: string[]): string[]
}

const ROUTERS: Router[] = [
  {
    name: 'vllm-router',
    version: '0.1.17',
    header: 'X-Session-ID',
    args: (port, metricsPort, urls) => [
      ...['--host', '127.0.0.1', '--port', String(port), '--policy', 'consistent_hash'],
      ...['--worker-urls', ...urls, '--prometheus-port', String(metricsPort)],
    ],
  },
  {
    name: 'smg',
    version: '1.13.0',
    header: 'X-SMG-Routing-Key',
    args: (port, metricsPort, urls) => [
      ...['launch', '--host', '127.0.0.1', '--port', String(port), '--policy', 'consistent_hashing'],
      ...['--worker-urls', ...urls, '--prometheus-port', String(metricsPort)],
    ],
  },
]

async function startRouter(t: Test, router: Router, bin: string, engineUrls: string[]): Promise<string> {
  const port = await freePort()
  const child = startChild(join(bin, router.name), router.args(port, await freePort(), engineUrls), {
    detached: true,
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += chunk))
  t.teardown(() => child.exitCode === null && process.kill(-child.pid!, 'SIGKILL'))
  const url = `http://127.0.0.1:${port}`
  for (const deadline = Date.now() + READY_MS; Date.now() < deadline; await sleep(200)) {
    if (child.exitCode !== null) break
    const response = await fetch(`${url}/v1/models`).catch(() => undefined)
    if (response?.ok) return url
  }
  throw new Error(`${router.name} does not serve: ${output.slice(-2_000)}`)
}

/**
 * Waits until sessions have reached all engines: a router serves as soon as it has found one, and moves sessions when it
 * finds another.
 */
async function waitForEngines(url: string, engines: Engine[], header: string): Promise<void> {
  for (const deadline = Date.now() + READY_MS; Date.now() < deadline; ) {
    await sendThrough(url, engines, header)
    if (engines.every((engine) => countRequests(engine) > 0)) return
  }
  throw new Error('the router uses one engine only')
}

/** @returns for each session, the engines that its requests reached */
async function sendThrough(url: string, engines: Engine[], engineSessionHeader: string): Promise<number[][]> {
  const [client] = openEngines({ engineUrls: [url], engineKind: 'vllm', engineSessionHeader })
  const served: number[][] = []
  for (let session = 0; session < MAX_SESSIONS; session += 1) {
    if (session >= SESSIONS && isSpread(served)) break
    const seen: number[] = []
    for (let number = 0; number < REQUESTS; number += 1) {
      const before = engines.map(countRequests)
      // In a growing conversation all bodies differ.
      const request = chatRequest({ model: 'fake', seed: session * REQUESTS + number })
      await collect(pull(client!, { ...request, sessionId: `task-7~${session}` }, noAbort))
      seen.push(engines.findIndex((engine, index) => countRequests(engine) > before[index]!))
    }
    served.push(seen)
  }
  await client!.close()
  return served
}

/** Returns whether each session's requests are on one engine, and the sessions are on both. */
function areSeparated(served: readonly number[][]): boolean {
  return served.every((seen) => new Set(seen).size === 1) && isSpread(served)
}

function isSpread(served: readonly number[][]): boolean {
  return new Set(served.flat()).size > 1
}

type Engine = Awaited<ReturnType<typeof startFakeVllm>>

function countRequests({ requests }: Engine): number {
  return requests.filter(({ path }) => path === '/v1/chat/completions').length
}

t.test(
  'the requests of a session stay on one engine behind a real router',
  { timeout: 400_000 },
  async (t) => {
    for (const router of ROUTERS) {
      await t.test(router.name, async (t) => {
        const { folder } = await installFromPyPI(router.name, [], { pinned: router.version })
        const engines = await Promise.all([startFakeVllm({}), startFakeVllm({})])
        t.teardown(() => Promise.all(engines.map((engine) => engine.close())))
        const url = await startRouter(
          t,
          router,
          join(folder, 'bin'),
          engines.map((engine) => engine.url),
        )
        await waitForEngines(url, engines, router.header)
        const served = await sendThrough(url, engines, router.header)
        t.ok(areSeparated(served), JSON.stringify(served))
        t.notOk(areSeparated(await sendThrough(url, engines, 'none')), 'not without the header')
      })
    }
  },
)
