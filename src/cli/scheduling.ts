/**
 * `llm-proxy pause`, `resume` and `weights set`: the manual equivalents of a trainer's steps around a weight update.
 */
import Type from 'typebox'
import type { OperatorConfig, PauseConfig } from '../proxy/config/options/operator.ts'
import { OperatorClient } from './proxy-client.ts'
import { formatJson, toPrintable } from './table.ts'

const Paused = Type.Object({ status: Type.String(), drained: Type.Boolean(), in_flight: Type.Integer() })
const Resumed = Type.Object({ status: Type.String() })
const Weights = Type.Object({ weight_version: Type.Union([Type.String(), Type.Number(), Type.Null()]) })

/** Pauses the proxy. @returns the exit code: 1 if requests are still running */
export async function pause({ drainTimeoutMs, json, ...address }: PauseConfig): Promise<number> {
  const path = `/admin/pause?drain_timeout_s=${drainTimeoutMs / 1_000}`
  const answer = await new OperatorClient(address).sendJson('POST', path, Paused)
  const running = answer.drained ? 'no call runs' : `${answer.in_flight} calls still run`
  print(json, answer, `paused: ${running}; llm-proxy resume serves calls again`)
  return answer.drained ? 0 : 1
}

/** Resumes the proxy. @returns the exit code */
export async function resume({ json, ...address }: OperatorConfig): Promise<number> {
  print(json, await new OperatorClient(address).sendJson('POST', '/admin/resume', Resumed), 'running')
  return 0
}

/** Sets the weight version. @returns the exit code */
export async function setWeights({ json, ...address }: OperatorConfig, [version]: string[]): Promise<number> {
  const body = { weight_version: version! }
  const answer = await new OperatorClient(address).sendJson('POST', '/admin/weight_version', Weights, body)
  print(json, answer, `weight version: ${toPrintable(String(answer.weight_version))}`)
  return 0
}

function print(json: boolean, answer: object, text: string): void {
  process.stdout.write(`${json ? formatJson(answer) : text}\n`)
}
