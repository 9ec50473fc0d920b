/**
 * Puts a bundle into a copy of Node by Node's own single-executable support
 * (https://nodejs.org/docs/latest-v24.x/api/single-executable-applications.html).
 *
 * For this machine pkg does it (`@yao-pkg/pkg`, its `--sea` mode). Its command would download a Node; its function takes
 * the one that npm installed. For another kind of machine it would have to run that machine's Node to learn its version,
 * so there the two steps that it consists of are made here.
 */
import { execFile } from 'node:child_process'
import { copyFile, mkdir, mkdtemp, rename, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import pkg from '@yao-pkg/pkg/lib-es5/sea.js'
import type { Bundle } from './bundle.ts'
import type { NodeBase } from './node-base.ts'

const run = promisify(execFile)

/** Where Node looks for what it has been given, by its documentation. */
const BLOB_NAME = 'NODE_SEA_BLOB'
const MACHO_SEGMENT = 'NODE_SEA'
const FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2'

/** A bundle as files: the program, and what it carries by the key that it asks for it with. */
interface BundleFiles {
  main: string
  assets: Record<string, string>
}

/** Writes the executable, all at once. */
export async function writeExecutable(bundle: Bundle, base: NodeBase, output: string): Promise<void> {
  // Stack traces of the executable show where its script was: no path of the checkout.
  const workshop = await mkdtemp(join(tmpdir(), 'llm-proxy-'))
  await mkdir(dirname(output), { recursive: true })
  // Beside the output, as a file cannot be moved across file systems in one step.
  const unfinished = `${output}.unfinished`
  try {
    const files = await writeBundle(bundle, workshop)
    if (base.isHost) await makeWithPkg(files, base.node, unfinished)
    else await makeForOthers(files, base, workshop, unfinished)
    await rename(unfinished, output)
  } finally {
    await rm(workshop, { recursive: true })
    await rm(unfinished, { force: true })
  }
}

async function writeBundle({ main, assets }: Bundle, folder: string): Promise<BundleFiles> {
  const write = async (name: string, content: string | Uint8Array) => {
    await writeFile(join(folder, name), content)
    return join(folder, name)
  }
  const paths: Record<string, string> = {}
  for (const [key, content] of assets) {
    paths[key] = await write(`asset-${Object.keys(paths).length}`, content)
  }
  return { main: await write('llm-proxy.cjs', main), assets: paths }
}

async function makeWithPkg({ main, assets }: BundleFiles, node: string, output: string): Promise<void> {
  // Compiled code is good for one processor and one build of V8: those of this machine.
  const seaConfig = { disableExperimentalSEAWarning: true, useSnapshot: false, useCodeCache: true, assets }
  const target = {
    nodeRange: `node${process.versions.node}`,
    platform: process.platform === 'darwin' ? 'macos' : 'linux',
    arch: process.arch,
    output,
  } as const
  await pkg.default(main, { nodePath: node, targets: [target], seaConfig, signature: true })
}

async function makeForOthers(
  { main, assets }: BundleFiles,
  { node, generator }: NodeBase,
  folder: string,
  output: string,
): Promise<void> {
  const config = { main, output: join(folder, 'blob'), disableExperimentalSEAWarning: true, assets }
  await writeFile(join(folder, 'config.json'), JSON.stringify(config))
  await run(generator, ['--experimental-sea-config', join(folder, 'config.json')])
  await copyFile(node, output)
  // By the command of the library, whose warnings about Node's own sections stay off the terminal like that.
  const postject = fileURLToPath(import.meta.resolve('postject/dist/cli.js'))
  const options = ['--sentinel-fuse', FUSE, '--macho-segment-name', MACHO_SEGMENT]
  await run(process.execPath, [postject, output, BLOB_NAME, config.output, ...options])
}
