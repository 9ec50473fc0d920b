/**
 * Released vLLM on this machine's CPU: compares recorded turns with the requests and samples of the engine's core, which a
 * plugin in its process logs. The first run installs vLLM (5 GB) and trains tiny models.
 *
 *     PROPERTY_SEED=7 npm run test:vllm
 *     TURNS=2000 npm run test:vllm -- --timeout=7200 --grep=/random/   # only the random turns, and many
 *     CUTS=500 npm run test:vllm -- --timeout=7200 --grep=/continue/   # only aborted responses that continue
 *
 * During requests, agents disconnect, trainers replace weights, and the engine pauses, sleeps and crashes. UPDATE=1 records
 * the wire again, for `test/integration/engine-wires.test.ts`. VLLM_VERSION=0.12.0, for use by hand, runs a year-old release
 * and compares recorded turns with its core and `verify`.
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
import { checkAdapters, getAdapterFlags } from './vllm/adapters.ts'
import { checkExperts } from './vllm/experts.ts'
import { installVllm, NEWEST, VLLM_VERSION } from './vllm/install.ts'
import { checkCrash, checkDisconnects, checkPaused, checkWeights } from './vllm/interrupted.ts'
import { checkRejections } from './vllm/rejections.ts'
import { checkScore } from './vllm/score.ts'
import { checkSeededRequests } from './vllm/seeded-requests.ts'
import { CONTEXT_LENGTH, createVllmProcess, createVllmUpdates } from './vllm/vllm.ts'
import { recordWires } from './wires/record-wires.ts'

const TURNS = Number(process.env.TURNS ?? (IS_FULL ? 60 : 20))
/** Aborted engine requests whose responses continue. */
const CUTS = Number(process.env.CUTS ?? (IS_FULL ? 60 : 8))
const SEED = Number(process.env.PROPERTY_SEED ?? Math.floor(Math.random() * 1_000_000))
const vllm = await installOrSkip(t, installVllm)
if (vllm !== undefined) {
  // Another run of tap in this clone would remove testdir() while the proxies use it.
  const folder = mkdtempSync(join(tmpdir(), 'vllm-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const engine = createVllmProcess(vllm, folder, await freePort())
  t.teardown(() => engine.end(t))
  await engine.start()
  t.comment(`seed ${SEED}: repeat with PROPERTY_SEED=${SEED}`)
  const served = { url: engine.url, model: vllm.models.base, contextLength: CONTEXT_LENGTH }
  const modes = await startModes(t, served, folder)
  if (process.env.UPDATE === '1') await recordWires(`vllm-${VLLM_VERSION}`, engine.url, engine.core)
  const { base, other, adapters } = vllm.models
  const localModes = modes.slice(0, 2)
  await t.test('the check finds planted mismatches', (t) => checkPlantedMismatches(t, modes[0]!, engine.core))
  await t.test('doctor finds nothing wrong', (t) =>
    checkDoctor(t, engine.url, { model: base, folder, logprobs: /raw_logprobs/ }),
  )
  // Each part is a subtest of the file: while none runs, tap considers the file done and ends the proxies.
  await t.test('recorded turns of random agents equal the requests and samples of the core', (t) =>
    checkTurns(t, modes, engine.core, { turns: TURNS, seed: SEED, seconds: RANDOM_SECONDS }),
  )
  await t.test('verify finds the same logprobs', (t) =>
    checkVerify(t, localModes, { engineUrl: engine.url, turns: TURNS }),
  )
  if (VLLM_VERSION === NEWEST) {
    await t.test('a teacher scores rows as vLLM scores prompts', (t) => checkScore(t, localModes, engine))
    await t.test('requests that vLLM rejects are rejected with its message, complete and streamed', (t) =>
      checkRejections(t, engine.url, modes),
    )
    await t.test('the same seeded request samples the same in each mode', (t) =>
      checkSeededRequests(t, localModes, engine.url, { requests: Math.ceil(TURNS / 3), seed: SEED }),
    )
    await t.test('an agent that disconnects frees the engine', (t) => checkDisconnects(t, modes, engine))
    await t.test('routed experts of each token are in rows', (t) => checkExperts(t, localModes, engine))
    await t.test(
      'weights that are replaced in the middle of a request are distinguished from those before',
      (t) => checkWeights(t, modes, engine, [base, other]),
    )
    await t.test('responses that the engine aborts for new weights continue', async (t) =>
      checkContinuation(t, createVllmUpdates(engine), {
        modes: await startTokenModes(t, served, folder, ['--continue-responses']),
        dialects: Object.keys(AGENTS),
        models: [base, other],
        tokens: 120,
        cuts: CUTS,
        seed: SEED,
      }),
    )
    await t.test('a paused engine receives no requests, and drops none', (t) => checkPaused(t, modes, engine))
    await t.test(
      'an engine that crashes under load is an error for its agents, and serves again after its restart',
      (t) => checkCrash(t, modes, engine, () => engine.start(getAdapterFlags(adapters))),
    )
    await t.test('an adapter samples for the sessions of its policy', (t) =>
      checkAdapters(t, modes, engine.core),
    )
  }
}
