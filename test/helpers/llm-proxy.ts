/**
 * The command line as users run it, in a separate process: `bin/llm-proxy`, or the standalone executable when `npm run
 * test:binary` runs the test.
 */
import { type ChildProcess, fork, type StdioOptions } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { type PipedProcess, startChild } from './children.ts'
import type { CommandRequest, CommandResult } from './command-host.ts'
import { getChildEnv } from './no-stalls.ts'
import { IS_FULL } from './tier.ts'

export const LAUNCHER = join(import.meta.dirname, '../../bin/llm-proxy')

const EXECUTABLE = process.env.TESTED_EXECUTABLE

/** A Node that is too old for `src/`, if the machine has one and a launcher is tested. */
export const OLD_NODE = EXECUTABLE
  ? undefined
  : ['/usr/bin/node', '/usr/local/bin/node'].find((path) => existsSync(path))

export interface LaunchOptions {
  /** Variables added to an environment that contains only PATH (empty for the executable) and a cache for Node. */
  env?: Record<string, string>
  cwd?: string
  /** The Node executable that runs the launcher. */
  node?: string
  /** The launcher of another release or of changed code, in place of the executable. */
  launcher?: string | undefined
  /** Whether the child has a separate process group, as a shell starts it. */
  detached?: boolean
}

/** The environment of a child, without the variables that tests add. */
function childEnv(executable: string | undefined): NodeJS.ProcessEnv {
  return { PATH: executable ? '' : process.env.PATH, NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE }
}

/** Starts `llm-proxy` with these arguments. */
export function startLlmProxy(args: readonly string[], launch: LaunchOptions = {}): PipedProcess {
  // The code of a launcher is tested in place of the executable.
  const executable = launch.launcher === undefined ? EXECUTABLE : undefined
  const [command, ...first] = executable
    ? [executable]
    : [launch.node ?? process.execPath, launch.launcher ?? LAUNCHER]
  return startChild(command, [...first, ...args], {
    env: {
      ...childEnv(executable),
      // Neither the executable nor an old Node can load it.
      ...(!executable && !launch.node && getChildEnv()),
      ...launch.env,
    },
    cwd: launch.cwd,
    detached: launch.detached,
  })
}

/** Runs `llm-proxy` to completion, in a separate process. */
async function runLlmProxyAlone(args: readonly string[], launch: LaunchOptions = {}): Promise<CommandResult> {
  const child = startLlmProxy(args, launch)
  const [stdout, stderr, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'close') as Promise<[number | null]>,
  ])
  return { code, stdout, stderr }
}

/** Commands that serve, or start programs: each one needs a separate process. */
const SEPARATE = ['serve', 'engine', 'worker', 'view', 'demo']

/** Runs other commands of this test file, one at a time. */
let host: ChildProcess | undefined
let isHostBusy = false

/**
 * Runs `llm-proxy` to completion: in the process that this test file has for commands, or in a separate one if that is
 * busy or the command needs it. With FULL=1 each command has a separate process.
 */
export async function runLlmProxy(
  args: readonly string[],
  launch: LaunchOptions = {},
): Promise<CommandResult> {
  const { env, cwd = process.cwd(), ...others } = launch
  const isSeparate = IS_FULL || EXECUTABLE !== undefined || isHostBusy || Object.keys(others).length > 0
  const [command = 'serve'] = args
  if (isSeparate || SEPARATE.includes(command) || command.startsWith('-'))
    return runLlmProxyAlone(args, launch)
  isHostBusy = true
  try {
    return await runInHost({ args, env: { ...childEnv(EXECUTABLE), ...env }, cwd })
  } finally {
    isHostBusy = false
  }
}

/** @throws Error if the command ended the process */
async function runInHost(request: CommandRequest): Promise<CommandResult> {
  host ??= startHost()
  host.ref()
  host.channel!.ref()
  host.send(request)
  const ended = new AbortController()
  try {
    const exit = once(host, 'exit', { signal: ended.signal }).then(([code]) => {
      host = undefined
      throw new Error(
        `"llm-proxy ${request.args.join(' ')}" ended the process for commands with code ${code}`,
      )
    })
    const result = once(host, 'message', { signal: ended.signal }).then(([each]) => each as CommandResult)
    return await Promise.race([result, exit])
  } finally {
    ended.abort()
    // It ends with this process, and does not keep it alive.
    host?.unref()
    host?.channel?.unref()
  }
}

function startHost(): ChildProcess {
  const options = {
    env: childEnv(EXECUTABLE),
    execArgv: [],
    stdio: ['ignore', 'ignore', 'ignore', 'ipc'] as StdioOptions,
  }
  return fork(join(import.meta.dirname, 'command-host.ts'), [], options)
}
