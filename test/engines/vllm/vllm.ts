/** The command of docs/engines.md for vLLM, with the flags that a CPU needs and with the plugin that logs the core. */
import { delimiter, join } from 'node:path'
import { MODEL } from '../parts/agents.ts'
import type { UpdatableEngine } from '../parts/continuation.ts'
import { EngineProcess, readDocumentedCommand } from '../parts/engine-process.ts'
import { NEWEST, VLLM_VERSION, type VllmInstalled } from './install.ts'

export const CONTEXT_LENGTH = 4_096

/** A flag of the newest release. The older one enables it by default. */
const NEW_FLAG = '--enable-scale-out'

/** Makes logprobs independent of the batch. */
const CPU_FLAGS = ['--dtype', 'float32', '--enforce-eager', '--max-num-seqs', '16']
/**
 * Flags of the older release. Its build for CPUs reads q and k of a Qwen3 as if they were contiguous, which holds only
 * where a step has a single token (vllm-project/vllm#28103): a prompt computed in one chunk has other logprobs than the
 * same tokens sampled.
 */
const OLD_CPU_FLAGS = ['--compilation-config', '{"custom_ops": ["-rms_norm"]}']
export const CPU_ENVIRONMENT = {
  VLLM_TARGET_DEVICE: 'cpu',
  VLLM_CPU_KVCACHE_SPACE: '1',
  VLLM_CPU_OMP_THREADS_BIND: 'nobind',
  VLLM_NO_USAGE_STATS: '1',
}

/**
 * Creates the process without starting it.
 * @param folder for its logs
 * @param packages a directory of further Python packages
 */
export function createVllmProcess(
  { venv, models }: VllmInstalled,
  folder: string,
  port: number,
  packages = '',
): EngineProcess {
  const { env, words } = readDocumentedCommand('vllm serve')
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

/** Returns the routes by which a trainer replaces vLLM's weights. */
export function createVllmUpdates(engine: EngineProcess): UpdatableEngine {
  return {
    core: engine.core,
    pause: () => engine.post('/pause?mode=abort'),
    loadWeights: async (weights_path, new_version) => {
      await engine.post('/collective_rpc', { method: 'reload_weights', kwargs: { weights_path } })
      await engine.post('/update_weight_version', { new_version })
    },
    resume: () => engine.post('/resume'),
  }
}
