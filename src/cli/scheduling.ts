/** `llm-proxy pause`, `resume` and `weights set`: a trainer's steps around a weight update, by hand. */
import Type from 'typebox'
import type { OperatorConfig, PauseConfig } from '../proxy/config/options/operator.ts'
import { OperatorClient } from './proxy-client.ts'
import { formatJson, toPrintable } from './table.ts'

const PauseResult = Type.Object({ status: Type.String(), drained: Type.Boolean(), in_flight: Type.Integer() })
const ResumeResult = Type.Object({ status: Type.String() })
const Weights = Type.Object({ weight_version: Type.Union([Type.String(), Type.Number(), Type.Null()]) })

/** Pauses the proxy. @returns the exit code: 1 if requests are still running */
export async function pause({ drainTimeoutMs, json, ...address }: PauseConfig): Promise<number> {
  const path = `/admin/pause?drain_timeout_s=${drainTimeoutMs / 1_000}`
  const response = await new OperatorClient(address).sendJson('POST', path, PauseResult)
  const running = response.drained ? 'no request runs' : `${response.in_flight} requests still run`
  print(json, response, `paused: ${running}; continue with llm-proxy resume`)
  return response.drained ? 0 : 1
}

/** Resumes the proxy. @returns the exit code */
export async function resume({ json, ...address }: OperatorConfig): Promise<number> {
  print(json, await new OperatorClient(address).sendJson('POST', '/admin/resume', ResumeResult), 'running')
  return 0
}

/** Sets the weight version. @returns the exit code */
export async function setWeights({ json, ...address }: OperatorConfig, [version]: string[]): Promise<number> {
  const body = { weight_version: version! }
  const response = await new OperatorClient(address).sendJson('POST', '/admin/weight_version', Weights, body)
  print(json, response, `weight version: ${toPrintable(String(response.weight_version))}`)
  return 0
}

function print(json: boolean, response: object, text: string): void {
  process.stdout.write(`${json ? formatJson(response) : text}\n`)
}
