/**
 * The command line as users run it, in a separate process: `bin/llm-proxy`, or the standalone executable when `npm run
 * test:binary` runs the test.
 */
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { type PipedProcess, startChild } from './children.ts'
import { watchedChild } from './no-stalls.ts'

export const LAUNCHER = join(import.meta.dirname, '../../bin/llm-proxy')

const EXECUTABLE = process.env.TESTED_EXECUTABLE

/** A Node that is too old for `src/`, if the machine has one and a launcher is tested. */
export const OLD_NODE = EXECUTABLE
  ? undefined
  : ['/usr/bin/node', '/usr/local/bin/node'].find((path) => existsSync(path))

export interface Launch {
  /** Variables added to an environment that contains only PATH (empty for the executable) and a cache for Node. */
  env?: Record<string, string>
  cwd?: string
  /** The Node executable that runs the launcher. */
  node?: string
  /** The launcher of another release. */
  launcher?: string | undefined
  /** Whether the child has a separate process group, as a shell starts it. */
  detached?: boolean
}

export interface Finished {
  /** The exit code; null if a signal ended the process. */
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
      // Neither the executable nor an old Node can load it.
      ...(!EXECUTABLE && !launch.node && watchedChild()),
      ...launch.env,
    },
    cwd: launch.cwd,
    detached: launch.detached,
  })
}

/** Runs `llm-proxy` to completion. */
export async function runLlmProxy(args: readonly string[], launch: Launch = {}): Promise<Finished> {
  const child = startLlmProxy(args, launch)
  const [stdout, stderr, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'close') as Promise<[number | null]>,
  ])
  return { code, stdout, stderr }
}
