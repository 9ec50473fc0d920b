/**
 * Starts a process for third-party code: a model's prompt encoder. The process inherits no environment and no file
 * descriptors. Node's permissions (https://nodejs.org/docs/latest-v24.x/api/permissions.html) allow it to read only the
 * program's and Pyodide's files; it cannot start processes or threads, load native code or compile JavaScript at run
 * time. `confinement.ts` removes the network.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { EventEmitter } from 'node:events'
import { join, resolve } from 'node:path'
import { isSea } from 'node:sea'
import { fileURLToPath } from 'node:url'
import { CONFINED_COMMAND, getEmbeddedKey } from '../../../../base/assets.ts'
import { ProxyError } from '../../../../base/errors.ts'
import { getPyodideFolder } from './boot.ts'
import type { PythonHost } from './python-thread.ts'

/** The limit of V8's heap. Python's memory has a separate limit. */
const HEAP_MIB = 256

/** Starts a module in a confined process. The first message to the process contains `workerData` as JSON. */
export function startConfinedProcess(code: URL, workerData: object): PythonHost {
  const pyodideFolder = getPyodideFolder()
  const readable = [pyodideFolder, ...(isSea() ? [] : getProgramFiles())]
  const flags = [
    '--permission',
    ...readable.map((path) => `--allow-fs-read=${path}`),
    '--disallow-code-generation-from-strings',
    `--max-old-space-size=${HEAP_MIB}`,
    '--no-warnings',
  ]
  const stdio = ['ignore', 'ignore', 'ignore', 'ipc'] as const
  // The standalone executable reads Node's options only from the environment.
  const child = isSea()
    ? spawn(process.execPath, [CONFINED_COMMAND, getEmbeddedKey(code)], {
        env: { NODE_OPTIONS: flags.map(quote).join(' ') },
        stdio: [...stdio],
      })
    : spawn(process.execPath, [...flags, fileURLToPath(code)], { env: {}, stdio: [...stdio] })
  const host = new ProcessHost(child)
  // A process that was not started, for example for lack of file descriptors, has no channel; its error event follows.
  child.send?.({ ...workerData, pyodideFolder }, () => {})
  return host
}

/** Quotes an option for NODE_OPTIONS. */
function quote(word: string): string {
  return `"${word.replaceAll(/["\\]/g, '\\$&')}"`
}

/** Returns the folder of the program's code, and `package.json`, where Node reads the module format. */
function getProgramFiles(): string[] {
  const program = resolve(fileURLToPath(import.meta.url), '../../../../..')
  return [program, join(program, '../package.json')]
}

/** A confined process with the interface of a thread. */
class ProcessHost extends EventEmitter implements PythonHost {
  readonly #child: ChildProcess
  #isTerminated = false

  constructor(child: ChildProcess) {
    super()
    this.#child = child
    child.on('message', (message) => this.emit('message', message))
    child.on('error', (cause) => this.emit('error', cause))
    child.on('exit', () => {
      if (!this.#isTerminated) this.emit('error', createEndError())
    })
  }

  postMessage(job: object): void {
    this.#child.send(job, () => {})
  }

  ref(): void {
    this.#child.ref()
    this.#child.channel?.ref()
  }

  unref(): void {
    this.#child.unref()
    this.#child.channel?.unref()
  }

  async terminate(): Promise<void> {
    this.#isTerminated = true
    const wasStarted = this.#child.pid !== undefined
    if (!wasStarted || this.#child.exitCode !== null || this.#child.signalCode !== null) return
    this.#child.ref()
    await new Promise((resolve) => {
      this.#child.once('exit', resolve)
      this.#child.kill('SIGKILL')
    })
  }
}

function createEndError(): ProxyError {
  const message = "the model's prompt encoder has ended its process"
  return new ProxyError('invalid_request', message, { param: 'messages' })
}
