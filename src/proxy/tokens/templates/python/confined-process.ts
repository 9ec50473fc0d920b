/**
 * A process for code that the proxy's authors have not written: a model's prompt encoder. It inherits no environment, no
 * file descriptor and no permission: it can read the program's own files and Pyodide's, and nothing else
 * (https://nodejs.org/docs/latest-v24.x/api/permissions.html). It can start neither processes nor threads, load no
 * native code and compile no JavaScript at run time. `confinement.ts` removes the network.
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

/** V8's limit; Python's memory is limited by itself. */
const HEAP_MIB = 256

/** Starts a module in a confined process, which receives the data as JSON as its first message. */
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
  // The standalone executable takes Node's options from the environment only.
  const child = isSea()
    ? spawn(process.execPath, [CONFINED_COMMAND, getEmbeddedKey(code)], {
        env: { NODE_OPTIONS: flags.map(quote).join(' ') },
        stdio: [...stdio],
      })
    : spawn(process.execPath, [...flags, fileURLToPath(code)], { env: {}, stdio: [...stdio] })
  child.send({ ...workerData, pyodideFolder }, () => {})
  return new ProcessHost(child)
}

/** Quotes a word of NODE_OPTIONS. */
function quote(word: string): string {
  return `"${word.replaceAll(/["\\]/g, '\\$&')}"`
}

/** Returns the folder of the program's code, and the file from which Node learns its format. */
function getProgramFiles(): string[] {
  const program = resolve(fileURLToPath(import.meta.url), '../../../../..')
  return [program, join(program, '../package.json')]
}

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
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return
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
