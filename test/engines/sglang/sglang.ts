/**
 * The command of docs/engines.md for SGLang, with the flags that a CPU needs and with the plugin that logs the core.
 */
import { join } from 'node:path'
import { MODEL } from '../parts/agents.ts'
import type { UpdatableEngine } from '../parts/continuation.ts'
import { EngineProcess, readDocumentedCommand } from '../parts/engine-process.ts'
import type { SglangInstalled } from './install.ts'

export const CONTEXT_LENGTH = 4_096

const CPU_FLAGS =
  '--device cpu --attention-backend torch_native --sampling-backend pytorch --dtype float32 --disable-cuda-graph ' +
  '--disable-overlap-schedule --disable-custom-all-reduce --max-total-tokens 60000 --max-running-requests 16'

/** Creates the process without starting it. @param folder for its logs */
export function createSglangProcess(
  { venv, models, packages }: SglangInstalled,
  folder: string,
  port: number,
): EngineProcess {
  const { env, words } = readDocumentedCommand('python3 -m sglang.launch_server')
  const named = words.slice(1).map((word) => (word === 'MODEL' ? models.base : word))
  const served = ['--served-model-name', MODEL, '--context-length', String(CONTEXT_LENGTH)]
  return new EngineProcess({
    folder,
    port,
    command: join(venv, 'bin/python'),
    args: [...named, ...served, ...CPU_FLAGS.split(' ')],
    env: {
      SGLANG_USE_CPU_ENGINE: '1',
      ...env,
      PYTHONPATH: [join(import.meta.dirname, 'plugin'), packages].join(':'),
    },
  })
}

/** Returns the routes by which a trainer replaces SGLang's weights. */
export function createSglangUpdates(engine: EngineProcess): UpdatableEngine {
  return {
    core: engine.core,
    pause: () => engine.post('/pause_generation', { mode: 'abort' }),
    loadWeights: (model_path, weight_version) =>
      engine.post('/update_weights_from_disk', { model_path, weight_version }),
    resume: () => engine.post('/continue_generation'),
  }
}
