/**
 * Released SGLang on this machine's CPU: compares recorded turns with the requests and samples of SGLang's scheduler, which
 * a plugin in its process logs. The first run installs vLLM's environment (5 GB), and SGLang over it.
 *
 *     TURNS=500 PROPERTY_SEED=7 npm run test:sglang
 *     CUTS=100 npm run test:sglang -- --timeout=3600 --grep=/continue/   # only aborted responses that continue
 *
 * With `UPDATE=1` the test records SGLang's wire again, for `test/integration/engine-wires.test.ts`.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { freePort } from '../helpers/free-port.ts'
import { IS_FULL, RANDOM_SECONDS } from '../helpers/tier.ts'
import { AGENTS } from './parts/agents.ts'
import { checkDoctor, checkVerify } from './parts/commands.ts'
import { checkContinuation } from './parts/continuation.ts'
import { installOrSkip } from './parts/install-or-skip.ts'
import { startModes, startTokenModes } from './parts/proxies.ts'
import { checkPlantedMismatches, checkTurns } from './parts/turns.ts'
import { installSglang, SGLANG_VERSION } from './sglang/install.ts'
import { CONTEXT_LENGTH, createSglangProcess, createSglangUpdates } from './sglang/sglang.ts'
import { recordWires } from './wires/record-wires.ts'

const TURNS = Number(process.env.TURNS ?? (IS_FULL ? 40 : 15))
/** Aborted engine requests whose responses continue. */
const CUTS = Number(process.env.CUTS ?? (IS_FULL ? 20 : 4))
const SEED = Number(process.env.PROPERTY_SEED ?? Math.floor(Math.random() * 1_000_000))

const sglang = await installOrSkip(t, installSglang)
if (sglang !== undefined) {
  const folder = mkdtempSync(join(tmpdir(), 'sglang-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const engine = createSglangProcess(sglang, folder, await freePort())
  t.teardown(() => engine.end(t))
  await engine.start()
  t.comment(`seed ${SEED}: repeat with PROPERTY_SEED=${SEED}`)
  const { base, other } = sglang.models
  const served = { url: engine.url, model: base, contextLength: CONTEXT_LENGTH }
  const modes = await startModes(t, served, folder)
  if (process.env.UPDATE === '1') await recordWires(`sglang-${SGLANG_VERSION}`, engine.url, engine.core)
  await t.test('the check finds planted mismatches', (t) => checkPlantedMismatches(t, modes[0]!, engine.core))
  await t.test('doctor finds nothing wrong', (t) =>
    checkDoctor(t, engine.url, {
      model: base,
      folder,
      logprobs: /after temperature and before/,
    }),
  )
  await t.test('recorded turns of random agents equal the requests and samples of the scheduler', (t) =>
    checkTurns(t, modes, engine.core, { turns: TURNS, seed: SEED, seconds: RANDOM_SECONDS }),
  )
  await t.test('verify finds the same logprobs', (t) =>
    checkVerify(t, modes.slice(0, 2), { engineUrl: engine.url, turns: TURNS }),
  )
  await t.test('responses that the engine aborts for new weights continue', async (t) =>
    checkContinuation(t, createSglangUpdates(engine), {
      modes: await startTokenModes(t, served, folder, ['--continue-responses']),
      // Its Completions route reports no ids.
      dialects: Object.keys(AGENTS).filter((dialect) => dialect !== 'completions'),
      models: [base, other],
      tokens: 300,
      // Its scheduler reports the tokens of a complete response at its end.
      streamsOnly: true,
      cuts: CUTS,
      seed: SEED,
    }),
  )
}
