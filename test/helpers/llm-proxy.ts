/**
 * The command line as a user has it, in a process of its own: `bin/llm-proxy`, or the standalone executable where
 * `npm run test:binary` runs the test.
 */
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { type PipedProcess, startChild } from './children.ts'
import { watchedChild } from './no-stalls.ts'

export const LAUNCHER = join(import.meta.dirname, '../../bin/llm-proxy')

const EXECUTABLE = process.env.TESTED_EXECUTABLE

/** A Node that is too old for `src/`, where the machine has one and a launcher is under test. */
export const OLD_NODE = EXECUTABLE
  ? undefined
  : ['/usr/bin/node', '/usr/local/bin/node'].find((path) => existsSync(path))

export interface Launch {
  /** Added to an environment that has nothing but PATH, an empty one for the executable, and a cache for Node. */
  env?: Record<string, string>
  cwd?: string
  /** The Node that runs the launcher. */
  node?: string
  /** Of another release. */
  launcher?: string | undefined
  /** In a process group of its own, as a shell starts it. */
  detached?: boolean
}

export interface Finished {
  /** null when a signal ended it. */
  code: number | null
  stdout: string
  stderr: string
}

/** Starts `llm-proxy` with these arguments. */
export function startLlmProxy(args: readonly string[], launch: Launch = {}): PipedProcess {
  const [command, ...first] = EXECUTABLE
    ? [EXECUTABLE]
    : [launch.node ?? process.execPath, launch.launcher ?? LAUNCHER]
  return startChild(command, [...first, ...args], {
    env: {
      PATH: EXECUTABLE ? '' : process.env.PATH,
      NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE,
      // Neither the executable nor an old Node could load it.
      ...(!EXECUTABLE && !launch.node && watchedChild()),
      ...launch.env,
    },
    cwd: launch.cwd,
    detached: launch.detached,
  })
}

/** Runs `llm-proxy` to its end. */
export async function runLlmProxy(args: readonly string[], launch: Launch = {}): Promise<Finished> {
  const child = startLlmProxy(args, launch)
  const [stdout, stderr, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'close') as Promise<[number | null]>,
  ])
  return { code, stdout, stderr }
}
