/** The command of docs/engines.md for vLLM, with what a CPU needs and with the plugin that logs the core. */
import { delimiter, join } from 'node:path'
import { MODEL } from '../parts/agents.ts'
import { documentedCommand, EngineProcess } from '../parts/engine-process.ts'
import { NEWEST, VLLM_VERSION, type VllmInstalled } from './install.ts'

export const CONTEXT_LENGTH = 4_096

/** Of the newest release: the older one has all that this opens. */
const NEW_FLAG = '--enable-scale-out'

/** Logprobs are then equal in every batch. */
const CPU_FLAGS = ['--dtype', 'float32', '--enforce-eager', '--max-num-seqs', '16']
/**
 * Of the older release. Its build for CPUs reads q and k of a Qwen3 as if they lay side by side, which they do only where a
 * step has a single token (vllm-project/vllm#28103): what it reads in one piece has other logprobs than what it samples.
 */
const OLD_CPU_FLAGS = ['--compilation-config', '{"custom_ops": ["-rms_norm"]}']
const CPU_ENVIRONMENT = {
  VLLM_TARGET_DEVICE: 'cpu',
  VLLM_CPU_KVCACHE_SPACE: '1',
  VLLM_CPU_OMP_THREADS_BIND: 'nobind',
  VLLM_NO_USAGE_STATS: '1',
}

/**
 * Not started yet.
 * @param folder for its logs
 * @param packages a directory of further Python packages
 */
export function vllmProcess(
  { venv, models }: VllmInstalled,
  folder: string,
  port: number,
  packages = '',
): EngineProcess {
  const { env, words } = documentedCommand('vllm serve')
  const isNewest = VLLM_VERSION === NEWEST
  const known = words.slice(1).filter((word) => isNewest || word !== NEW_FLAG)
  const named = known.map((word) => (word === 'MODEL' ? models.base : word))
  const served = ['--served-model-name', MODEL, '--max-model-len', String(CONTEXT_LENGTH)]
  return new EngineProcess({
    folder,
    port,
    command: join(venv, 'bin/vllm'),
    args: [...named, ...served, ...CPU_FLAGS, ...(isNewest ? [] : OLD_CPU_FLAGS)],
    env: {
      ...CPU_ENVIRONMENT,
      ...env,
      PYTHONPATH: [join(import.meta.dirname, 'plugin'), packages].join(delimiter),
    },
  })
}
