/** Judges an agent's work with a program or a function. */
import { constants } from 'node:fs'
import { open } from 'node:fs/promises'
import { constants as system } from 'node:os'
import Type from 'typebox'
import { Value } from 'typebox/value'
import { parseJson } from '../../base/json.ts'
import type { ProcessGroupResult } from './process-group.ts'
import type { AgentTask } from './runner.ts'

/** The finished work of an agent. */
export interface AgentWork {
  readonly task: AgentTask
  /** The agent's working directory. */
  readonly workDir: string
  /** The end of the agent's output. */
  readonly output: string
}

/** A function that judges an agent's work. @returns named parts of the reward, finite numbers */
export type RewardVerifier = (work: AgentWork, signal: AbortSignal) => Promise<Record<string, number>>

/** The exit codes of shells for a command that is not executable or does not exist. */
const NOT_RUN = [126, 127]
/** The exit code of shells and bubblewrap for a killed program is this plus the number of the signal. */
const KILLED = 128

/**
 * Returns the reward of a verifier command: the content of the reward file (a number, or a JSON object of named
 * numbers), otherwise 1 for exit code 0 and 0 for any other. A verifier that was killed, for instance by the kernel
 * when memory ran out, has no reward, even if it had written one.
 * @throws Error when there is no reward
 */
export async function readRewards(
  end: ProcessGroupResult,
  rewardFile: string,
): Promise<Record<string, number>> {
  if (end.timedOut) throw new Error('the verifier ran out of time')
  const output = end.output.trim()
  if (!end.started) throw new Error(`the verifier could not be run: ${output}`)
  const killedBy = end.signal ?? getSignal(end.exitCode)
  if (killedBy !== undefined) throw new Error(`the verifier was killed: ${killedBy}; ${output}`)
  const written = await readReward(rewardFile)
  if (written !== undefined) return parseRewards(written)
  if (end.exitCode === null || NOT_RUN.includes(end.exitCode)) {
    throw new Error(`the verifier could not be run: exit code ${end.exitCode}; ${output}`)
  }
  return { reward: end.exitCode === 0 ? 1 : 0 }
}

/** Returns the name of the signal that killed a program under a shell or in a sandbox, according to its exit code. */
function getSignal(exitCode: number | null): string | undefined {
  const number = (exitCode ?? 0) - KILLED
  return Object.entries(system.signals).find(([, value]) => value === number)?.[0]
}

/** The maximum size of a reward file, far more than named numbers need. */
const REWARD_LIMIT_BYTES = 64 * 1024

/**
 * Reads the reward file. A verifier runs the agent's code, which may have put anything at this path: a link is not
 * followed, and a pipe, which would block, is opened non-blocking.
 * @returns undefined if it does not exist
 * @throws Error if it is not a regular file of a reward's size
 */
async function readReward(path: string): Promise<string | undefined> {
  const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = constants
  const file = await open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw new Error(`the reward file cannot be read: ${error.code}`)
  })
  if (file === undefined) return undefined
  await using closing = new AsyncDisposableStack()
  closing.defer(() => file.close())
  const about = await file.stat()
  if (!about.isFile()) throw new Error('the reward file is not a regular file')
  if (about.size > REWARD_LIMIT_BYTES) throw new Error(`the reward file has ${about.size} bytes`)
  return await file.readFile('utf8')
}

const NamedRewards = Type.Record(Type.String(), Type.Number())

function parseRewards(text: string): Record<string, number> {
  const value: unknown = parseJson(text)
  if (typeof value === 'number') return { reward: value }
  if (Value.Check(NamedRewards, value)) return value
  throw new Error(`the reward file contains neither a number nor named numbers: ${text.trim().slice(0, 100)}`)
}
