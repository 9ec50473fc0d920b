/**
 * The structural tags that constrain a response to tool calls equal those of vLLM 0.32.0 and SGLang 0.5.23:
 * `call-tags.json` is the output of their own code (`test/differential/call-tags.py`).
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { Tool } from '../../../../../../src/protocol/canonical/messages.ts'
import type { ChatBody } from '../../../../../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../../../../../src/protocol/token-ids/prompt-ids.ts'
import { buildSglangCallTag } from '../../../../../../src/proxy/engines/clients/sglang/call-tags.ts'
import { buildVllmCallTag } from '../../../../../../src/proxy/engines/clients/vllm/call-tags.ts'

interface Case {
  engine: 'vllm' | 'sglang'
  format: string
  tools: number
  tool_choice: unknown
  parallel_tool_calls: boolean
  tag: { structures?: unknown[] } | null
}

const vectors: { tools: Tool[][]; cases: Case[] } = JSON.parse(
  readFileSync(join(import.meta.dirname, 'call-tags.json'), 'utf8'),
)

const getTag = { vllm: vllmTag, sglang: sglangTag }

for (const engine of ['vllm', 'sglang'] as const) {
  t.test(`${engine} receives the structural tags that it would build itself`, (t) => {
    const cases = vectors.cases.filter((one) => one.engine === engine)
    t.ok(cases.length > 60)
    for (const { format, tools, tag, ...fields } of cases) {
      const { tool_choice, parallel_tool_calls } = fields
      // SGLang allows a forced call of one function to be any other; the proxy enforces the name.
      const expected =
        tag?.structures && isNamed(tool_choice) ? { ...tag, structures: [tag.structures[0]] } : tag
      const body = { tools: vectors.tools[tools]!, tool_choice, parallel_tool_calls }
      t.same(getTag[engine](format, body), expected, `${format} ${JSON.stringify({ tools, ...fields })}`)
    }
    t.end()
  })
}

t.test(
  'no tag is built for tool calls without constraints, or in a format without tags for the engine',
  (t) => {
    const tools = vectors.tools[1]!
    const strict = { tools: vectors.tools[0]! }
    for (const buildTag of [vllmTag, sglangTag]) {
      t.equal(buildTag('hermes', { tools }), null)
      t.equal(buildTag('hermes', { ...strict, tool_choice: 'none' }), null)
      t.equal(buildTag('hermes', {}), null)
      t.equal(buildTag('granite', { ...strict, tool_choice: 'required' }), null)
      t.equal(
        buildTag(undefined, { ...strict, tool_choice: 'required' }),
        null,
        'a request of an older proxy',
      )
    }
    t.end()
  },
)

t.test('vLLM: tool calls or a response that follows its own schema, as in its chat route', (t) => {
  const schema = { type: 'object', properties: { a: { type: 'string' } } }
  const format = { type: 'json_schema', json_schema: { name: 'answer', schema } }
  const tag = vllmTag('hermes', { tools: vectors.tools[0]!, response_format: format })
  t.match(tag, {
    format: {
      type: 'or',
      elements: [{ type: 'tags_with_separator', at_least_one: true }, { json_schema: schema }],
    },
  })
  const one = { tools: vectors.tools[1]!, response_format: format, parallel_tool_calls: false }
  t.equal(vllmTag('hermes', one), null, 'a limit of one tool call allows no calls that were excluded before')
  const text = { tools: vectors.tools[0]!, response_format: { type: 'text' } }
  t.match(vllmTag('hermes', text), { format: { type: 'triggered_tags' } })
  t.end()
})

function request(callFormat: string | undefined, body: Partial<ChatBody>) {
  return {
    kind: 'chat' as const,
    requestId: 'r',
    sessionId: 's',
    stream: false,
    promptTokenIds: PromptIds.of(1),
    ...(callFormat !== undefined && { callFormat }),
    body: { messages: [], ...body },
  }
}

function vllmTag(format: string | undefined, body: Partial<ChatBody>): unknown {
  const sent = buildVllmCallTag(request(format, body)) as
    | { structured_outputs: { structural_tag: string } }
    | undefined
  return sent === undefined ? null : JSON.parse(sent.structured_outputs.structural_tag)
}

function sglangTag(format: string | undefined, body: Partial<ChatBody>): unknown {
  return buildSglangCallTag(request(format, body))?.response_format ?? null
}

function isNamed(choice: unknown): boolean {
  return typeof choice === 'object'
}
