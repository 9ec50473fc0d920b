/** Child processes that never outlive their test, even if it crashes, and never keep its output open. */
import { type ChildProcess, type ChildProcessByStdio, spawn } from 'node:child_process'
import { once } from 'node:events'
import { constants } from 'node:os'
import type { Readable } from 'node:stream'

export type PipedProcess = ChildProcessByStdio<null, Readable, Readable>

interface ChildOptions {
  cwd?: string | undefined
  /** The complete environment; default: this process's. */
  env?: NodeJS.ProcessEnv
  /** Whether the child has a separate process group, as a shell starts it. */
  detached?: boolean | undefined
}

/** The function that kills each child, with its descendants if it has a separate process group. */
const running = new Map<ChildProcess, () => void>()

process.on('exit', () => {
  for (const kill of running.values()) kill()
})
// A runner ends a hanging test with a signal; without a handler, the exit handler above would not run.
for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const)
  process.once(signal, () => process.exit(128 + constants.signals[signal]))

/** Starts a program with pipes for its output: a test runner waits for every process that inherits its output. */
export function startChild(
  command: string,
  args: readonly string[],
  { cwd, env, detached }: ChildOptions = {},
): PipedProcess {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], cwd, env, detached })
  running.set(child, () => (detached ? process.kill(-child.pid!, 'SIGKILL') : child.kill('SIGKILL')))
  // One of the two events: a program that could not be started never exits.
  for (const end of ['exit', 'error']) child.once(end, () => running.delete(child))
  return child
}

/** Returns the exit code or the signal of a child, once it has ended. */
export async function waitForExit(
  child: ChildProcess,
): Promise<[code: number | null, signal: string | null]> {
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  return [child.exitCode, child.signalCode]
}

/** Kills a child and waits until it has ended: until then it may write files into a folder that a test removes. */
export async function killChild(child: ChildProcess): Promise<void> {
  // A program that could not be started never exits.
  if (child.pid === undefined) return
  child.kill('SIGKILL')
  await waitForExit(child)
}

/**
 * Waits until a stream matches a pattern, and keeps the stream flowing.
 * @throws Error with the output if the stream ends without a match
 */
export function waitForOutput(stream: Readable, pattern: RegExp): Promise<RegExpExecArray> {
  const { promise, resolve, reject } = Promise.withResolvers<RegExpExecArray>()
  let text = ''
  stream.setEncoding('utf8').on('data', (chunk: string) => {
    text += chunk
    const match = pattern.exec(text)
    if (match) resolve(match)
  })
  stream.once('close', () => reject(new Error(`ended before it printed ${pattern}: ${text}`)))
  return promise
}
