import type { ChatCompletionCreateParams } from 'openai/resources/chat/completions'
import type { CompletionCreateParams } from 'openai/resources/completions'
import t from 'tap'
import type { ChatBody } from '../../../../../src/protocol/canonical/request.ts'
import {
  type AgentPolicy,
  createAgentPolicy,
  type OPENAI_FIELDS,
  RESTRICTED_FIELDS,
} from '../../../../../src/proxy/http/agent/agent-policy.ts'

type OpenAiField = keyof ChatCompletionCreateParams | keyof CompletionCreateParams
type Listed = (typeof OPENAI_FIELDS)[number]
type Same<A, B> = [Exclude<A, B>, Exclude<B, A>] extends [never, never]
  ? true
  : [Exclude<A, B>, Exclude<B, A>]
/** Does not compile when a field of the SDK is not listed, or a listed one does not exist. */
const isComplete: Same<OpenAiField, Listed> = true

const HELLO = [{ role: 'user', content: 'hi' }]

/** Returns the field for which a body is rejected, or undefined if it is accepted. */
function getRejectedField(body: object, policy: AgentPolicy = {}): string | undefined {
  try {
    createAgentPolicy(policy)({ messages: HELLO, ...body } as ChatBody)
    return undefined
  } catch (error) {
    const { code, param } = error as { code: string; param: string }
    return code === 'forbidden' ? param : String(error)
  }
}

const withPart = (part: object) => ({ messages: [{ role: 'user', content: [part] }] })

t.test("an agent may set every field of OpenAI's SDK, and every sampling field", async (t) => {
  t.ok(isComplete)
  const fields = { temperature: 1, top_k: 5, min_p: 0.1, repetition_penalty: 1.1, logit_bias: { 5: 1 } }
  t.equal(getRejectedField(fields), undefined)
  t.equal(getRejectedField({ chat_template_kwargs: { enable_thinking: false } }), undefined)
})

t.test('fields that make engines do more than sample are rejected with their name', async (t) => {
  const steering = {
    chat_template: '{{ 1 }}',
    priority: -1000,
    kv_transfer_params: { do_remote_prefill: true, remote_host: '10.0.0.1' },
    lora_path: '/etc',
    custom_logit_processor: '{}',
    mm_processor_kwargs: { num_crops: 1e9 },
    vllm_xargs: { a: 1 },
    cache_salt: 'x',
    prompt_embeds: 'x',
    bootstrap_host: '169.254.169.254',
    session_params: { id: 'other' },
    prompt_logprobs: 20,
    documents: [],
    continue_final_message: true,
  }
  for (const [field, value] of Object.entries(steering)) t.equal(getRejectedField({ [field]: value }), field)
  for (const name of ['chat_template', 'tools', 'messages']) {
    t.equal(getRejectedField({ chat_template_kwargs: { [name]: 'x' } }), `chat_template_kwargs.${name}`)
  }
  t.equal(
    getRejectedField({ chat_template_kwargs: { thinking: { a: 1 } } }),
    'chat_template_kwargs.thinking',
    'a boolean is not an object',
  )
  t.equal(getRejectedField({ priority: null }), undefined, 'null requests nothing')
})

t.test('fields that no engine reads are dropped, and the other fields are retained', async (t) => {
  const restrict = createAgentPolicy({})
  const body = {
    messages: HELLO,
    temperature: 1,
    client_metadata: { a: 1 },
    access_programs: [],
    session_id: 's',
  }
  const { body: restricted, dropped } = restrict(body as unknown as ChatBody)
  t.strictSame(restricted, { messages: HELLO, temperature: 1 })
  t.strictSame(dropped, { client_metadata: { a: 1 }, access_programs: [], session_id: 's' })
  const plain = { messages: HELLO } as ChatBody
  t.equal(restrict(plain).body, plain, 'the body is not copied needlessly')
  const named = createAgentPolicy({ agentFields: ['client_metadata'] })
  t.match(named(body as unknown as ChatBody).body, { client_metadata: { a: 1 } })
  t.equal(RESTRICTED_FIELDS.includes('client_metadata'), false)
})

t.test('media are data: URLs, in every field for URLs', async (t) => {
  const data = 'data:image/png;base64,AA=='
  for (const part of [
    { type: 'image_url', image_url: { url: data } },
    { type: 'image_url', image_url: data },
    { type: 'input_audio', input_audio: { data: 'AA==', format: 'wav' } },
    { type: 'file', file: { file_data: 'data:application/pdf;base64,AA==', filename: 'a.pdf' } },
  ]) {
    t.equal(getRejectedField(withPart(part)), undefined, part.type)
  }
  for (const url of ['http://169.254.169.254/', 'https://x', 'file:///etc/passwd', ' data:,', '', 7, null]) {
    for (const type of ['image_url', 'audio_url', 'video_url']) {
      t.equal(getRejectedField(withPart({ type, [type]: { url } })), `messages.0.content.0.${type}`)
      if (url === null) continue
      t.equal(
        getRejectedField(withPart({ type: 'text', text: '', [type]: url })),
        `messages.0.content.0.${type}`,
      )
    }
  }
  t.equal(
    getRejectedField(withPart({ type: 'image_url', image_url: { url: data }, uuid: 'u' })),
    'messages.0.content.0.uuid',
  )
  for (const file of [
    { file_id: 'f' },
    { file_data: 'http://x' },
    { file_data: 'AA', file_url: 'http://x' },
    7,
  ]) {
    t.equal(getRejectedField(withPart({ type: 'file', file })), 'messages.0.content.0.file')
  }
  for (const type of ['image_embeds', 'audio_embeds', 'image_pil', 'input_image', 'unheard_of']) {
    t.equal(getRejectedField(withPart({ type })), 'messages.0.content.0.type')
  }
})

t.test('null in a part or a template switch is an absent value', async (t) => {
  const file = { file_data: 'AA==', file_id: null, file_url: null }
  for (const part of [
    { type: 'text', text: 'a', image_url: null, audio_url: null, video_url: null, uuid: null },
    { type: 'file', file },
  ]) {
    t.equal(getRejectedField(withPart(part)), undefined, part.type)
  }
  t.equal(getRejectedField({ chat_template_kwargs: { enable_thinking: null } }), undefined)
  t.equal(
    getRejectedField({ chat_template_kwargs: { messages: null } }),
    'chat_template_kwargs.messages',
    'other variables of a template are rejected whatever their value',
  )
})

t.test('the operator can allow fields by name, all fields, and media from any URL', async (t) => {
  t.equal(getRejectedField({ priority: 1 }, { agentFields: ['priority'] }), undefined)
  t.equal(getRejectedField({ lora_path: 'x' }, { agentFields: ['priority'] }), 'lora_path')
  t.equal(
    getRejectedField({ lora_path: 'x', chat_template_kwargs: { a: 1 } }, { agentFields: ['*'] }),
    undefined,
  )
  const kwargs = { chat_template_kwargs: { documents: [] } }
  t.equal(getRejectedField(kwargs, { agentFields: ['chat_template_kwargs.documents'] }), undefined)
  const image = withPart({ type: 'image_url', image_url: { url: 'https://x/y.png' } })
  t.equal(getRejectedField(image, { agentMedia: 'any' }), undefined)
})
