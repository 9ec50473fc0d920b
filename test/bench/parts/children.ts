/** Child processes that never outlive the measurement, however it ends. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'

export interface Child {
  readonly name: string
  readonly pid: number
  /** The URL in the first line on stdout; empty for a process that does not listen. */
  readonly url: string
  readonly process: ChildProcess
}

interface ChildSpec {
  name: string
  /** Default: the Node that runs this process. */
  command?: string
  args: string[]
  env?: NodeJS.ProcessEnv
  /** Whether the process does not listen, so that there is no URL to wait for. */
  silent?: boolean
  /**
   * The health URL of a process that does not print its URL, such as `http://127.0.0.1:8080/health`. The process is
   * ready when this URL responds with 200.
   */
  healthUrl?: string
  /** Whether the process has a channel for messages. */
  ipc?: boolean
  /** The time within which the process must listen. Default: 60 s. */
  readyMs?: number
}

const READY_MS = 60_000
const STOP_MS = 20_000
/** The last characters of a child's stderr, which explain why it ended. */
const STDERR_CHARS = 4_000
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

/** A group of processes that end together: `await using children = new Children()`. */
export class Children implements AsyncDisposable {
  readonly #running = new Map<number, Child>()
  readonly #killAll = () => {
    for (const { process } of this.#running.values()) process.kill('SIGKILL')
  }
  readonly #exit = () => process.exit(1)

  constructor() {
    process.on('exit', this.#killAll)
    for (const signal of SIGNALS) process.on(signal, this.#exit)
  }

  /**
   * Starts a process.
   * @throws Error if the process ends, or times out, before it is ready
   */
  async start({
    name,
    command = process.execPath,
    args,
    env = process.env,
    silent = false,
    healthUrl,
    ipc = false,
    readyMs = READY_MS,
  }: ChildSpec): Promise<Child> {
    const process_ = spawn(command, args, {
      env,
      stdio: ['ignore', 'pipe', 'pipe', ...(ipc ? (['ipc'] as const) : [])],
    })
    const { pid } = process_
    if (pid === undefined) throw new Error(`${name} did not start: ${(await once(process_, 'error'))[0]}`)
    const stderr = collectStderr(process_)
    this.#running.set(pid, { name, pid, url: '', process: process_ })
    process_.once('exit', () => this.#running.delete(pid))
    const child = { name, pid, url: '', process: process_ }
    // Drain stdout: a child that logs there would otherwise block.
    if (silent || healthUrl !== undefined) process_.stdout!.resume()
    if (silent) return child
    try {
      const url = await (healthUrl === undefined
        ? waitForUrl(child, readyMs, stderr)
        : waitForHealth(child, healthUrl, readyMs, stderr))
      return { ...child, url }
    } catch (error) {
      process_.kill('SIGKILL')
      throw error
    }
  }

  /**
   * Terminates the process and waits until it has ended.
   * @throws Error if it must be killed
   */
  async stop({ name, process: child }: Child): Promise<void> {
    if (child.exitCode !== null || child.signalCode !== null) return
    const exited = once(child, 'exit')
    child.kill('SIGTERM')
    const timer = setTimeout(() => child.kill('SIGKILL'), STOP_MS)
    await exited
    clearTimeout(timer)
    if (child.signalCode === 'SIGKILL') throw new Error(`${name} did not end on SIGTERM`)
  }

  /** Kills a process whose shutdown does not matter. */
  async kill({ process: child }: Child): Promise<void> {
    const exited = once(child, 'exit')
    if (child.kill('SIGKILL')) await exited
  }

  /** Stops in reverse order: a proxy before its engine. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      for (const child of [...this.#running.values()].reverse()) await this.stop(child)
    } finally {
      this.#killAll()
      process.off('exit', this.#killAll)
      for (const signal of SIGNALS) process.off(signal, this.#exit)
    }
  }
}

function collectStderr(child: ChildProcess): () => string {
  let text = ''
  child.stderr!.setEncoding('utf8').on('data', (chunk: string) => {
    text = (text + chunk).slice(-STDERR_CHARS)
  })
  return () => text
}

/**
 * Waits for the health URL.
 * @returns the origin of the URL
 */
async function waitForHealth(
  { name, process: child }: Child,
  healthUrl: string,
  readyMs: number,
  stderr: () => string,
): Promise<string> {
  const deadline = performance.now() + readyMs
  while (performance.now() < deadline && child.exitCode === null && child.signalCode === null) {
    const response = await fetch(healthUrl).catch(() => undefined)
    await response?.body?.cancel()
    if (response?.ok) return new URL(healthUrl).origin
    await sleep(100)
  }
  throw new Error(`${name} did not start to listen: ${stderr()}`)
}

function waitForUrl({ name, process: child }: Child, readyMs: number, stderr: () => string): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>()
  const timer = setTimeout(() => reject(new Error(`${name} did not print its URL`)), readyMs)
  let stdout = ''
  child.stdout!.setEncoding('utf8').on('data', (chunk: string) => {
    stdout = (stdout + chunk).slice(-STDERR_CHARS)
    const url = /http:\/\/[\d.]+:\d+/.exec(stdout)?.[0]
    if (url !== undefined) resolve(url)
  })
  child.once('exit', (code) => reject(new Error(`${name} ended with code ${code}: ${stderr()}`)))
  return promise.finally(() => clearTimeout(timer))
}
