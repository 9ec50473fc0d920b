/**
 * Installs SGLang from PyPI once, in a folder over vLLM's environment, which has torch and most of the packages that SGLang
 * needs. Packages that it uses only on GPUs are omitted.
 */
import { join } from 'node:path'
import { CACHE, digest, installOnce } from '../../helpers/install-once.ts'
import { installVllm, run, UnsupportedMachineError, type VllmInstalled } from '../vllm/install.ts'

/** The release in docs/engines.md. */
export const SGLANG_VERSION = '0.5.23'

/** Packages that SGLang imports at its start, and that vLLM's environment lacks. */
const PACKAGES = [
  `sglang==${SGLANG_VERSION}`,
  'torchvision==0.28.0',
  'triton==3.7.1',
  ...['orjson', 'distro', 'easydict', 'gguf', 'python-dateutil', 'six', 'xxhash', 'zstandard', 'datasets'],
  ...['torch_memory_saver', 'scipy', 'blobfile', 'soundfile'],
]

export interface SglangInstalled extends VllmInstalled {
  /** Value for PYTHONPATH. */
  packages: string
}

/** @throws UnsupportedMachineError under the conditions of `installVllm` */
export async function installSglang(note: (text: string) => void): Promise<SglangInstalled> {
  const vllm = await installVllm(note)
  const packages = join(CACHE, `sglang-${SGLANG_VERSION}-${digest(PACKAGES.join(), vllm.venv)}`)
  await installOnce(packages, async () => {
    note(`installing SGLang ${SGLANG_VERSION} into ${packages}, once: about 350 MB`)
    const python = join(vllm.venv, 'bin/python')
    const uv = ['-m', 'uv', 'pip', 'install', '--quiet', '--no-cache', '--no-deps', '--python', python]
    try {
      await run(python, [...uv, '--target', packages, ...PACKAGES])
    } catch (error) {
      throw new UnsupportedMachineError(`SGLang cannot be installed here: ${(error as Error).message}`)
    }
  })
  return { ...vllm, packages }
}
