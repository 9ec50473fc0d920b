/** What an agent achieved, judged by a program or a function. */
import { constants } from 'node:fs'
import { open } from 'node:fs/promises'
import { constants as system } from 'node:os'
import Type from 'typebox'
import { Value } from 'typebox/value'
import { parseJson } from '../../base/json.ts'
import type { GroupEnd } from './process-group.ts'
import type { AgentTask } from './runner.ts'

export interface AgentWork {
  readonly task: AgentTask
  /** The directory that the agent worked in. */
  readonly workDir: string
  /** The end of what it printed. */
  readonly output: string
}

/** @returns named parts of the reward, finite numbers */
export type RewardVerifier = (work: AgentWork, signal: AbortSignal) => Promise<Record<string, number>>

/** Shells give these to a command that is no program, or not there. */
const NOT_RUN = [126, 127]
/** Shells and bubblewrap add the number of the signal that killed a program. */
const KILLED = 128

/**
 * The reward that a verifier command gave: what it wrote into the reward file (a number, or a JSON object of named
 * numbers), else 1 if it exited with 0, and 0 if with anything else. One that was killed, as by the kernel when memory
 * ran out, judged nothing, whatever it had written by then.
 * @throws Error when it gave none
 */
export async function readRewards(end: GroupEnd, rewardFile: string): Promise<Record<string, number>> {
  if (end.timedOut) throw new Error('the verifier ran out of time')
  const said = end.output.trim()
  if (!end.started) throw new Error(`the verifier could not be run: ${said}`)
  const killedBy = end.signal ?? getSignal(end.exitCode)
  if (killedBy !== undefined) throw new Error(`the verifier was killed: ${killedBy}; ${said}`)
  const written = await readReward(rewardFile)
  if (written !== undefined) return parseRewards(written)
  if (end.exitCode === null || NOT_RUN.includes(end.exitCode)) {
    throw new Error(`the verifier could not be run: exit code ${end.exitCode}; ${said}`)
  }
  return { reward: end.exitCode === 0 ? 1 : 0 }
}

/** By which a program under a shell or in a sandbox was killed, if its exit code says that it was. */
function getSignal(exitCode: number | null): string | undefined {
  const number = (exitCode ?? 0) - KILLED
  return Object.entries(system.signals).find(([, value]) => value === number)?.[0]
}

/** Far more than named numbers take. */
const REWARD_LIMIT_BYTES = 64 * 1024

/**
 * A verifier runs what the agent made, which may have put anything in this place: a link is not followed, and a pipe,
 * which would be waited for, is not opened for long.
 * @returns undefined if nothing is there @throws Error for what is no plain file of a reward's size
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
  if (!about.isFile()) throw new Error('the reward file is not a file')
  if (about.size > REWARD_LIMIT_BYTES) throw new Error(`the reward file has ${about.size} bytes`)
  return await file.readFile('utf8')
}

const NamedRewards = Type.Record(Type.String(), Type.Number())

function parseRewards(text: string): Record<string, number> {
  const value: unknown = parseJson(text)
  if (typeof value === 'number') return { reward: value }
  if (Value.Check(NamedRewards, value)) return value
  throw new Error(`the reward file holds neither a number nor named numbers: ${text.trim().slice(0, 100)}`)
}
