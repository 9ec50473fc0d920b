import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import type { ChatMessage, Tool } from '../../../../../../src/protocol/canonical/messages.ts'
import { toJsonChunks } from '../../../../../../src/protocol/json/json-member.ts'
import { serializeBody } from '../../../../../../src/proxy/engines/clients/wire/request.ts'

const MESSAGES: ChatMessage[] = [{ role: 'user', content: 'é' }]
const TOOLS: Tool[] = [{ type: 'function', function: { name: 'f' } }]
const MESSAGES_JSON = [Buffer.from('{"role":"user",'), Buffer.from('"content":"é"}')]
const TOOLS_JSON = Buffer.from('{"type":"function","function":{"name":"f"}}')

const REQUEST = {
  kind: 'chat',
  requestId: 'r',
  sessionId: 's',
  stream: true,
  body: { model: 'm', messages: MESSAGES, tools: TOOLS },
  messagesJson: MESSAGES_JSON,
  toolsJson: TOOLS_JSON,
} as const

t.test('messages and tools that exist as JSON are sent unchanged and without a copy', (t) => {
  const chunks = serializeBody({ ...REQUEST.body, stream: true }, REQUEST)
  assert.ok(typeof chunks !== 'string')
  for (const chunk of [...MESSAGES_JSON, TOOLS_JSON]) t.ok(chunks.includes(chunk))
  t.same(JSON.parse(Buffer.concat(chunks).toString()), { ...REQUEST.body, stream: true })
  t.end()
})

t.test('a field that an engine client changed is serialized with its present value', (t) => {
  const serialize = (body: Record<string, unknown>) => {
    const json = serializeBody(body, REQUEST)
    return JSON.parse(typeof json === 'string' ? json : Buffer.concat(json).toString())
  }
  const others = [{ type: 'function', function: { name: 'g' } }]
  t.same(serialize({ messages: MESSAGES, tools: others }), { messages: MESSAGES, tools: others })
  t.same(serialize({ messages: MESSAGES, tools: undefined }), { messages: MESSAGES })
  t.same(serialize({ messages: [], tools: TOOLS }), { messages: [], tools: TOOLS })
  t.end()
})

t.test('an object with lists that exist as JSON equals a complete serialization', (t) => {
  const list = fc.array(fc.jsonValue(), { maxLength: 3 })
  fc.assert(
    fc.property(fc.dictionary(fc.string(), fc.jsonValue()), list, list, (object, first, second) => {
      const lists = { 'the "first"': first, second }
      const toJson = (values: unknown[]) => [Buffer.from(JSON.stringify(values).slice(1, -1))]
      const chunks = toJsonChunks(object, { 'the "first"': toJson(first), second: toJson(second) })
      const full = JSON.parse(Buffer.concat(chunks).toString())
      return JSON.stringify(full) === JSON.stringify(JSON.parse(JSON.stringify({ ...object, ...lists })))
    }),
  )
  t.end()
})
