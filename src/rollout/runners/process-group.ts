/** A command in a process group of its own, which ends with everything that it started. */
import { type ChildProcess, spawn } from 'node:child_process'
import type { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { OutputTail } from './output-tail.ts'

/** Text is a line for `sh`; a list is a program and its arguments. */
export type CommandLine = string | readonly [string, ...string[]]

export interface GroupOptions {
  cwd: string
  env: NodeJS.ProcessEnv
  timeLimitMs: number
  /** Between asking it to end and killing it. */
  graceMs: number
  /** By which it is asked to end. Default: `SIGTERM`. */
  stopSignal?: 'SIGTERM' | 'SIGINT'
  /** The end of its output that is kept. Default: 256 KiB. */
  outputLimitBytes?: number
  /** It is a sandbox (default: no), which says in file 3 whether the program in it ran: `--json-status-fd 3` of bubblewrap. */
  sandboxed?: boolean
}

export interface GroupEnd {
  /** false when the sandbox could not start it: what there is of output and exit code is the sandbox's. */
  started: boolean
  /** null when a signal ended it, or when it was stopped. */
  exitCode: number | null
  signal: NodeJS.Signals | null
  timedOut: boolean
  /** What it printed last, stdout and stderr as they came. */
  output: string
}

/** Groups that run. A process that ends without waiting for them must not leave agents behind. */
const running = new Set<ChildProcess>()

function killAll(): void {
  for (const child of running) signalGroup(child, 'SIGKILL')
}

function remember(child: ChildProcess): void {
  if (running.size === 0) process.on('exit', killAll)
  running.add(child)
}

function forget(child: ChildProcess): void {
  running.delete(child)
  if (running.size === 0) process.off('exit', killAll)
}

const OUTPUT_LIMIT_BYTES = 256 * 1024
/** Two short lines. */
const STATUS_LIMIT_BYTES = 4096
/** How long output is waited for that a program left behind which has left its group. */
const LAST_WORDS_MS = 200

/**
 * Runs a command to its end. Whatever ends it (itself, the time limit, `signal`), no process of its group is left.
 * @throws the operating system's error when it cannot be started; `signal.reason` once it has ended
 */
export async function runGroup(
  command: CommandLine,
  options: GroupOptions,
  signal: AbortSignal,
): Promise<GroupEnd> {
  const { cwd, env, timeLimitMs, graceMs, stopSignal = 'SIGTERM', sandboxed = false } = options
  signal.throwIfAborted()
  const [program, ...args] = typeof command === 'string' ? ['/bin/sh', '-c', command] : command
  const stdio = ['ignore', 'pipe', 'pipe', sandboxed ? 'pipe' : 'ignore'] as const
  const child = spawn(program!, args, { cwd, env, detached: true, stdio: [...stdio] })
  const [tail, status] = [
    new OutputTail(options.outputLimitBytes ?? OUTPUT_LIMIT_BYTES),
    new OutputTail(STATUS_LIMIT_BYTES),
  ]
  const [, stdout, stderr, sandbox] = child.stdio as (Readable | null)[]
  for (const stream of [stdout, stderr]) stream!.on('data', (chunk: Buffer) => tail.add(chunk))
  sandbox?.on('data', (chunk: Buffer) => status.add(chunk))
  const closed = new Promise<void>((resolve) => child.once('close', () => resolve()))
  const limit = new AbortController()
  const timer = setTimeout(() => limit.abort(), timeLimitMs)
  const stop = AbortSignal.any([signal, limit.signal])
  const { exitCode, exitSignal } = await untilExit(child, stop, { graceMs, stopSignal }).finally(() =>
    clearTimeout(timer),
  )
  await Promise.race([closed, sleep(LAST_WORDS_MS, undefined, { ref: false })])
  for (const stream of [stdout, stderr, sandbox]) stream?.destroy()
  signal.throwIfAborted()
  return {
    // Written when the program has ended, and only if it ever began.
    started: !sandboxed || status.text().includes('"exit-code"'),
    exitCode,
    signal: exitSignal,
    timedOut: limit.signal.aborted && exitCode === null,
    output: tail.text(),
  }
}

/** Where a program that failed says why. */
export function getLastLine(output: string): string {
  return output.trim().split('\n').at(-1)!
}

interface Exit {
  exitCode: number | null
  exitSignal: NodeJS.Signals | null
}

/** @param stop asks the group to end when it aborts, and kills it `graceMs` later */
function untilExit(
  child: ChildProcess,
  stop: AbortSignal,
  { graceMs, stopSignal }: Required<Pick<GroupOptions, 'graceMs' | 'stopSignal'>>,
): Promise<Exit> {
  return new Promise((resolve, reject) => {
    let killTimer: NodeJS.Timeout | undefined
    remember(child)
    const onStop = () => {
      signalGroup(child, stopSignal)
      killTimer = setTimeout(() => signalGroup(child, 'SIGKILL'), graceMs)
    }
    const settle = () => {
      forget(child)
      clearTimeout(killTimer)
      stop.removeEventListener('abort', onStop)
    }
    child.once('error', (error) => {
      settle()
      reject(error)
    })
    child.once('exit', (exitCode, exitSignal) => {
      settle()
      // What it started in the background must not go on calling.
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
    // None of the group is left.
  }
}
