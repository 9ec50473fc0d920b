/** Child processes that never outlive the measurement, whatever ends it. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'

export interface Child {
  readonly name: string
  readonly pid: number
  /** Where it listens, as its first line on stdout says; empty for one that does not. */
  readonly url: string
  readonly process: ChildProcess
}

export interface ChildSpec {
  name: string
  /** Default: the Node that runs this. */
  command?: string
  args: string[]
  env?: NodeJS.ProcessEnv
  /** It does not listen: there is no URL to wait for. */
  silent?: boolean
  /** Of what does not say where it listens: `http://127.0.0.1:8080/health`. It listens when this answers with 200. */
  healthUrl?: string
  /** With a channel for messages. */
  ipc?: boolean
  /** How long it may take until it listens. Default: 60 s. */
  readyMs?: number
}

const READY_MS = 60_000
const STOP_MS = 20_000
/** How much of what a child wrote to stderr is kept to explain its end. */
const STDERR_CHARS = 4_000
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

/** A group that ends together: `await using children = new Children()`. */
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

  /** @throws Error when the process ends, or says nothing, before it is ready */
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
    const stderr = tail(process_)
    this.#running.set(pid, { name, pid, url: '', process: process_ })
    process_.once('exit', () => this.#running.delete(pid))
    const child = { name, pid, url: '', process: process_ }
    // Else a child that logs there would wait for a reader.
    if (silent || healthUrl !== undefined) process_.stdout!.resume()
    if (silent) return child
    try {
      const url = await (healthUrl === undefined
        ? firstUrl(child, readyMs, stderr)
        : firstAnswer(child, healthUrl, readyMs, stderr))
      return { ...child, url }
    } catch (error) {
      process_.kill('SIGKILL')
      throw error
    }
  }

  /** Asks the process to end and waits until it has. @throws Error when it must be killed */
  async stop({ name, process: child }: Child): Promise<void> {
    if (child.exitCode !== null || child.signalCode !== null) return
    const exited = once(child, 'exit')
    child.kill('SIGTERM')
    const timer = setTimeout(() => child.kill('SIGKILL'), STOP_MS)
    await exited
    clearTimeout(timer)
    if (child.signalCode === 'SIGKILL') throw new Error(`${name} did not end when asked to`)
  }

  /** Ends one whose end does not matter, or matters at once. */
  async kill({ process: child }: Child): Promise<void> {
    const exited = once(child, 'exit')
    if (child.kill('SIGKILL')) await exited
  }

  /** Last started, first stopped: a proxy goes before its engine. */
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

function tail(child: ChildProcess): () => string {
  let text = ''
  child.stderr!.setEncoding('utf8').on('data', (piece: string) => {
    text = (text + piece).slice(-STDERR_CHARS)
  })
  return () => text
}

/** @returns the origin of the URL */
async function firstAnswer(
  { name, process: child }: Child,
  healthUrl: string,
  readyMs: number,
  stderr: () => string,
): Promise<string> {
  const deadline = performance.now() + readyMs
  while (performance.now() < deadline && child.exitCode === null && child.signalCode === null) {
    const answer = await fetch(healthUrl).catch(() => undefined)
    await answer?.body?.cancel()
    if (answer?.ok) return new URL(healthUrl).origin
    await sleep(100)
  }
  throw new Error(`${name} did not begin to listen: ${stderr()}`)
}

function firstUrl({ name, process: child }: Child, readyMs: number, stderr: () => string): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>()
  const timer = setTimeout(() => reject(new Error(`${name} did not say where it listens`)), readyMs)
  let stdout = ''
  child.stdout!.setEncoding('utf8').on('data', (piece: string) => {
    stdout = (stdout + piece).slice(-STDERR_CHARS)
    const url = /http:\/\/[\d.]+:\d+/.exec(stdout)?.[0]
    if (url !== undefined) resolve(url)
  })
  child.once('exit', (code) => reject(new Error(`${name} ended with code ${code}: ${stderr()}`)))
  return promise.finally(() => clearTimeout(timer))
}
