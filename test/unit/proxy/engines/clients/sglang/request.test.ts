import t from 'tap'
import type { ChatBody } from '../../../../../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../../../../../src/protocol/token-ids/prompt-ids.ts'
import { buildGenerateBody } from '../../../../../../src/proxy/engines/clients/sglang/request.ts'
import { serializeBodyWithIds } from '../../../../../../src/proxy/engines/clients/wire/request.ts'

function buildBody(
  body: Partial<ChatBody>,
  stream = true,
  more: { mayReason?: boolean } = {},
): Record<string, unknown> {
  const messages = [{ role: 'user' as const, content: 'Hello' }]
  const request = {
    kind: 'chat',
    requestId: 'r',
    sessionId: 's',
    stream,
    promptTokenIds: PromptIds.of(5, 6),
    body: { messages, ...body },
    ...more,
  } as const
  const json = serializeBodyWithIds(buildGenerateBody(request), 'input_ids', request)
  return JSON.parse(Buffer.concat(json).toString())
}

const buildParams = (body: Partial<ChatBody>) => buildBody(body).sampling_params

t.test('the ids are the complete prompt, and the outputs that recording needs are requested', (t) => {
  const rendered = {
    tools: [{ type: 'function' as const, function: { name: 'f' } }],
    tool_choice: 'auto',
    chat_template_kwargs: { enable_thinking: false },
    reasoning_effort: 'low',
    n: 1,
  }
  const controlledByProxy = {
    text: 'other',
    input_embeds: [[1]],
    session_params: { id: 's' },
    rid: 'r',
    background: true,
    input_ids: [1],
    stream_options: {},
  }
  const expected = {
    input_ids: [5, 6],
    sampling_params: { max_new_tokens: null },
    return_logprob: true,
    logprob_start_len: -1,
    top_logprobs_num: 0,
    return_text_in_logprobs: false,
    stream: true,
  }
  t.same(
    buildBody({ ...rendered, ...controlledByProxy, logprobs: false, top_logprobs: 5, return_logprob: false }),
    expected,
  )
  t.same(
    buildBody({ priority: 3, lora_path: 'a' }),
    { ...expected, priority: 3, lora_path: 'a' },
    'other fields are forwarded',
  )
  t.match(buildBody({ logprobs: true, top_logprobs: 2 }, false), {
    top_logprobs_num: 2,
    return_text_in_logprobs: true,
    stream: false,
  })
  t.end()
})

t.test("sampling parameters have SGLang's names", (t) => {
  const same = {
    temperature: 0.5,
    top_p: 0.9,
    top_k: 5,
    min_p: 0.1,
    frequency_penalty: 0.1,
    presence_penalty: 0.2,
    repetition_penalty: 1.1,
    logit_bias: { 7: -100 },
    stop: ['###'],
    stop_token_ids: [2],
    ignore_eos: true,
    skip_special_tokens: false,
    regex: 'a+',
  }
  t.same(buildParams({ ...same, seed: 1, min_tokens: 2, max_tokens: 9 }), {
    ...same,
    sampling_seed: 1,
    min_new_tokens: 2,
    max_new_tokens: 9,
  })
  t.same(
    buildParams({ max_tokens: 9, max_completion_tokens: 8 }),
    { max_new_tokens: 8 },
    'the newer name has precedence',
  )
  const nulls = {
    temperature: null,
    top_p: null,
    seed: null,
    stop: null,
    max_tokens: null,
    response_format: null,
  }
  t.same(buildParams(nulls), { max_new_tokens: null }, "null is the engine's default")
  t.same(buildParams({ custom: 1 }), { max_new_tokens: null }, 'an unknown parameter would fail the request')
  t.end()
})

t.test('constraints on the output are converted', (t) => {
  const constraint = (format: unknown) => {
    const { max_new_tokens: _, ...rest } = buildParams({ response_format: format }) as Record<string, unknown>
    return rest
  }
  const schema = { type: 'object', properties: { a: { type: 'number' } } }
  const tag = { type: 'structural_tag', structures: [], triggers: [] }
  t.same(constraint({ type: 'text' }), {})
  t.same(constraint({ type: 'json_object' }), { json_schema: '{"type":"object"}' })
  t.same(constraint({ type: 'json_schema', json_schema: { name: 'x', schema } }), {
    json_schema: JSON.stringify(schema),
  })
  t.same(constraint(tag), { structural_tag: JSON.stringify(tag) })
  const rejects = (body: Partial<ChatBody>, param: string) =>
    t.throws(() => buildBody(body), { code: 'unsupported', status: 400, param })
  rejects({ response_format: { type: 'grammar' } }, 'response_format')
  rejects({ response_format: { type: 'json_schema' } }, 'response_format')
  rejects({ response_format: 'json' }, 'response_format')
  rejects({ structured_outputs: { json: schema } }, 'structured_outputs')
  rejects({ guided_json: schema }, 'guided_json')
  t.doesNotThrow(() => buildBody({ structured_outputs: null, guided_json: null }))
  t.end()
})

t.test('a constraint starts after the reasoning, if the prompt leaves it open', (t) => {
  const format = { response_format: { type: 'json_object' as const } }
  t.match(buildBody({ ...format }, true, { mayReason: true }), { require_reasoning: true })
  t.match(buildBody({ regex: '[a-z]+' }, true, { mayReason: true }), { require_reasoning: true })
  t.notOk('require_reasoning' in buildBody(format), 'the template has closed it')
  t.notOk('require_reasoning' in buildBody({}, true, { mayReason: true }), 'no constraint')
  t.end()
})
