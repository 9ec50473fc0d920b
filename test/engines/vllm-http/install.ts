/** The HTTP tests of vLLM's source archive, from PyPI, with pytest. Installed once for all clones on a machine. */
import { copyFileSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { CACHE, digest, installOnce } from '../../helpers/install-once.ts'
import { run, UnsupportedMachineError, VLLM_VERSION, type VllmInstalled } from '../vllm/install.ts'

const HERE = import.meta.dirname
const PACKAGES = ['pytest==9.2.0', 'pytest-asyncio==1.5.0']

/** The models and adapters that the tests request. Each of these names is the tiny model here. */
export const MODEL_NAMES = [
  'Qwen/Qwen3-0.6B',
  'Qwen/Qwen3-1.7B',
  'Qwen/Qwen3-8B',
  'Qwen/Qwen2-1.5B-Instruct',
  'Qwen/Qwen2.5-1.5B-Instruct',
  'HuggingFaceH4/zephyr-7b-beta',
  'HuggingFaceTB/SmolLM2-135M-Instruct',
  'facebook/opt-125m',
  'claude-3-7-sonnet-latest',
  'zephyr-lora',
]

/** An adapter that a fixture downloads; the running server does not load it. */
const ADAPTER = 'typeof/zephyr-7b-beta-lora'

export interface HttpTests {
  /** pytest and its plugin, for PYTHONPATH. */
  packages: string
  /** The folder that contains `tests`. */
  sources: string
  /** A cache of Hugging Face's hub with `MODEL_NAMES`. */
  hub: string
}

/** @throws UnsupportedMachineError without access to PyPI */
export async function installHttpTests({ venv, models }: VllmInstalled): Promise<HttpTests> {
  const helper = join(HERE, 'utils.py')
  const program = join(HERE, 'fetch_tests.py')
  const contents = [readFileSync(helper), readFileSync(program), PACKAGES.join(), MODEL_NAMES.join()]
  const folder = join(CACHE, `vllm-http-${VLLM_VERSION}-${digest(...contents, venv, models.base)}`)
  const installed = {
    packages: join(folder, 'packages'),
    sources: join(folder, 'sources'),
    hub: join(folder, 'hub'),
  }
  await installOnce(folder, async () => {
    const python = join(venv, 'bin/python')
    const uv = ['-m', 'uv', 'pip', 'install', '--quiet', '--no-cache', '--python', python]
    try {
      await run(python, [...uv, '--target', installed.packages, ...PACKAGES])
      await run(python, [program, VLLM_VERSION, installed.sources])
    } catch (error) {
      throw new UnsupportedMachineError(
        `the tests of vLLM cannot be installed here: ${(error as Error).message}`,
      )
    }
    copyFileSync(helper, join(installed.sources, 'tests/utils.py'))
    for (const name of [...MODEL_NAMES, ADAPTER]) linkModel(installed.hub, name, models.base)
  })
  return installed
}

/** Adds a model to a hub cache, in the layout of huggingface_hub: a ref names a snapshot, a folder of links. */
function linkModel(hub: string, name: string, files: string): void {
  const folder = join(hub, `models--${name.replace('/', '--')}`)
  const snapshot = join(folder, 'snapshots/tiny')
  mkdirSync(join(folder, 'refs'), { recursive: true })
  mkdirSync(snapshot, { recursive: true })
  writeFileSync(join(folder, 'refs/main'), 'tiny')
  for (const file of readdirSync(files)) symlinkSync(join(files, file), join(snapshot, file))
}
