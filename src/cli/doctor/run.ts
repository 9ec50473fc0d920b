import type { DoctorConfig } from '../../commands.ts'
import { hasRollouts, requireProduct } from '../../included-products.ts'
import { checkServeConfig } from '../../proxy/config/check-serve.ts'
import { applyColour } from '../colours.ts'
import { withCause } from '../fail.ts'
import { formatJson, toPrintable } from '../table.ts'
import { checkEngine } from './engines.ts'
import { createFailure, createOkFinding, type Finding } from './finding.ts'
import { checkDatabase, checkDisk, checkKeys, checkPort, checkTls } from './machine.ts'

/** Runs `llm-proxy doctor`: checks what `serve` would encounter. @returns the exit code: 1 if something would fail */
export async function run(config: DoctorConfig): Promise<number> {
  const findings: Finding[] = []
  for await (const finding of checkAll(config)) {
    findings.push(finding)
    if (!config.json) process.stdout.write(`${formatFinding(finding)}\n`)
  }
  if (config.json) process.stdout.write(`${formatJson(findings, 2)}\n`)
  return findings.some(({ state }) => state === 'failure') ? 1 : 0
}

async function* checkAll(config: DoctorConfig): AsyncGenerator<Finding> {
  try {
    checkServeConfig(config)
    if (hasRollouts(config)) requireProduct('rollouts').checkRollouts(config)
    yield createOkFinding('options', `${config.mode} mode`)
  } catch (error) {
    yield createFailure('options', withCause(error), 'serve does not start with them')
    return
  }
  yield checkKeys(config)
  yield checkTls(config)
  yield await checkPort(config)
  yield checkDisk(config)
  yield* await checkDatabase(config)
  if (config.mode === 'relay') yield createOkFinding('engines', 'belong to workers, which connect later')
  else if (config.awaitEngines) yield createOkFinding('engines', 'are registered later')
  else if (config.engineUrls.length === 0) yield* await checkEngine(config, undefined)
  else for (const url of config.engineUrls) yield* await checkEngine(config, url)
}

/** Formats a finding: `ok disk /data syncs a write in 0.4 ms` */
function formatFinding({ about, state, seen, remedy }: Finding): string {
  const what = toPrintable(remedy === undefined ? seen : `${seen}: ${remedy}`)
  return `${applyColour(state, state.padEnd(7))}  ${toPrintable(about)}: ${what}`
}
