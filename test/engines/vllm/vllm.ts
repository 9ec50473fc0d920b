/** A real vLLM on this machine's CPU, started by the command that docs/engines.md tells its readers to use. */
import { createWriteStream, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { ended, type PipedProcess, startChild } from '../../helpers/children.ts'
import { MODEL } from '../parts/agents.ts'
import { CoreLog } from '../parts/core-log.ts'
import type { VllmInstalled } from './install.ts'

const START_MS = 400_000
const POLL_MS = 250
export const CONTEXT_LENGTH = 4_096

/** What a CPU needs: equal logprobs in every batch, and one thread, for more of them wait for each other. */
const CPU_FLAGS = ['--dtype', 'float32', '--enforce-eager', '--max-num-seqs', '16']
const CPU_ENVIRONMENT = {
  VLLM_TARGET_DEVICE: 'cpu',
  VLLM_CPU_KVCACHE_SPACE: '1',
  VLLM_CPU_OMP_THREADS_BIND: 'nobind',
  OMP_NUM_THREADS: '1',
  CUDA_VISIBLE_DEVICES: '',
  VLLM_NO_USAGE_STATS: '1',
  HF_HUB_OFFLINE: '1',
  NO_COLOR: '1',
}

/** The command of a page's first code block that starts with it, split at white space; `NAME=value` may come first. */
export function documentedCommand(
  page: string,
  program: string,
): { env: Record<string, string>; words: string[] } {
  const blocks = [...page.matchAll(/(?:^ {4}.*\n)+/gm)].map(([block]) => block.replaceAll('\\\n', ' ').trim())
  const command = blocks.find((block) => new RegExp(`^(\\w+=\\S+ )*${program} `).test(block))
  if (command === undefined) throw new Error(`there is no command of ${program} on the page`)
  const words = command.split(/\s+/)
  const first = words.findIndex((word) => !word.includes('='))
  return {
    env: Object.fromEntries(words.slice(0, first).map((word) => word.split('=', 2))),
    words: words.slice(first),
  }
}

export class Vllm {
  readonly url: string
  readonly core: CoreLog
  readonly #installed: VllmInstalled
  readonly #folder: string
  readonly #port: number
  #child: PipedProcess | undefined

  /**
   * Not started yet.
   * @param folder for its logs; the test's own
   */
  constructor(installed: VllmInstalled, folder: string, port: number) {
    this.#installed = installed
    this.#folder = folder
    this.#port = port
    this.url = `http://127.0.0.1:${port}`
    this.core = new CoreLog(join(folder, 'core.jsonl'))
  }

  /**
   * Starts it, on the same port as before.
   * @param flags beyond those of docs/engines.md
   */
  async start(flags: readonly string[] = []): Promise<void> {
    const page = readFileSync(join(import.meta.dirname, '../../../docs/engines.md'), 'utf8')
    const { env, words } = documentedCommand(page, 'vllm serve')
    const named = words.slice(1).map((word) => (word === 'MODEL' ? this.#installed.models.base : word))
    const served = [
      '--port',
      String(this.#port),
      '--served-model-name',
      MODEL,
      '--max-model-len',
      String(CONTEXT_LENGTH),
    ]
    const { VIRTUAL_ENV: _, ...outer } = process.env
    const child = startChild(
      join(this.#installed.venv, 'bin/vllm'),
      [...named, '--host', '127.0.0.1', ...served, ...CPU_FLAGS, ...flags],
      {
        env: {
          ...outer,
          ...CPU_ENVIRONMENT,
          ...env,
          PYTHONPATH: join(import.meta.dirname, 'plugin'),
          CORE_LOG: join(this.#folder, 'core.jsonl'),
        },
        // With it go the processes that it starts.
        detached: true,
      },
    )
    this.#child = child
    const log = createWriteStream(join(this.#folder, 'vllm.log'), { flags: 'a' })
    for (const stream of [child.stdout, child.stderr]) stream.pipe(log, { end: false })
    const endMs = performance.now() + START_MS
    while (!(await this.#isUp())) {
      if (child.exitCode !== null || performance.now() > endMs)
        throw new Error(`vLLM did not start: ${this.log()}`)
      await sleep(POLL_MS)
    }
  }

  /** Ends it at once, as a crash does, with all of its processes. */
  async kill(): Promise<void> {
    const child = this.#child
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return
    process.kill(-child.pid!, 'SIGKILL')
    await ended(child)
  }

  /** POSTs to a route of its own. @returns the answer's JSON, or null */
  async post(path: string, body: object = {}): Promise<unknown> {
    const headers = { 'content-type': 'application/json' }
    const response = await fetch(this.url + path, { method: 'POST', headers, body: JSON.stringify(body) })
    const answer = await response.text()
    if (!response.ok) throw new Error(`${path}: ${response.status} ${answer}`)
    return answer === '' ? null : JSON.parse(answer)
  }

  /** The end of what it wrote. */
  log(): string {
    return readFileSync(join(this.#folder, 'vllm.log'), 'utf8').slice(-4_000)
  }

  async #isUp(): Promise<boolean> {
    return await fetch(`${this.url}/health`, { signal: AbortSignal.timeout(5_000) }).then(
      (response) => response.ok,
      () => false,
    )
  }
}
