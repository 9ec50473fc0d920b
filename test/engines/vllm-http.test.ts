/**
 * vLLM's own HTTP tests, unmodified, against vLLM and against this proxy in front of it: a test that passes with vLLM
 * alone passes through the proxy, except for the closed list of `vllm-http/differences.ts`. A listed test that passes
 * fails this test.
 *
 *  npm run test:vllm-http
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { freePort } from '../helpers/free-port.ts'
import { installOrSkip } from './parts/install-or-skip.ts'
import { startProxy } from './parts/proxies.ts'
import { installVllm } from './vllm/install.ts'
import { createVllmProcess } from './vllm/vllm.ts'
import { DIFFERENCES, type ProxyMode } from './vllm-http/differences.ts'
import { installHttpTests, MODEL_NAMES } from './vllm-http/install.ts'
import { compareOutcomes, type Outcome, runCases } from './vllm-http/outcomes.ts'

/** Flags with which most of the tests start vLLM; some tests assert them. */
const CONTEXT_LENGTH = '8192'
/** Some 200 cases pass with the tiny model. */
const MIN_PASSED = 150

const installed = await installOrSkip(t, async (note) => {
  const vllm = await installVllm(note)
  return { vllm, tests: await installHttpTests(vllm) }
})
if (installed !== undefined) {
  const { vllm, tests } = installed
  const folder = mkdtempSync(join(tmpdir(), 'vllm-http-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const engine = createVllmProcess(vllm, folder, await freePort())
  t.teardown(() => engine.kill())
  process.env.VLLM_ENABLE_RESPONSES_API_STORE = '1'
  const flags = [
    '--max-model-len',
    CONTEXT_LENGTH,
    '--enable-prompt-tokens-details',
    '--enable-tokenizer-info-endpoint',
  ]
  await engine.start(['--served-model-name', ...MODEL_NAMES, ...flags])
  const run = async (url: string, cases?: readonly string[]) => {
    // A test of cached tokens requires an empty cache at its start.
    await engine.post('/reset_prefix_cache')
    const python = join(vllm.venv, 'bin/python')
    return runCases(python, tests, { url, file: join(folder, 'outcomes.jsonl') }, cases)
  }
  let alone = new Map<string, Outcome>()
  let passed: string[] = []
  await t.test('vLLM alone passes its tests as far as the tiny model can', async (t) => {
    alone = await run(engine.url)
    passed = [...alone.values()].flatMap(({ case: name, outcome }) => (outcome === 'passed' ? [name] : []))
    t.ok(passed.length >= MIN_PASSED, `${passed.length} of ${alone.size} pass`)
  })
  /** Failed cases run once more, because the outcome of some depends on what the model samples. */
  const checkMode = async (t: Test, mode: ProxyMode, flags: readonly string[]) => {
    const db = join(folder, `${mode}.db`)
    const url = `${await startProxy(t, ['--db', db, '--engine-url', engine.url, ...flags])}/http-tests`
    const outcomes = await run(url, passed)
    const { unlisted } = compareOutcomes(alone, outcomes, DIFFERENCES, mode)
    if (unlisted.length > 0)
      for (const [name, outcome] of await run(
        url,
        unlisted.map((outcome) => outcome.case),
      ))
        outcomes.set(name, outcome)
    const compared = compareOutcomes(alone, outcomes, DIFFERENCES, mode)
    for (const { case: name, reason } of compared.unlisted) t.fail(`${name}: ${reason}`)
    for (const { test } of compared.passing) t.fail(`${test} is listed, but has the same outcome in both`)
    t.equal(outcomes.size, passed.length, `${outcomes.size} cases have an outcome`)
  }
  await t.test('chat mode passes the same ones', (t) => checkMode(t, 'chat', []))
  await t.test('token mode passes the same ones', (t) =>
    checkMode(t, 'token', ['--tokenizer', vllm.models.base, '--context-length', CONTEXT_LENGTH]),
  )
}
