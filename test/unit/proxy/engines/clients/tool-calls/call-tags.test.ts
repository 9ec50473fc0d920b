/**
 * The tags that hold an answer to calls are those that vLLM 0.32.0 and SGLang 0.5.23 make themselves: `call-tags.json` is
 * what their own code said (`test/differential/call-tags.py`).
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { Tool } from '../../../../../../src/protocol/canonical/messages.ts'
import type { ChatBody } from '../../../../../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../../../../../src/protocol/token-ids/prompt-ids.ts'
import { sglangCallTag } from '../../../../../../src/proxy/engines/clients/sglang/call-tags.ts'
import { vllmCallTag } from '../../../../../../src/proxy/engines/clients/vllm/call-tags.ts'

interface Case {
  engine: 'vllm' | 'sglang'
  format: string
  tools: number
  tool_choice: unknown
  parallel_tool_calls: boolean
  tag: { structures?: unknown[] } | null
}

const said: { tools: Tool[][]; cases: Case[] } = JSON.parse(
  readFileSync(join(import.meta.dirname, 'call-tags.json'), 'utf8'),
)

const tagOf = { vllm: vllmTag, sglang: sglangTag }

for (const engine of ['vllm', 'sglang'] as const) {
  t.test(`${engine} is asked for the tags that it makes itself`, (t) => {
    const cases = said.cases.filter((one) => one.engine === engine)
    t.ok(cases.length > 60)
    for (const { format, tools, tag, ...fields } of cases) {
      const { tool_choice, parallel_tool_calls } = fields
      // SGLang lets a forced call of one function be any other; the proxy keeps to the name.
      const expected =
        tag?.structures && isNamed(tool_choice) ? { ...tag, structures: [tag.structures[0]] } : tag
      const body = { tools: said.tools[tools]!, tool_choice, parallel_tool_calls }
      t.same(tagOf[engine](format, body), expected, `${format} ${JSON.stringify({ tools, ...fields })}`)
    }
    t.end()
  })
}

t.test(
  'calls that nothing is asked of are free, and so are those in a format that the engine has no tags for',
  (t) => {
    const tools = said.tools[1]!
    const strict = { tools: said.tools[0]! }
    for (const make of [vllmTag, sglangTag]) {
      t.equal(make('hermes', { tools }), null)
      t.equal(make('hermes', { ...strict, tool_choice: 'none' }), null)
      t.equal(make('hermes', {}), null)
      t.equal(make('granite', { ...strict, tool_choice: 'required' }), null)
      t.equal(make(undefined, { ...strict, tool_choice: 'required' }), null, 'a call of an older proxy')
    }
    t.end()
  },
)

t.test('vLLM: calls or an answer that keeps to its own schema, as its chat route has it', (t) => {
  const schema = { type: 'object', properties: { a: { type: 'string' } } }
  const format = { type: 'json_schema', json_schema: { name: 'answer', schema } }
  const tag = vllmTag('hermes', { tools: said.tools[0]!, response_format: format })
  t.match(tag, {
    format: {
      type: 'or',
      elements: [{ type: 'tags_with_separator', at_least_one: true }, { json_schema: schema }],
    },
  })
  const one = { tools: said.tools[1]!, response_format: format, parallel_tool_calls: false }
  t.equal(vllmTag('hermes', one), null, 'one call at most makes no calls possible that were not')
  const text = { tools: said.tools[0]!, response_format: { type: 'text' } }
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
  const sent = vllmCallTag(request(format, body)) as
    | { structured_outputs: { structural_tag: string } }
    | undefined
  return sent === undefined ? null : JSON.parse(sent.structured_outputs.structural_tag)
}

function sglangTag(format: string | undefined, body: Partial<ChatBody>): unknown {
  return sglangCallTag(request(format, body))?.response_format ?? null
}

function isNamed(choice: unknown): boolean {
  return typeof choice === 'object'
}
