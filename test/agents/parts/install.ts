/**
 * Released agents from their registry: the pinned version, or the current one. An installation is kept for all clones
 * on a machine under its version, so that only the first run after a release downloads anything.
 */
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { CACHE, installOnce } from '../../helpers/install-once.ts'
import { type FinishedProgram, runProgram } from './programs.ts'
import { AGENT_VERSIONS } from './versions.ts'

const LOOK_UP_MS = 60_000
const INSTALL_MS = 180_000

export interface Installed {
  version: string
  /** Contains `node_modules`, or `bin/python`. */
  folder: string
}

/**
 * @param postinstall a script of the package that its installation needs: scripts of dependencies are not run
 * @param others further packages
 */
export async function installFromNpm(
  name: string,
  postinstall?: string,
  others: readonly string[] = [],
): Promise<Installed> {
  const wanted = async (one: string) =>
    pinnedVersion(one) ?? currentVersion('npm', ['view', `${one}@latest`, 'version'], /^(\d+\.\S+)$/m)
  const [version, ...versions] = await Promise.all([name, ...others].map(wanted))
  const all = [name, ...others.map((other, index) => `${other}-${versions[index]}`)].join('+')
  return installed(all, version!, async (folder) => {
    const flags = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error']
    const beside = others.map((other, index) => `${other}@${versions[index]}`)
    await ran('npm', ['install', '--prefix', folder, ...flags, `${name}@${version}`, ...beside], folder)
    const own = join(folder, 'node_modules', name)
    if (postinstall !== undefined) await ran(process.execPath, [postinstall], own)
  })
}

/** Returns the pinned version; undefined means the current one. */
function pinnedVersion(name: string): string | undefined {
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
export async function python312(): Promise<string | undefined> {
  const ofPyenv = { command: 'pyenv', args: ['prefix', '3.12.1'], cwd: tmpdir(), env: process.env }
  const prefix = await runProgram(ofPyenv, LOOK_UP_MS).catch(() => undefined)
  const places = ['python3.12', join(prefix?.output.trim() ?? '', 'bin/python')]
  for (const place of places) if (await hasPython(place)) return place
  return undefined
}

/**
 * @param missing dependencies that the package does not declare
 * @param choice `pinned`: the version of `versions.ts`, or the current one if there is none
 */
export async function installFromPyPI(
  name: string,
  missing: readonly string[] = [],
  { pinned, python: base = 'python3' }: { pinned?: string; python?: string } = {},
): Promise<Installed> {
  const query = ['-m', 'pip', 'index', 'versions', name]
  const version = pinned ?? pinnedVersion(name) ?? (await currentVersion(base, query, /^\S+ \((\S+)\)$/m))
  const all = [name, ...missing].join('+')
  return installed(all, version, async (folder) => {
    await ran(base, ['-m', 'venv', folder], folder)
    const python = join(folder, 'bin/python')
    const packages = [`${name}==${version}`, ...missing]
    // pip takes more than a minute to choose among versions; uv takes seconds.
    await ran(python, ['-m', 'pip', 'install', '--quiet', 'uv'], folder)
    await ran(python, ['-m', 'uv', 'pip', 'install', '--quiet', '--python', python, ...packages], folder)
  })
}

/** @param pattern finds the version among warnings */
async function currentVersion(command: string, args: readonly string[], pattern: RegExp): Promise<string> {
  const { output } = await ran(command, args, tmpdir(), LOOK_UP_MS)
  const version = pattern.exec(output)?.[1]
  if (version === undefined) throw new Error(`${command} ${args.join(' ')} reported no version: ${output}`)
  return version
}

async function installed(
  name: string,
  version: string,
  install: (folder: string) => Promise<void>,
): Promise<Installed> {
  const folder = join(CACHE, 'agents', `${name.replaceAll(/[^\w.-]/g, '_')}-${version}`)
  await installOnce(folder, install)
  return { version, folder }
}

async function ran(
  command: string,
  args: readonly string[],
  cwd: string,
  limitMs = INSTALL_MS,
): Promise<FinishedProgram> {
  const finished = await runProgram({ command, args, cwd, env: process.env }, limitMs)
  if (finished.code === 0) return finished
  const how = finished.code === null ? `did not end in ${limitMs / 1_000} s` : `ended with ${finished.code}`
  throw new Error(`${command} ${args.join(' ')} ${how}: ${finished.output}`)
}
