/**
 * Every field in the types of the official clients is served, rejected, or listed in docs/dialects.md as ignored.
 * Tested in token mode, where the proxy itself does what an engine's chat route would.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { loadTokenizer } from '../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { type ScriptedServer, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'
import { modelDirectory } from '../unit/proxy/tokens/real-models.ts'

const ROOT = join(import.meta.dirname, '../..')
const QWEN3 = modelDirectory('qwen3')
const TOKENIZER = loadTokenizer(QWEN3)
const TOOL_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
const COMPLETION_IDS = TOKENIZER.encode(
  `<think>\nWell.\n</think>\n\nI see.\n${TOOL_CALL}\n${TOOL_CALL}<|im_end|>`,
)
const SCHEMA = { type: 'object', properties: { a: { type: 'number' } } }
const JSON_SCHEMA = { type: 'json_schema', name: 'n', schema: SCHEMA }
const FUNCTION = { name: 'f', parameters: SCHEMA }
const PARTS = { id: 'x', data: 'y' }

type Body = Record<string, unknown>

interface Dialect {
  /** File that declares the SDK's body type, and the type's name. */
  file: string
  type: string
  route: string
  /** A body with the required fields. */
  base: Body
  /** One value for each other field, as agents send it. */
  samples: Body
}

const SAMPLING = {
  frequency_penalty: 0.5,
  logit_bias: { 5: 1 },
  presence_penalty: 0.5,
  seed: 7,
  stop: ['see'],
  stream: true,
  temperature: 0.5,
  top_p: 0.5,
  user: 'u',
}
const CACHE = { prompt_cache_key: 'k', prompt_cache_options: {}, prompt_cache_retention: '24h' }
const COMMON = { metadata: { k: 'v' }, safety_identifier: 's', service_tier: 'auto', moderation: {} }

const DIALECTS: Record<string, Dialect> = {
  'Chat Completions': {
    file: 'openai/resources/chat/completions/completions.d.ts',
    type: 'ChatCompletionCreateParamsBase',
    route: 'chat/completions',
    base: {
      model: 'm',
      messages: [{ role: 'user', content: 'Hi' }],
      tools: [{ type: 'function', function: FUNCTION }],
    },
    samples: {
      ...SAMPLING,
      ...CACHE,
      ...COMMON,
      audio: { voice: 'alloy', format: 'wav' },
      function_call: 'auto',
      functions: [FUNCTION],
      logprobs: true,
      max_completion_tokens: 7,
      max_tokens: 7,
      modalities: ['text'],
      n: 2,
      parallel_tool_calls: false,
      prediction: { type: 'content', content: 'x' },
      reasoning_effort: 'none',
      response_format: { type: 'json_object' },
      store: true,
      stream_options: { include_usage: true },
      tool_choice: 'none',
      top_logprobs: 2,
      verbosity: 'low',
      web_search_options: {},
    },
  },
  Completions: {
    file: 'openai/resources/completions.d.ts',
    type: 'CompletionCreateParamsBase',
    route: 'completions',
    base: { model: 'm', prompt: 'Hi' },
    samples: {
      ...SAMPLING,
      best_of: 2,
      echo: true,
      logprobs: 2,
      max_tokens: 7,
      n: 2,
      stream_options: { include_usage: true },
      suffix: 'x',
    },
  },
  Responses: {
    file: 'openai/resources/responses/responses.d.ts',
    type: 'ResponseCreateParamsBase',
    route: 'responses',
    base: { model: 'm', input: 'Hi', tools: [{ type: 'function', ...FUNCTION }] },
    samples: {
      ...CACHE,
      ...COMMON,
      access_programs: ['a'],
      background: true,
      context_management: [{ type: 'compaction' }],
      conversation: 'c',
      image: PARTS,
      include: ['message.output_text.logprobs'],
      instructions: 'Be brief.',
      max_output_tokens: 7,
      max_tool_calls: 1,
      parallel_tool_calls: false,
      previous_response_id: 'resp_1',
      prompt: { id: 'p' },
      reasoning: { effort: 'none' },
      store: false,
      stream: true,
      stream_options: { include_obfuscation: false },
      temperature: 0.5,
      text: { format: JSON_SCHEMA },
      tool_choice: 'none',
      top_logprobs: 2,
      top_p: 0.5,
      truncation: 'auto',
      user: 'u',
    },
  },
  Messages: {
    file: '@anthropic-ai/sdk/resources/messages/messages.d.ts',
    type: 'MessageCreateParamsBase',
    route: 'messages',
    base: {
      model: 'm',
      max_tokens: 400,
      messages: [{ role: 'user', content: 'Hi' }],
      tools: [{ name: 'f', input_schema: SCHEMA }],
    },
    samples: {
      cache_control: { type: 'ephemeral' },
      container: 'c',
      diagnostics: {},
      inference_geo: 'eu',
      metadata: { user_id: 'u' },
      output_config: { effort: 'low', format: JSON_SCHEMA },
      service_tier: 'auto',
      speed: 'fast',
      stop_sequences: ['see'],
      stream: true,
      system: 'Be brief.',
      thinking: { type: 'disabled' },
      tool_choice: { type: 'auto', disable_parallel_tool_use: true },
      user_profile_id: 'u',
      workspace_id: 'w',
    },
  },
}

/** Fields that have a meaning only beside another one. */
const COMPANIONS: Body = { stream_options: { stream: true }, top_logprobs: { logprobs: true } }

/** Returns the members of a type, from its declaration. */
function getMembers({ file, type }: Dialect): string[] {
  const text = readFileSync(join(ROOT, 'node_modules', file), 'utf8')
  const declaration = text.slice(text.indexOf(`export interface ${type} {`))
  const members = declaration.slice(0, declaration.indexOf('\n}')).matchAll(/^ {4}(\w+)\??:/gm)
  return [...new Set(Array.from(members, ([, name]) => name!))]
}

/** Returns the fields in the rows of a dialect under the heading. */
function getDocumentedFields(dialect: string, column: 'rejected' | 'ignored'): string[] {
  const docs = readFileSync(join(ROOT, 'docs/dialects.md'), 'utf8')
  const row = docs.split('\n').find((line) => line.startsWith(`| ${dialect}, ${column} |`)) ?? ''
  return Array.from(row.matchAll(/`(\w+)`/g), ([, name]) => name!).sort()
}

async function setUp(t: Test): Promise<{ proxy: TestProxy; engine: ScriptedServer }> {
  const logprobs = COMPLETION_IDS.map(() => -0.5)
  const engine = await startScriptedServer(({ path, body }, response) => {
    if (path === '/v1/models')
      return sendJson(response, { data: [{ id: 'm', owned_by: 'vllm', max_model_len: 4_000 }] })
    if (path !== '/v1/completions') return sendJson(response, {})
    const tokens = COMPLETION_IDS.map((id) => TOKENIZER.idToToken(id))
    const choice = {
      index: 0,
      text: 'I see.',
      finish_reason: 'stop',
      stop_reason: null,
      token_ids: COMPLETION_IDS,
    }
    const prompt_token_ids = Array.isArray(body.prompt) ? body.prompt : [1]
    sendJson(response, {
      model: 'm',
      choices: [{ ...choice, prompt_token_ids, logprobs: { tokens, token_logprobs: logprobs } }],
    })
  })
  t.teardown(() => engine.close())
  const engineUrls = [engine.url]
  return { engine, proxy: await startProxy(t, { engineUrls, engineKind: 'vllm', tokenizer: QWEN3 }) }
}

/** Matches what differs from request to request in any case. */
const VOLATILE =
  /"(id|created|created_at|completed_at|call_id|item_id|signature|encrypted_content)":("[^"]*"|[\d.]+)/g

t.test('no field of an official client is dropped silently', async (t) => {
  const { proxy, engine } = await setUp(t)
  let session = 0
  /** Returns the engine's request and the agent's response: equal for two bodies if their difference is ignored. */
  const getOutcome = async ({ route }: Dialect, body: Body) => {
    session += 1
    const response = await fetch(`${proxy.url}/s${session}/v1/${route}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
    const text = (await response.text()).replaceAll(VOLATILE, '')
    const sent = engine.requests.findLast(({ method }) => method === 'POST')?.body
    // Every 32nd request has this field, whatever the bodies are.
    return { status: response.status, seen: JSON.stringify([{ ...sent, return_token_ids: undefined }, text]) }
  }
  for (const [name, dialect] of Object.entries(DIALECTS)) {
    const { base, samples } = dialect
    t.same(
      [...Object.keys({ ...base, ...samples })].sort(),
      getMembers(dialect).sort(),
      `${name}: every field`,
    )
    const found: Record<'rejected' | 'ignored', string[]> = { rejected: [], ignored: [] }
    for (const [field, value] of Object.entries(samples)) {
      const before = { ...base, ...(COMPANIONS[field] as Body) }
      const without = await getOutcome(dialect, before)
      t.equal(without.status, 200, `${name}: a request without ${field}`)
      const changed = await getOutcome(dialect, { ...before, [field]: value })
      if (changed.status === 400) found.rejected.push(field)
      else if (changed.seen === without.seen) found.ignored.push(field)
    }
    for (const column of ['rejected', 'ignored'] as const)
      t.same(found[column].sort(), getDocumentedFields(name, column), `${name}: ${column} as documented`)
  }
})
