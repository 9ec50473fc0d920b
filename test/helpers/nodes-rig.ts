/**
 * Several nodes in separate processes on one PostgreSQL database, workers that connect to all of them, and a balancer.
 */
import { cpSync, globSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import type { RunningWorker } from '../../src/main.ts'
import { type BalancerKind, startBalancer } from './balancer.ts'
import { type PipedProcess, waitForExit, waitForOutput } from './children.ts'
import { startEngine } from './engine.ts'
import { freePort } from './free-port.ts'
import { startLlmProxy } from './llm-proxy.ts'
import { joinWorker } from './relay-rig.ts'
import { until } from './until.ts'

const NODES = 3
const WORKERS = 3

/** The library that changes the clock of a process, of Debian's package `faketime`; undefined: it is not installed. */
export const faketime: string | undefined = globSync('/usr/lib/*/faketime/libfaketimeMT.so.1')[0]

/** A node in a separate process, which can be killed and restarted at the same address. */
export class Node {
  readonly url: string
  readonly #args: readonly string[]
  readonly #env: Record<string, string>
  #child: PipedProcess | undefined

  constructor(t: Pick<Test, 'teardown'>, port: number, env: Record<string, string>) {
    this.url = `http://127.0.0.1:${port}`
    this.#env = env
    this.#args = ['serve', '--mode', 'relay', '--port', `${port}`, '--log-level', 'error']
    t.teardown(() => this.kill())
  }

  get isRunning(): boolean {
    return this.#child !== undefined
  }

  /**
   * Starts the node.
   * @param launcher of another release
   */
  async start(launcher?: string): Promise<void> {
    this.#child = startLlmProxy(this.#args, { env: this.#env, launcher })
    await waitForOutput(this.#child.stdout, /http:\/\/[\d.]+:\d+/)
  }

  async kill(): Promise<void> {
    await this.#end('SIGKILL')
  }

  /**
   * Drains the node as an orchestrator does: it transfers its sessions.
   * @returns its exit code
   */
  async drain(): Promise<number | null | undefined> {
    return this.#end('SIGTERM')
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal)
  }

  async #end(signal: NodeJS.Signals): Promise<number | null | undefined> {
    const child = this.#child
    this.#child = undefined
    if (child === undefined) return undefined
    child.kill(signal)
    return (await waitForExit(child))[0]
  }
}

export interface RigOptions {
  /** `round robin`: each request goes to the next node, or to the one after it if that does not respond. */
  balancer: BalancerKind | 'round robin'
  /** The database URL, or one for each node. */
  db: string | readonly string[]
  /** Whether the first node's clock is an hour fast and the last one's an hour slow; needs {@link faketime}. */
  skews?: boolean
  /** The folder for the balancer's configuration. */
  folder: string
}

export interface Rig {
  nodes: Node[]
  workers: RunningWorker[]
  /** The URL for each agent's request by number. */
  urls: readonly string[]
}

export async function startNodes(
  t: Pick<Test, 'teardown'>,
  { balancer, folder, db, skews = false }: RigOptions,
): Promise<Rig> {
  mkdirSync(folder, { recursive: true })
  const databases = typeof db === 'string' ? Array.from({ length: NODES }, () => db) : db
  const nodes: Node[] = []
  for (const [index, database] of databases.entries()) {
    const clock = skews ? getClockEnv(index, databases.length) : {}
    nodes.push(new Node(t, await freePort(), { DATABASE_URL: database, ...clock }))
  }
  await Promise.all(nodes.map((node) => node.start()))
  const engine = await startEngine(t)
  const proxyUrls = nodes.map(({ url }) => url)
  const workers = Array.from({ length: WORKERS }, (_, i) =>
    joinWorker(t, { proxyUrls, engineUrls: [engine.url], workerId: `w${i}` }),
  )
  for (const { url } of nodes)
    await until(async () => (await readJson(`${url}/health/workers`)).healthy === WORKERS)
  const hosts = proxyUrls.map((each) => new URL(each).host)
  const urls = balancer === 'round robin' ? proxyUrls : [await startBalancer(t, balancer, hosts, folder)]
  return { nodes, workers, urls }
}

/** Returns the environment that changes a node's clock. Timers use the true clock, which no setting changes. */
function getClockEnv(index: number, nodes: number): Record<string, string> {
  const offset = index === 0 ? '+1h' : index === nodes - 1 ? '-1h' : undefined
  if (offset === undefined) return {}
  return { LD_PRELOAD: faketime!, FAKETIME: offset, FAKETIME_DONT_FAKE_MONOTONIC: '1' }
}

// biome-ignore lint/suspicious/noExplicitAny: tests inspect responses of any shape
export async function readJson(url: string): Promise<any> {
  return (await fetch(url)).json()
}

/**
 * Creates the next release: this one with one more migration of PostgreSQL's schema.
 * @param folder for its program
 * @returns its launcher
 */
export function createRelease(folder: string, migration: string): string {
  const root = join(import.meta.dirname, '../..')
  for (const part of ['bin', 'src', 'package.json'])
    cpSync(join(root, part), join(folder, part), { recursive: true })
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'))
  const file = join(folder, 'src/proxy/store/postgres/schema.ts')
  const before = readFileSync(file, 'utf8')
  const after = before.replace(/(MIGRATIONS: readonly Migration\[\] = \[[^\]]*)\]/, `$1  ${migration},\n]`)
  if (after === before) throw new Error(`${file} has no migrations`)
  writeFileSync(file, after)
  return join(folder, 'bin/llm-proxy')
}
