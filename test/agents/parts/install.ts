/**
 * Installs released agents from their registry: the pinned version, or the current one. All clones on a machine share
 * an installation of a version, so that only the first run after a release downloads anything.
 */
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { CACHE, installOnce } from '../../helpers/install-once.ts'
import { type FinishedProgram, runProgram } from './programs.ts'
import { AGENT_VERSIONS } from './versions.ts'

const LOOK_UP_MS = 60_000
const INSTALL_MS = 180_000

export interface Installation {
  version: string
  /** Contains `node_modules`, or `bin/python`. */
  folder: string
}

/**
 * @param postinstall a script of the package that its installation needs; scripts of dependencies do not run
 * @param others further packages
 */
export async function installFromNpm(
  name: string,
  postinstall?: string,
  others: readonly string[] = [],
): Promise<Installation> {
  const findVersion = async (name: string) =>
    getPinnedVersion(name) ?? queryVersion('npm', ['view', `${name}@latest`, 'version'], /^(\d+\.\S+)$/m)
  const [version, ...versions] = await Promise.all([name, ...others].map(findVersion))
  const all = [name, ...others.map((other, index) => `${other}-${versions[index]}`)].join('+')
  return installOnceFor(all, version!, async (folder) => {
    const flags = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error']
    const otherPackages = others.map((other, index) => `${other}@${versions[index]}`)
    await run(
      'npm',
      ['install', '--prefix', folder, ...flags, `${name}@${version}`, ...otherPackages],
      folder,
    )
    const packageFolder = join(folder, 'node_modules', name)
    if (postinstall !== undefined) await run(process.execPath, [postinstall], packageFolder)
  })
}

/** Returns the pinned version, or undefined for the current one. */
function getPinnedVersion(name: string): string | undefined {
  return process.env.NEWEST_AGENTS === '1' ? undefined : AGENT_VERSIONS[name]
}

/** Returns whether this machine has what {@link installFromPyPI} needs. */
export async function hasPython(python = 'python3'): Promise<boolean> {
  const probe = {
    command: python,
    args: ['-c', 'import ensurepip, venv'],
    cwd: tmpdir(),
    env: process.env,
  }
  return runProgram(probe, LOOK_UP_MS).then(
    ({ code }) => code === 0,
    () => false,
  )
}

/** Returns a Python 3.12 for packages that require it, or undefined. */
export async function findPython312(): Promise<string | undefined> {
  const pyenv = { command: 'pyenv', args: ['prefix', '3.12.1'], cwd: tmpdir(), env: process.env }
  const prefix = await runProgram(pyenv, LOOK_UP_MS).catch(() => undefined)
  const candidates = ['python3.12', join(prefix?.output.trim() ?? '', 'bin/python')]
  for (const path of candidates) if (await hasPython(path)) return path
  return undefined
}

/**
 * @param missing dependencies that the package does not declare
 * @param options `pinned`: the version; default: that of `versions.ts`, or else the current one
 */
export async function installFromPyPI(
  name: string,
  missing: readonly string[] = [],
  { pinned, python: base = 'python3' }: { pinned?: string; python?: string } = {},
): Promise<Installation> {
  const query = ['-m', 'pip', 'index', 'versions', name]
  const version = pinned ?? getPinnedVersion(name) ?? (await queryVersion(base, query, /^\S+ \((\S+)\)$/m))
  const all = [name, ...missing].join('+')
  return installOnceFor(all, version, async (folder) => {
    await run(base, ['-m', 'venv', folder], folder)
    const python = join(folder, 'bin/python')
    const packages = [`${name}==${version}`, ...missing]
    // pip takes more than a minute to choose among versions; uv takes seconds.
    await run(python, ['-m', 'pip', 'install', '--quiet', 'uv'], folder)
    await run(python, ['-m', 'uv', 'pip', 'install', '--quiet', '--python', python, ...packages], folder)
  })
}

/** Returns the current version. @param pattern matches the version in output that may contain warnings */
async function queryVersion(command: string, args: readonly string[], pattern: RegExp): Promise<string> {
  const { output } = await run(command, args, tmpdir(), LOOK_UP_MS)
  const version = pattern.exec(output)?.[1]
  if (version === undefined) throw new Error(`${command} ${args.join(' ')} reported no version: ${output}`)
  return version
}

async function installOnceFor(
  name: string,
  version: string,
  install: (folder: string) => Promise<void>,
): Promise<Installation> {
  const folder = join(CACHE, 'agents', `${name.replaceAll(/[^\w.-]/g, '_')}-${version}`)
  await installOnce(folder, install)
  return { version, folder }
}

async function run(
  command: string,
  args: readonly string[],
  cwd: string,
  limitMs = INSTALL_MS,
): Promise<FinishedProgram> {
  const finished = await runProgram({ command, args, cwd, env: process.env }, limitMs)
  if (finished.code === 0) return finished
  const outcome =
    finished.code === null ? `did not end in ${limitMs / 1_000} s` : `ended with ${finished.code}`
  throw new Error(`${command} ${args.join(' ')} ${outcome}: ${finished.output}`)
}
