/** Schemas of the second model-gateway contract. Names are those of `rllm_model_gateway/v2/types.py`. */
import Type from 'typebox'
import { nullable } from '../../../../protocol/schema/field.ts'
import { STRICT } from '../../schemas/described.ts'

const fields = () => Type.Record(Type.String(), Type.Unknown())
const ids = () => Type.Array(Type.Integer())

export const NewGatewaySessionBody = Type.Object(
  { session_id: Type.Optional(Type.String()), sampling_params: Type.Optional(fields()) },
  STRICT,
)

export const SessionCredentials = Type.Object({
  session_id: Type.String(),
  agent_key: Type.String({
    description:
      'The key for the LLM requests of this session; it becomes invalid when the session is removed',
  }),
})

const GatewayTrace = Type.Object({
  request: Type.Object({
    request_id: Type.String({ description: 'The `turn_id` in `GET /sessions/{session_id}`' }),
    session_id: Type.String(),
    messages: Type.Array(fields()),
    prompt: nullable(Type.String()),
    prompt_token_ids: nullable(ids()),
    tools: Type.Array(fields()),
    sampling_params: fields(),
  }),
  response: Type.Object({
    request_id: Type.String(),
    text: Type.String(),
    content: nullable(Type.String()),
    reasoning_content: nullable(Type.String()),
    tool_calls: Type.Array(fields()),
    finish_reason: nullable(Type.String()),
    prompt_tokens: Type.Integer(),
    completion_tokens: Type.Integer(),
  }),
  input: Type.Object({ routing_key: Type.String(), prompt_token_ids: ids(), sampling_params: fields() }),
  output: Type.Object({
    completion_token_ids: ids(),
    logprobs: Type.Array(Type.Number()),
    routed_experts: Type.Null(),
    finish_reason: nullable(Type.String()),
    weight_version: Type.Integer({
      description: 'The version at the start; 0 if it is not an integer: see `metadata`',
    }),
    metadata: fields(),
  }),
  lineage: Type.Object({
    parent_request_id: nullable(Type.String()),
    root_request_id: Type.String(),
  }),
  started_at: Type.Number(),
  completed_at: Type.Number(),
})

export const SessionTraces = Type.Object({
  session_id: Type.String(),
  created_at: Type.Number(),
  traces: Type.Array(GatewayTrace),
})
