/** Reference implementations in Python, as a process that responds to one request at a time, each a line of JSON. */
import { type ChildProcess, spawn } from 'node:child_process'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

interface OracleOptions {
  env?: NodeJS.ProcessEnv
  stderr: 'ignore' | 'inherit'
}

export class Oracle<Response> {
  readonly #process: ChildProcess
  readonly #lines: AsyncIterator<string>

  /** @param script file name in this folder */
  constructor(python: string, script: string, { env = process.env, stderr }: OracleOptions) {
    this.#process = spawn(python, [join(import.meta.dirname, script)], {
      stdio: ['pipe', 'pipe', stderr],
      env,
    })
    this.#lines = createInterface({ input: this.#process.stdout! })[Symbol.asyncIterator]()
  }

  /** @param request JSON */
  async query(request: string): Promise<Response> {
    this.#process.stdin!.write(`${request}\n`)
    const { value, done } = await this.#lines.next()
    if (done) throw new Error('Python has ended')
    return JSON.parse(value) as Response
  }

  close(): void {
    this.#process.stdin!.end()
  }
}
