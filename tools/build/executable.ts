/**
 * Puts a bundle into a copy of Node with Node's single-executable support
 * (https://nodejs.org/docs/latest-v24.x/api/single-executable-applications.html). For this machine, pkg does so
 * (`@yao-pkg/pkg`, its `--sea` mode). Its command would download a Node; its function accepts the one that npm
 * installed. For another kind of machine it would have to run that machine's Node to determine its version, so its two
 * steps are implemented here.
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

/** Names under which Node finds its embedded data, from its documentation. */
const BLOB_NAME = 'NODE_SEA_BLOB'
const MACHO_SEGMENT = 'NODE_SEA'
const FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2'

/** The files of a bundle: the program, and its assets by key. */
interface BundleFiles {
  main: string
  assets: Record<string, string>
}

/** Writes the executable atomically. */
export async function writeExecutable(bundle: Bundle, base: NodeBase, output: string): Promise<void> {
  // Stack traces of the executable contain the path of its script, which must not be one of the checkout.
  const workshop = await mkdtemp(join(tmpdir(), 'llm-proxy-'))
  await mkdir(dirname(output), { recursive: true })
  // In the folder of the output, because a file cannot be moved atomically across file systems.
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
  // Compiled code is specific to a processor and a build of V8, so it is made for this machine only.
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
  // Runs the library's command, so that its warnings about Node's own sections are not printed.
  const postject = fileURLToPath(import.meta.resolve('postject/dist/cli.js'))
  const options = ['--sentinel-fuse', FUSE, '--macho-segment-name', MACHO_SEGMENT]
  await run(process.execPath, [postject, output, BLOB_NAME, config.output, ...options])
}
