/**
 * Tiny models that see images, and torchvision, which their processors require, installed once for all clones.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { CACHE, digest, installOnce } from '../../helpers/install-once.ts'
import { run, VLLM_VERSION, type VllmInstalled } from './install.ts'

/** The version for the torch of vLLM's newest release; its other dependencies are installed already. */
const TORCHVISION = 'torchvision==0.28.0'

export const FAMILIES = ['gemma4', 'glm4v'] as const

interface Vision {
  /** Directories by family. */
  models: Record<(typeof FAMILIES)[number], string>
  /** Value for `PYTHONPATH`. */
  packages: string
}

/** @param base the model whose tokenizer the models get */
export async function installVision({ venv, models: { base } }: VllmInstalled): Promise<Vision> {
  const python = join(venv, 'bin/python')
  const packages = join(CACHE, TORCHVISION.replace('==', '-'))
  await installOnce(packages, (folder) =>
    run(python, ['-m', 'pip', 'install', '--quiet', '--no-deps', '--target', folder, TORCHVISION]),
  )
  const program = join(import.meta.dirname, 'make_vision_models.py')
  const models = join(CACHE, `vllm-vision-${digest(readFileSync(program), VLLM_VERSION)}`)
  const env = { OMP_NUM_THREADS: '1', CUDA_VISIBLE_DEVICES: '', HF_HUB_OFFLINE: '1', PYTHONPATH: packages }
  await installOnce(models, (folder) =>
    run(python, [program, folder, base], { env: { ...process.env, ...env } }),
  )
  return { models: { gemma4: join(models, 'gemma4'), glm4v: join(models, 'glm4v') }, packages }
}
