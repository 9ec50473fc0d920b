/** Runs a command in its own process group, and ends all processes of the group with it. */
import { type ChildProcess, spawn } from 'node:child_process'
import type { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { OutputTail } from './output-tail.ts'

/** A command: a string is a line for `sh`; a list is a program and its arguments. */
export type CommandLine = string | readonly [string, ...string[]]

export interface ProcessGroupOptions {
  cwd: string
  env: NodeJS.ProcessEnv
  timeLimitMs: number
  /** The time between requesting the group to stop and killing it. */
  graceMs: number
  /** The signal that requests the group to stop. Default: `SIGTERM`. */
  stopSignal?: 'SIGTERM' | 'SIGINT'
  /** The number of bytes at the end of the output that are kept. Default: 256 KiB. */
  outputLimitBytes?: number
  /**
   * Whether the command is a sandbox that reports on file descriptor 3 whether the program ran (bubblewrap's
   * `--json-status-fd 3`), and on file descriptor 4, by any output, that the program receives signals from now on.
   */
  sandboxed?: boolean
}

export interface ProcessGroupResult {
  /** Whether the program was started. If the sandbox could not start it, output and exit code are the sandbox's. */
  started: boolean
  /** null if a signal ended the program, or if it was stopped. */
  exitCode: number | null
  signal: NodeJS.Signals | null
  timedOut: boolean
  /** The end of the output: stdout and stderr in order of arrival. */
  output: string
}

/** The running groups. They must be killed if the process exits without waiting for them. */
const running = new Set<ChildProcess>()

function killAll(): void {
  for (const child of running) signalGroup(child, 'SIGKILL')
}

function addRunning(child: ChildProcess): void {
  if (running.size === 0) process.on('exit', killAll)
  running.add(child)
}

function removeRunning(child: ChildProcess): void {
  running.delete(child)
  if (running.size === 0) process.off('exit', killAll)
}

const OUTPUT_LIMIT_BYTES = 256 * 1024
/** The limit of the status that a sandbox reports, which is two short lines. */
const STATUS_LIMIT_BYTES = 4096
/** How long to wait for the end of the output: a process that has left the group may keep the pipe open. */
const OUTPUT_END_MS = 200

/**
 * Runs a command until it exits, its time limit expires or `signal` aborts. No process of its group remains.
 * @throws the operating system's error when it cannot be started; `signal.reason` once it has ended
 */
export async function runGroup(
  command: CommandLine,
  options: ProcessGroupOptions,
  signal: AbortSignal,
): Promise<ProcessGroupResult> {
  const { cwd, env, timeLimitMs, graceMs, stopSignal = 'SIGTERM', sandboxed = false } = options
  signal.throwIfAborted()
  const [program, ...args] = typeof command === 'string' ? ['/bin/sh', '-c', command] : command
  const stdio = ['ignore', 'pipe', 'pipe', ...(sandboxed ? (['pipe', 'pipe'] as const) : [])] as const
  const child = spawn(program!, args, { cwd, env, detached: true, stdio: [...stdio] })
  const [tail, status] = [
    new OutputTail(options.outputLimitBytes ?? OUTPUT_LIMIT_BYTES),
    new OutputTail(STATUS_LIMIT_BYTES),
  ]
  // A process that was not started for lack of file descriptors has no streams; its error event follows.
  const [, stdout, stderr, sandbox, start] = (child.stdio ?? []) as (Readable | null)[]
  for (const stream of [stdout, stderr]) stream?.on('data', (chunk: Buffer) => tail.add(chunk))
  sandbox?.on('data', (chunk: Buffer) => status.add(chunk))
  const closed = new Promise<void>((resolve) => child.once('close', () => resolve()))
  const limit = new AbortController()
  const timer = setTimeout(() => limit.abort(), timeLimitMs)
  const stop = AbortSignal.any([signal, limit.signal])
  const ready = sandboxed
    ? new Promise<void>((resolve) => start?.once('data', () => resolve()))
    : Promise.resolve()
  const { exitCode, exitSignal } = await waitForExit(child, stop, { graceMs, stopSignal, ready }).finally(
    () => clearTimeout(timer),
  )
  await Promise.race([closed, sleep(OUTPUT_END_MS, undefined, { ref: false })])
  for (const stream of [stdout, stderr, sandbox, start]) stream?.destroy()
  signal.throwIfAborted()
  return {
    // The status is written when the program has ended, and only if it was started.
    started: !sandboxed || status.getText().includes('"exit-code"'),
    exitCode,
    signal: exitSignal,
    timedOut: limit.signal.aborted && exitCode === null,
    output: tail.getText(),
  }
}

/** Returns the last line, in which a failed program usually reports the reason. */
export function getLastLine(output: string): string {
  return output.trim().split('\n').at(-1)!
}

interface ProcessExit {
  exitCode: number | null
  exitSignal: NodeJS.Signals | null
}

interface StopOptions {
  graceMs: number
  stopSignal: NodeJS.Signals
  /** Fulfilled when signals reach the program. A sandbox that is being set up ignores them. */
  ready: Promise<void>
}

/** Waits for the exit. @param stop when it aborts, the group is requested to stop, and killed `graceMs` later */
function waitForExit(
  child: ChildProcess,
  stop: AbortSignal,
  { graceMs, stopSignal, ready }: StopOptions,
): Promise<ProcessExit> {
  return new Promise((resolve, reject) => {
    let killTimer: NodeJS.Timeout | undefined
    addRunning(child)
    const requestStop = () => {
      if (running.has(child)) signalGroup(child, stopSignal)
    }
    const onStop = () => {
      void ready.then(requestStop)
      killTimer = setTimeout(() => signalGroup(child, 'SIGKILL'), graceMs)
    }
    const settle = () => {
      removeRunning(child)
      clearTimeout(killTimer)
      stop.removeEventListener('abort', onStop)
    }
    child.once('error', (error) => {
      settle()
      reject(error)
    })
    child.once('exit', (exitCode, exitSignal) => {
      settle()
      // Processes that the command left in the background must not send further requests.
      signalGroup(child, 'SIGKILL')
      resolve({ exitCode: stop.aborted ? null : exitCode, exitSignal })
    })
    if (stop.aborted) onStop()
    else stop.addEventListener('abort', onStop, { once: true })
  })
}

function signalGroup({ pid }: ChildProcess, name: NodeJS.Signals): void {
  if (pid === undefined) return
  try {
    process.kill(-pid, name)
  } catch {
    // The group has ended.
  }
}
