/** The compared paths from an agent to the engine. */
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { LAUNCHER } from '../../helpers/llm-proxy.ts'
import type { Bench } from '../rows/row.ts'
import type { Child, Children } from './children.ts'

export interface Target {
  name: TargetName
  /** The URL; `{session}` is replaced by each agent's session. */
  url: string
  /** The process between agent and engine, whose CPU time and memory are measured. */
  pid?: number
}

/** Targets that record nothing. */
const PASS_THROUGHS = ['pipe', 'pipe+ids', 'parse'] as const
/** Targets of rows whose engine uses the tokens of a real model. */
const TOKEN_MODE_TARGETS = ['local-token', 'relay-token'] as const
/** Records to a PostgreSQL server that the bench starts; measured only on request. */
export const POSTGRES_TARGET = 'local-postgres'
/** The lower bound of a recorder's cost. */
const FLOOR = 'floor'
export const DEFAULT_TARGETS = [
  'direct',
  ...PASS_THROUGHS,
  FLOOR,
  'local',
  'relay',
  ...TOKEN_MODE_TARGETS,
] as const
export const TARGET_NAMES = [...DEFAULT_TARGETS, POSTGRES_TARGET] as const
export type TargetName = (typeof TARGET_NAMES)[number]
type PassThrough = (typeof PASS_THROUGHS)[number]

export function isPassThrough(name: TargetName): name is PassThrough {
  return (PASS_THROUGHS as readonly TargetName[]).includes(name)
}

export function isTokenMode(name: TargetName): boolean {
  return (TOKEN_MODE_TARGETS as readonly TargetName[]).includes(name)
}

interface ProxyOptions {
  db: string
  /** The folder for V8's CPU profile of the proxy. */
  cpuProfileFolder?: string | undefined
  args?: string[]
  /** Arguments of `node`, for a proxy with a channel for messages. */
  nodeArgs?: string[]
}

/** Creates the database of a target. @returns the value of `--db` */
export async function createDatabase(
  { folder, postgres }: Pick<Bench, 'folder' | 'postgres'>,
  row: string,
  name: TargetName,
): Promise<string> {
  return name === POSTGRES_TARGET ? postgres!.newDatabase() : join(folder, `${row}-${name}.db`)
}

export const CHAT_PATH = '/v1/chat/completions'
/** More than the concurrent requests of any row, so that none waits for a slot. */
const MAX_CONCURRENCY = '4096'
const WORKER_READY_MS = 60_000

/** Starts the processes of a row with their engine. */
export class Targets {
  readonly #children: Children
  readonly #engineUrl: string

  constructor(children: Children, engineUrl: string) {
    this.#children = children
    this.#engineUrl = engineUrl
  }

  /** @param name in token mode, the engine must have the tokenizer that the proxy's arguments specify */
  async start(name: TargetName, proxy: ProxyOptions): Promise<Target> {
    if (name === 'direct') return { name, url: this.#engineUrl + CHAT_PATH }
    if (isPassThrough(name)) {
      const child = await this.startPassThrough(name)
      return { name, url: child.url + CHAT_PATH, pid: child.pid }
    }
    if (name === FLOOR) {
      const child = await this.#startFloor(proxy)
      return { name, url: child.url + CHAT_PATH, pid: child.pid }
    }
    const isRelay = name === 'relay' || name === 'relay-token'
    const child = isRelay ? await this.startRelay(proxy) : await this.startLocal(proxy)
    return { name, url: getChatUrl(child.url), pid: child.pid }
  }

  /** Starts the proxy in local mode, as a user does. */
  startLocal(options: ProxyOptions): Promise<Child> {
    return this.#serve(options, ['--mode', 'local', ...this.#engineArgs()])
  }

  /** Starts the proxy in relay mode, with one connected worker. */
  async startRelay(options: ProxyOptions): Promise<Child> {
    const proxy = await this.startRelayWithoutWorkers(options)
    await this.startWorker(proxy.url, 'bench-1')
    await waitForWorkers(proxy.url, 1)
    return proxy
  }

  startRelayWithoutWorkers(options: ProxyOptions): Promise<Child> {
    return this.#serve(options, ['--mode', 'relay'])
  }

  startWorker(proxyUrl: string, workerId: string): Promise<Child> {
    const args = ['worker', '--proxy-url', proxyUrl, '--worker-id', workerId, ...this.#engineArgs()]
    const options = ['--max-concurrency', MAX_CONCURRENCY, '--log-level', 'error']
    return this.#children.start({ name: 'worker', args: [LAUNCHER, ...args, ...options], silent: true })
  }

  #serve({ db, cpuProfileFolder, args = [], nodeArgs }: ProxyOptions, mode: string[]): Promise<Child> {
    const profile = cpuProfileFolder ? ['--cpu-prof', `--cpu-prof-dir=${cpuProfileFolder}`] : []
    const options = [
      '--port',
      '0',
      '--db',
      db,
      '--log-level',
      'error',
      '--max-concurrency',
      MAX_CONCURRENCY,
      ...args,
    ]
    return this.#children.start({
      name: 'llm-proxy',
      args: [...profile, ...(nodeArgs ?? []), LAUNCHER, 'serve', ...mode, ...options],
      ipc: nodeArgs !== undefined,
    })
  }

  #engineArgs(): string[] {
    return ['--engine-url', this.#engineUrl, '--engine-kind', 'vllm']
  }

  #startFloor({ db, cpuProfileFolder }: ProxyOptions): Promise<Child> {
    const script = join(import.meta.dirname, '../processes/floor.ts')
    const profile = cpuProfileFolder ? ['--cpu-prof', `--cpu-prof-dir=${cpuProfileFolder}`] : []
    const args = [...profile, script, '--engine-url', this.#engineUrl, '--db', db]
    return this.#children.start({ name: 'floor', args })
  }

  startPassThrough(mode: PassThrough): Promise<Child> {
    const script = join(import.meta.dirname, '../processes/pass-through.ts')
    const args = [script, '--engine-url', this.#engineUrl, '--mode', mode]
    return this.#children.start({ name: `pass-through (${mode})`, args })
  }
}

export function getChatUrl(proxyUrl: string): string {
  return `${proxyUrl}/{session}${CHAT_PATH}`
}

/**
 * Waits for workers.
 * @throws Error if fewer than `count` workers have connected after a while
 */
export async function waitForWorkers(proxyUrl: string, count: number): Promise<void> {
  const deadline = Date.now() + WORKER_READY_MS
  while (Date.now() < deadline) {
    const health = (await (await fetch(`${proxyUrl}/health`)).json()) as { connected_workers: number }
    if (health.connected_workers >= count) return
    await sleep(50)
  }
  throw new Error(`${count} workers were started, but did not connect`)
}
