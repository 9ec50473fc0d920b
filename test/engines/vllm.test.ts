/**
 * vLLM itself, on this machine's CPU: what this proxy promises, held to what the engine's core was asked and sampled, as a
 * plugin in its process writes it down. The first run installs vLLM (5 GB) and trains tiny models.
 *
 *     TURNS=2000 PROPERTY_SEED=7 npm run test:vllm
 */
import t from 'tap'
import { freePort } from '../helpers/free-port.ts'
import { startModes } from './parts/proxies.ts'
import { installVllm, NotForThisMachine, type VllmInstalled } from './vllm/install.ts'
import { checkLeaving, checkWeights } from './vllm/interrupted.ts'
import { checkTheCheck, checkTurns } from './vllm/turns.ts'
import { CONTEXT_LENGTH, Vllm } from './vllm/vllm.ts'

const TURNS = Number(process.env.TURNS ?? 50)
const SEED = Number(process.env.PROPERTY_SEED ?? Math.floor(Math.random() * 1_000_000))
/** In the gate a machine that cannot run this has not passed. */
const IS_REQUIRED = process.env.ENGINES_REQUIRED === '1'

async function installed(): Promise<VllmInstalled | undefined> {
  try {
    return await installVllm((text) => t.comment(text))
  } catch (error) {
    if (IS_REQUIRED || !(error instanceof NotForThisMachine)) throw error
    t.plan(0, `skipped: ${error.message}`)
    return undefined
  }
}

const vllm = await installed()
if (vllm !== undefined) {
  const folder = t.testdir({})
  const engine = new Vllm(vllm, folder, await freePort())
  t.teardown(() => engine.kill())
  await engine.start()
  t.comment(`seed ${SEED}: run again with PROPERTY_SEED=${SEED}`)
  const modes = await startModes(
    t,
    { url: engine.url, model: vllm.models.base, contextLength: CONTEXT_LENGTH },
    folder,
  )
  await t.test('the check finds what is planted', (t) => checkTheCheck(t, modes[0]!, engine.core))
  await checkTurns(t, modes, engine.core, { turns: TURNS, seed: SEED })
  await t.test('an agent that leaves frees the engine', (t) => checkLeaving(t, modes, engine.core))
  const { base, other } = vllm.models
  await t.test('weights that are replaced in the middle of a call are told from those before', (t) =>
    checkWeights(t, modes.slice(0, 2), engine, [base, other]),
  )
}
