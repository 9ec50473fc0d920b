/** External programs, run to completion with a time limit, in a process group that does not outlive them. */
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { ended, type PipedProcess, startChild } from '../../helpers/children.ts'

export interface Program {
  command: string
  args: readonly string[]
  cwd: string
  /** The whole environment. */
  env: NodeJS.ProcessEnv
}

export interface FinishedProgram {
  /** null if the program was killed at its time limit. */
  code: number | null
  /** What the program wrote to stdout and stderr, in order of arrival. */
  output: string
}

/** Number of characters kept of an output; its end says what went wrong. */
const OUTPUT_CHARS = 20_000
/** Output may still be in the pipes when a program ends. Other holders of the pipes get only this long. */
const DRAIN_MS = 5_000

/** @throws Error when it cannot be started */
export async function runProgram(program: Program, limitMs: number): Promise<FinishedProgram> {
  const { command, args, cwd, env } = program
  const child = startChild(command, args, { cwd, env, detached: true })
  const output = collect(child)
  await once(child, 'spawn')
  const closed = once(child, 'close')
  const limit = setTimeout(() => killGroup(child), limitMs)
  const [code] = await ended(child)
  clearTimeout(limit)
  // Agents leave helper processes behind that hold the pipes open.
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
    // The whole group is gone already.
  }
}
