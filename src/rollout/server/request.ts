/** The body of `POST /rollouts`; docs/rollouts.md describes it. Omitted fields default to the server's options. */
import Type, { type Static } from 'typebox'
import { compileLazily } from '../../base/compile-lazily.ts'
import { ProxyError } from '../../base/errors.ts'
import { isNestedTooDeeply, MAX_NESTING } from '../../protocol/json/json-weight.ts'
import { listSchemaErrors } from '../../protocol/schema/schema-errors.ts'
import { omitUndefined, type RolloutSettings } from '../remote-agent-loop.ts'

const fields = Type.Record(Type.String(), Type.Unknown())
const text = Type.String({ minLength: 1 })
const length = Type.Integer({ minimum: 1 })
const MAX_RETRIES = 1000
const MAX_DELAY_S = 3600

const Settings = Type.Partial(
  Type.Object({
    /** Identifies the rollout: a repeated request joins it, or receives its result again. */
    rollout_id: Type.String({ minLength: 1, maxLength: 512 }),
    sampling_params: fields,
    record: Type.Array(text),
    select: Type.Enum(['all', 'main', 'longest', 'last']),
    prompt_length: length,
    response_length: length,
    mask_stale_tokens: Type.Boolean(),
    images: Type.Boolean(),
    agent_host: text,
    model_name: text,
    trust_agent: Type.Boolean(),
    continue_responses: Type.Boolean(),
    max_retries: Type.Integer({ minimum: 0, maximum: MAX_RETRIES }),
    retry_base_delay_s: Type.Number({ minimum: 0, maximum: MAX_DELAY_S }),
    on_time_limit: Type.Enum(['retry', 'keep']),
    agent_name: text,
    agent_import_path: text,
    agent_kwargs: fields,
    environment_overrides: fields,
    environment_kwargs: fields,
  }),
)
export const RolloutRequest = Type.Object(
  { sample: fields, ...Settings.properties },
  { additionalProperties: false },
)

export type RolloutRequest = Static<typeof RolloutRequest>

const compiled = compileLazily(RolloutRequest)

/** Validates a body. @throws ProxyError `invalid_request` that names the field, or the limit of nesting */
export function parseRequest(body: unknown): RolloutRequest {
  // Deeper values cannot be compared with those of a repeated request, serialized for the runner or stored.
  if (isNestedTooDeeply(body)) {
    const message = `the body is nested too deeply: ${MAX_NESTING} levels are the limit`
    throw new ProxyError('invalid_request', message)
  }
  if (compiled().Check(body)) return body as RolloutRequest
  const [first] = listSchemaErrors(RolloutRequest, compiled(), body)
  const where = first?.instancePath.slice(1).replaceAll('/', '.') || 'the body'
  throw new ProxyError('invalid_request', `${where}: ${first?.message ?? 'is not a rollout'}`)
}

export function toRolloutSettings(request: RolloutRequest): RolloutSettings {
  const { retry_base_delay_s: delayS } = request
  const agent = {
    agentName: request.agent_name,
    agentImportPath: request.agent_import_path,
    agentKwargs: request.agent_kwargs,
    environmentOverrides: request.environment_overrides,
    environmentKwargs: request.environment_kwargs,
  }
  return {
    agent: omitUndefined(agent),
    agentHost: request.agent_host,
    modelName: request.model_name,
    trustAgent: request.trust_agent,
    continueResponses: request.continue_responses,
    maxRetries: request.max_retries,
    retryBaseDelayMs: delayS === undefined ? undefined : delayS * 1000,
    onTimeLimit: request.on_time_limit,
    record: request.record,
    select: request.select,
    promptLength: request.prompt_length,
    responseLength: request.response_length,
    maskStaleTokens: request.mask_stale_tokens,
    images: request.images,
  }
}
