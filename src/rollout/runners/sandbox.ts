/**
 * What an agent, or what judges it, can see and change of this machine while it runs: a sandbox of bubblewrap
 * (https://github.com/containers/bubblewrap), made of the user namespaces of Linux, so that no privilege is needed.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, realpathSync, statSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { basename, delimiter, dirname, join, resolve } from 'node:path'
import { ProxyError } from '../../base/errors.ts'
import type { CommandLine } from './process-group.ts'

export interface SandboxOptions {
  /** `auto`: bubblewrap where it works. */
  mode: 'auto' | 'bwrap' | 'none'
  /** Directories that programs in the sandbox may read though they are no part of the system. */
  visible?: readonly string[]
  /** Files and directories that nobody in the sandbox sees: tasks with their ground truth, rows, data sets. */
  hidden?: readonly string[]
}

/** What one program sees beside the system's programs and what is `visible`. */
export interface View {
  /** It works here, and may write here and in these alone. */
  cwd: string
  writable?: readonly string[]
  /** Shown read-only, wherever they are. */
  readable?: readonly string[]
  /** Shown empty, though they are in what is readable. */
  masked?: readonly string[]
}

export interface Sandbox {
  /** Why programs run without one; undefined if they run in one. */
  readonly missing: string | undefined
  /** The command that runs this one so that it sees no more than this. */
  wrap(command: CommandLine, view: View): CommandLine
}

/** Where the system's own programs and settings are. Whatever else there is on a machine is private until it is shown. */
const SYSTEM = new Set(
  ['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32', 'usr', 'etc', 'nix', 'gnu', 'sys', 'proc', 'dev'].map(
    (name) => `/${name}`,
  ),
)

/**
 * Sees the system, its own processes, and the network. A SIGTERM is for the program, which may have things to finish:
 * bubblewrap would end at once, and everything in it. Whether the program ran at all is told in file 3: bubblewrap's
 * own failure has exit code 1, as many a program's verdict.
 */
const BASE = [
  ...['env', '--ignore-signal=TERM', 'bwrap', '--die-with-parent', '--json-status-fd', '3'],
  ...['--unshare-user', '--unshare-pid', '--unshare-ipc', '--unshare-uts', '--cap-drop', 'ALL'],
  ...['--ro-bind', '/', '/', '--dev', '/dev', '--proc', '/proc'],
]
const PROGRAM = ['--', 'env', '--default-signal=TERM']

/**
 * Looks once whether bubblewrap works here: containers often forbid its namespaces.
 * @throws ProxyError `start_failed` if it was asked for by name and does not
 */
export function openSandbox({ mode, visible = [], hidden = [] }: SandboxOptions): Sandbox {
  const missing = mode === 'none' ? 'it is switched off' : whyBubblewrapFails()
  if (missing !== undefined && mode === 'bwrap') {
    throw new ProxyError('start_failed', `agents cannot be run in bubblewrap: ${missing}`)
  }
  if (missing !== undefined) return { missing, wrap: (command) => command }
  return { missing, wrap: (command, view) => inBubblewrap(command, view, { visible, hidden }) }
}

function whyBubblewrapFails(): string | undefined {
  const { error, status, stderr } = spawnSync(BASE[0]!, [...BASE.slice(1), ...PROGRAM, 'true'], {
    encoding: 'utf8',
    timeout: 10_000,
    stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
  })
  if (error) return error.message
  if (status === 127) return 'bwrap is not installed'
  return status === 0 ? undefined : stderr.trim().slice(0, 200) || `bwrap ended with exit code ${status}`
}

function inBubblewrap(
  command: CommandLine,
  { cwd, writable = [], readable = [], masked = [] }: View,
  { visible, hidden }: { visible: readonly string[]; hidden: readonly string[] },
): CommandLine {
  // What comes later goes before what came earlier: private places, what of them is needed, what of that is not.
  const shown = [...programDirectories(), ...visible]
  const [first, ...base] = BASE
  const args = [
    ...base,
    ...privateRoots().flatMap((path) => ['--tmpfs', path]),
    ...existing(shown).flatMap((path) => ['--ro-bind', path, path]),
    ...hidden.flatMap(hiding),
    ...existing(readable).flatMap((path) => ['--ro-bind', path, path]),
    ...masked.flatMap(hiding),
    ...[cwd, ...writable].flatMap((path) => ['--bind', path, path]),
    ...['--chdir', cwd],
    ...PROGRAM,
  ]
  return [first!, ...args, ...(typeof command === 'string' ? ['/bin/sh', '-c', command] : command)]
}

/** An empty directory in the place of a directory, nothing in the place of a file. */
function hiding(path: string): string[] {
  const [there] = existing([path])
  if (there === undefined) return []
  return statSync(there).isDirectory() ? ['--tmpfs', there] : ['--ro-bind', '/dev/null', there]
}

function privateRoots(): string[] {
  const others = readdirSync('/', { withFileTypes: true })
    .filter((entry) => entry.isDirectory() || entry.isSymbolicLink())
    .map(({ name }) => `/${name}`)
    .filter((path) => !SYSTEM.has(path))
  const roots = [...new Set(existing([...others, '/dev/shm', tmpdir(), homedir()]))].filter(
    (path) => path !== '/',
  )
  return roots.filter((path) => !roots.some((other) => path.startsWith(`${other}/`)))
}

/** Programs of the user are in private places: the directories of PATH there, and what those of a `bin` belong to. */
function programDirectories(): string[] {
  const roots = privateRoots()
  const isPrivate = (path: string) => roots.some((root) => path.startsWith(`${root}/`))
  const isTooMuch = (path: string) =>
    roots.includes(path) || basename(path) === '.local' || path === homedir()
  const own = existing((process.env.PATH ?? '').split(delimiter).filter((path) => path.startsWith('/')))
  const cwd = existing([process.cwd()]).filter((path) => isPrivate(path) && !isTooMuch(path))
  const programs = own.filter(isPrivate).flatMap((path) => {
    const prefix = dirname(path)
    return basename(path) !== 'bin' || isTooMuch(prefix) ? [path, join(prefix, 'lib')] : [prefix]
  })
  return [...cwd, ...programs.filter((path) => !isTooMuch(path))]
}

/** Those that are there, links resolved: nothing can be mounted on a link. */
function existing(paths: readonly string[]): string[] {
  return paths.filter((path) => existsSync(path)).map((path) => realpathSync(resolve(path)))
}
