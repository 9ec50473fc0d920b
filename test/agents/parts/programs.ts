/** Runs external programs to completion with a time limit, in a process group that does not outlive them. */
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { type PipedProcess, startChild, waitForExit } from '../../helpers/children.ts'

export interface Program {
  command: string
  args: readonly string[]
  cwd: string
  /** The complete environment. */
  env: NodeJS.ProcessEnv
}

export interface FinishedProgram {
  /** null if the program was killed at its time limit. */
  code: number | null
  /** The end of stdout and stderr, in order of arrival. */
  output: string
}

/** Number of characters retained of an output; errors are at its end. */
const OUTPUT_CHARS = 20_000
/** Output may still be in the pipes when a program ends. Other processes may keep the pipes open for this time. */
const DRAIN_MS = 5_000

/** @throws Error if the program cannot be started */
export async function runProgram(program: Program, limitMs: number): Promise<FinishedProgram> {
  const { command, args, cwd, env } = program
  const child = startChild(command, args, { cwd, env, detached: true })
  const output = collect(child)
  await once(child, 'spawn')
  const closed = once(child, 'close')
  const limit = setTimeout(() => killGroup(child), limitMs)
  const [code] = await waitForExit(child)
  clearTimeout(limit)
  // Helper processes that an agent leaves running keep the pipes open.
  killGroup(child)
  await Promise.race([closed, sleep(DRAIN_MS, undefined, { ref: false })])
  return { code, output: output() }
}

function collect({ stdout, stderr }: PipedProcess): () => string {
  let text = ''
  for (const stream of [stdout, stderr]) {
    stream.setEncoding('utf8').on('data', (chunk: string) => {
      text = (text + chunk).slice(-OUTPUT_CHARS)
    })
  }
  return () => text
}

function killGroup({ pid }: PipedProcess): void {
  if (pid === undefined) return
  try {
    process.kill(-pid, 'SIGKILL')
  } catch {
    // The group has already ended.
  }
}
