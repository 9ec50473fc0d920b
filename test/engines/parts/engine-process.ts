/** A real engine on this machine's CPU, started by the command that docs/engines.md documents. */
import { createWriteStream, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { type PipedProcess, startChild, waitForExit } from '../../helpers/children.ts'
import { CoreLog } from './core-log.ts'

const START_MS = 400_000
const POLL_MS = 250
/** The end of the engine's output that is printed after a failure. */
const PRINTED_CHARS = 20_000

const CPU_ENVIRONMENT = {
  CUDA_VISIBLE_DEVICES: '',
  // With more threads than idle cores, torch's small operations wait for each other.
  OMP_NUM_THREADS: '1',
  // Thousands of Python modules are compiled once instead of by each process at each start.
  PYTHONDONTWRITEBYTECODE: '',
  HF_HUB_OFFLINE: '1',
  NO_COLOR: '1',
}

/**
 * Reads the first command of a program from the code blocks of docs/engines.md, split into words. `NAME=value` may
 * precede it.
 */
export function readDocumentedCommand(program: string): { env: Record<string, string>; words: string[] } {
  const page = readFileSync(join(import.meta.dirname, '../../../docs/engines.md'), 'utf8')
  const blocks = [...page.matchAll(/(?:^ {4}.*\n)+/gm)].map(([block]) => block.replaceAll('\\\n', ' ').trim())
  const command = blocks.find((block) => new RegExp(`^(\\w+=\\S+ )*${program} `).test(block))
  if (command === undefined) throw new Error(`docs/engines.md has no command of ${program}`)
  const words = command.split(/\s+/)
  const first = words.findIndex((word) => !word.includes('='))
  const env = Object.fromEntries(words.slice(0, first).map((word) => word.split('=', 2)))
  return { env, words: words.slice(first) }
}

export interface EngineOptions {
  /** The test's directory for the engine's logs. */
  folder: string
  port: number
  command: string
  args: readonly string[]
  env: Record<string, string>
}

/** Creates the process without starting it. */
export class EngineProcess {
  readonly url: string
  readonly core: CoreLog
  /** While this file exists, outputs of vLLM contain routed experts. */
  readonly expertsFile: string
  readonly #options: EngineOptions
  readonly #coreLog: string
  readonly #output: string
  #child: PipedProcess | undefined

  constructor(options: EngineOptions) {
    this.#options = options
    this.#coreLog = join(options.folder, 'core.jsonl')
    this.expertsFile = `${this.#coreLog}.experts`
    this.#output = join(options.folder, 'engine.log')
    this.url = `http://127.0.0.1:${options.port}`
    this.core = new CoreLog(this.#coreLog)
  }

  /**
   * Starts the engine, on the same port each time, and returns when it serves.
   * @param flags in addition to the default ones
   */
  async start(flags: readonly string[] = []): Promise<void> {
    const { command, args, port, env } = this.#options
    const { VIRTUAL_ENV: _, ...outer } = process.env
    const child = startChild(command, [...args, '--host', '127.0.0.1', '--port', String(port), ...flags], {
      env: { ...outer, ...CPU_ENVIRONMENT, ...env, CORE_LOG: this.#coreLog },
      // The engine's child processes belong to its process group and are killed with it.
      detached: true,
    })
    this.#child = child
    const output = createWriteStream(this.#output, { flags: 'a' })
    for (const stream of [child.stdout, child.stderr]) stream.pipe(output, { end: false })
    const endMs = performance.now() + START_MS
    while (!(await this.#isUp())) {
      if (child.exitCode !== null || performance.now() > endMs)
        throw new Error(`${command} did not start: ${readFileSync(this.#output, 'utf8').slice(-4_000)}`)
      await sleep(POLL_MS)
    }
  }

  /** Kills the engine; if the test has failed, prints the end of the engine's output, which has tracebacks. */
  async end(t: Pick<Test, 'passing' | 'comment'>): Promise<void> {
    await this.kill()
    if (!t.passing()) t.comment(readFileSync(this.#output, 'utf8').slice(-PRINTED_CHARS))
  }

  /** Kills the engine with all of its processes at once, as a crash does. */
  async kill(): Promise<void> {
    const child = this.#child
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return
    process.kill(-child.pid!, 'SIGKILL')
    await waitForExit(child)
  }

  /** Sends a POST request to the engine. @returns the parsed response, or null */
  async post(path: string, body: object = {}): Promise<unknown> {
    // A new connection: vLLM closes idle ones after seconds, possibly just as one is reused.
    const headers = { 'content-type': 'application/json', connection: 'close' }
    const response = await fetch(this.url + path, { method: 'POST', headers, body: JSON.stringify(body) })
    const reply = await response.text()
    if (!response.ok) throw new Error(`${path}: ${response.status} ${reply}`)
    return reply === '' ? null : JSON.parse(reply)
  }

  async #isUp(): Promise<boolean> {
    return await fetch(`${this.url}/health`, { signal: AbortSignal.timeout(5_000) }).then(
      (response) => response.ok,
      () => false,
    )
  }
}
