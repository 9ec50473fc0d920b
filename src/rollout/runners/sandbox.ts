/**
 * Runs agents and verifiers in a sandbox, which limits the part of this machine that they can read and change. The
 * sandbox is bubblewrap (https://github.com/containers/bubblewrap), which uses the user namespaces of Linux and needs
 * no privileges.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, realpathSync, statSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { basename, delimiter, dirname, join, resolve } from 'node:path'
import { ProxyError } from '../../base/errors.ts'
import type { CommandLine } from './process-group.ts'

export interface SandboxOptions {
  /** `auto`: bubblewrap if it works. */
  mode: 'auto' | 'bwrap' | 'none'
  /** Further directories, besides the system's, that programs in the sandbox may read. */
  visible?: readonly string[]
  /** Files and directories hidden from all programs in the sandbox: tasks with their ground truth, rows, data sets. */
  hidden?: readonly string[]
}

/** The paths one program can access in addition to the system's programs and `visible`. */
export interface SandboxPaths {
  /** The working directory; the program may write only here and in `writable`. */
  cwd: string
  writable?: readonly string[]
  /** Mounted read-only, wherever they are. */
  readable?: readonly string[]
  /** Mounted empty, although they are within `readable`. */
  masked?: readonly string[]
}

export interface Sandbox {
  /** The reason why programs run without a sandbox; undefined if they run in one. */
  readonly missing: string | undefined
  /** Returns a command that runs `command` in the sandbox with this view. */
  wrap(command: CommandLine, view: SandboxPaths): CommandLine
}

/**
 * The top-level directories of the system's programs and settings. All others are private: hidden unless they are
 * mounted.
 */
const SYSTEM = new Set(
  ['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32', 'usr', 'etc', 'nix', 'gnu', 'sys', 'proc', 'dev'].map(
    (name) => `/${name}`,
  ),
)

/**
 * The command that starts bubblewrap with access to the system's directories, the network and its own processes only.
 * bubblewrap ignores SIGTERM, because it would otherwise end immediately and kill the program, which may have work to
 * finish. File descriptor 3 reports whether the program ran: bubblewrap's own failures have exit code 1, which programs
 * use, too.
 */
const BASE = [
  ...['env', '--ignore-signal=TERM', 'bwrap', '--die-with-parent', '--json-status-fd', '3'],
  ...['--unshare-user', '--unshare-pid', '--unshare-ipc', '--unshare-uts', '--cap-drop', 'ALL'],
  ...['--ro-bind', '/', '/', '--dev', '/dev', '--proc', '/proc'],
]
/** Starts the program. File descriptor 4 reports when SIGTERM is no longer ignored. */
const PROGRAM = [
  ...['--', 'env', '--default-signal=TERM'],
  ...['/bin/sh', '-c', 'echo started >&4; exec "$@" 4>&-', 'sh'],
]

/**
 * Creates a sandbox, after testing once whether bubblewrap works: containers often forbid its namespaces.
 * @throws ProxyError `start_failed` if it is required and does not work
 */
export function openSandbox({ mode, visible = [], hidden = [] }: SandboxOptions): Sandbox {
  const missing = mode === 'none' ? 'it is switched off' : explainBubblewrapFailure()
  if (missing !== undefined && mode === 'bwrap') {
    throw new ProxyError('start_failed', `agents cannot be run in bubblewrap: ${missing}`)
  }
  if (missing !== undefined) return { missing, wrap: (command) => command }
  return { missing, wrap: (command, view) => wrapInBubblewrap(command, view, { visible, hidden }) }
}

function explainBubblewrapFailure(): string | undefined {
  const { error, status, stderr } = spawnSync(BASE[0]!, [...BASE.slice(1), ...PROGRAM, 'true'], {
    encoding: 'utf8',
    timeout: 10_000,
    stdio: ['ignore', 'pipe', 'pipe', 'pipe', 'pipe'],
  })
  if (error) return error.message
  if (status === 127) return 'bwrap is not installed'
  return status === 0 ? undefined : stderr.trim().slice(0, 200) || `bwrap ended with exit code ${status}`
}

function wrapInBubblewrap(
  command: CommandLine,
  { cwd, writable = [], readable = [], masked = [] }: SandboxPaths,
  { visible, hidden }: { visible: readonly string[]; hidden: readonly string[] },
): CommandLine {
  // Later mounts override earlier ones: hide private directories, show what is needed, hide parts of that again.
  const shown = [...listProgramDirectories(), ...visible]
  const [first, ...base] = BASE
  const args = [
    ...base,
    ...listPrivateRoots().flatMap((path) => ['--tmpfs', path]),
    ...resolveExisting(shown).flatMap((path) => ['--ro-bind', path, path]),
    ...hidden.flatMap(createHidingArguments),
    ...resolveExisting(readable).flatMap((path) => ['--ro-bind', path, path]),
    ...masked.flatMap(createHidingArguments),
    ...[cwd, ...writable].flatMap((path) => ['--bind', path, path]),
    ...['--chdir', cwd],
    ...PROGRAM,
  ]
  return [first!, ...args, ...(typeof command === 'string' ? ['/bin/sh', '-c', command] : command)]
}

/** Returns arguments that replace a directory by an empty one and a file by an empty file. */
function createHidingArguments(path: string): string[] {
  const [target] = resolveExisting([path])
  if (target === undefined) return []
  return statSync(target).isDirectory() ? ['--tmpfs', target] : ['--ro-bind', '/dev/null', target]
}

function listPrivateRoots(): string[] {
  const others = readdirSync('/', { withFileTypes: true })
    .filter((entry) => entry.isDirectory() || entry.isSymbolicLink())
    .map(({ name }) => `/${name}`)
    .filter((path) => !SYSTEM.has(path))
  const roots = [...new Set(resolveExisting([...others, '/dev/shm', tmpdir(), homedir()]))].filter(
    (path) => path !== '/',
  )
  return roots.filter((path) => !roots.some((other) => path.startsWith(`${other}/`)))
}

/**
 * Returns the private directories that programs need: the working directory, those of PATH, and the prefix of each
 * `bin`.
 */
function listProgramDirectories(): string[] {
  const roots = listPrivateRoots()
  const isPrivate = (path: string) => roots.some((root) => path.startsWith(`${root}/`))
  const isTooMuch = (path: string) =>
    roots.includes(path) || basename(path) === '.local' || path === homedir()
  const own = resolveExisting(
    (process.env.PATH ?? '').split(delimiter).filter((path) => path.startsWith('/')),
  )
  const cwd = resolveExisting([process.cwd()]).filter((path) => isPrivate(path) && !isTooMuch(path))
  const programs = own.filter(isPrivate).flatMap((path) => {
    const prefix = dirname(path)
    return basename(path) !== 'bin' || isTooMuch(prefix) ? [path, join(prefix, 'lib')] : [prefix]
  })
  return [...cwd, ...programs.filter((path) => !isTooMuch(path))]
}

/** Returns the existing paths with links resolved, because bubblewrap cannot mount on a link. */
function resolveExisting(paths: readonly string[]): string[] {
  return paths.filter((path) => existsSync(path)).map((path) => realpathSync(resolve(path)))
}
