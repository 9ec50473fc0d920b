import fc from 'fast-check'
import t from 'tap'
import Type, { type TSchema } from 'typebox'
import { Compile } from 'typebox/compile'
import type { ProxyError } from '../../../../src/base/errors.ts'
import { listSchemaErrors } from '../../../../src/protocol/schema/schema-errors.ts'
import { lowerChatRequest } from '../../../../src/proxy/dialects/chat/request.ts'
import { lowerCompletionRequest } from '../../../../src/proxy/dialects/completions/request.ts'
import { lowerGeminiRequest } from '../../../../src/proxy/dialects/gemini/request.ts'
import { lowerMessagesRequest } from '../../../../src/proxy/dialects/messages/request.ts'
import { checkResponsesRequest } from '../../../../src/proxy/dialects/responses/schema.ts'
import { limitRuns } from '../../../helpers/tier.ts'

const LENGTH = 300_000
const NUMBERS = new Array<number>(LENGTH).fill(1)
const HI = [{ role: 'user', content: 'hi' }]
const MESSAGES = { model: 'm', max_tokens: 1 }
const GEMINI = { model: 'm', stream: false }

/** Bodies with one long list, by the path of the error. */
const INVALID: readonly [param: string, reject: () => unknown][] = [
  [`prompt.${LENGTH}`, () => lowerCompletionRequest({ prompt: [...NUMBERS, 'x'] })],
  [`prompt.0.${LENGTH}`, () => lowerCompletionRequest({ prompt: [[...NUMBERS, 'x']] })],
  [
    'prompt.999.299',
    () => lowerCompletionRequest({ prompt: splitEvenly(NUMBERS.with(-1, Number.NaN), 1_000) }),
  ],
  ['temperature', () => lowerCompletionRequest({ prompt: NUMBERS, temperature: 'x' })],
  ['messages.0', () => lowerChatRequest({ messages: NUMBERS })],
  ['messages.0.content.0', () => lowerChatRequest({ messages: [{ role: 'user', content: NUMBERS }] })],
  [
    'messages.0.content.0',
    () =>
      lowerChatRequest({ messages: splitEvenly(NUMBERS, 500).map((content) => ({ role: 'user', content })) }),
  ],
  [`stop.${LENGTH}`, () => lowerChatRequest({ messages: HI, stop: [...NUMBERS.map(String), 7] })],
  ['messages.0', () => lowerMessagesRequest({ ...MESSAGES, messages: NUMBERS })],
  [
    'messages.0.content.0',
    () => lowerMessagesRequest({ ...MESSAGES, messages: [{ role: 'user', content: NUMBERS }] }),
  ],
  ['input.0', () => checkResponsesRequest({ input: NUMBERS })],
  ['tool_choice.tools.0', () => checkResponsesRequest({ tool_choice: { type: 'x', tools: NUMBERS } })],
  ['contents.0.parts.0', () => lowerGeminiRequest({ contents: [{ parts: NUMBERS }] }, GEMINI)],
]

function splitEvenly<T>(list: readonly T[], parts: number): T[][] {
  const size = list.length / parts
  return Array.from({ length: parts }, (_, part) => list.slice(part * size, (part + 1) * size))
}

function getRejection(reject: () => unknown): ProxyError {
  try {
    reject()
  } catch (error) {
    return error as ProxyError
  }
  throw new Error('the body was accepted')
}

/** Returns the CPU time of `work` in milliseconds, as an average: some systems count it in steps of 10 ms. */
function measureCpuMs(runs: number, work: () => unknown): number {
  const begin = process.threadCpuUsage()
  for (let run = 0; run < runs; run += 1) work()
  const { user, system } = process.threadCpuUsage(begin)
  return (user + system) / 1_000 / runs
}

t.test('an invalid body with a long list costs about as much as parsing it', async (t) => {
  const json = JSON.stringify(NUMBERS)
  const parseMs = measureCpuMs(50, () => JSON.parse(json))
  for (const [param, reject] of INVALID) {
    t.match(getRejection(reject), { code: 'invalid_request', param })
    const times = measureCpuMs(5, () => getRejection(reject)) / parseMs
    t.ok(times < 10, `${param}: ${times.toFixed(1)} times the time of parsing`)
  }
})

t.test('the error of a long list is that of its first invalid element', async (t) => {
  const content = [{ type: 'text', text: 'a' }, {}, { type: 'text' }, {}]
  const messages = [...new Array(150).fill(HI[0]), { role: 'user', content }, 7]
  const few = [{ role: 'user', content }]
  const { message, param } = getRejection(() => lowerChatRequest({ messages: few }))
  t.equal(param, 'messages.0.content.1.type')
  const long = getRejection(() => lowerChatRequest({ messages }))
  t.equal(long.message, message.replace('messages.0', 'messages.150'))
  const invalid = structuredClone(messages)
  getRejection(() => lowerChatRequest({ messages: invalid }))
  t.same(invalid, messages, 'the body is not modified')
})

t.test('errors have the paths that they have without shortening', async () => {
  const Element = Type.Object({ a: Type.Optional(Type.Array(Type.Union([Type.String(), Type.Null()]))) })
  const schema: TSchema = Type.Object({ list: Type.Union([Type.Array(Element), Type.Null()]) })
  const validator = Compile(schema)
  const index = fc.integer({ min: 0, max: 400 })
  fc.assert(
    fc.property(index, index, index, index, (before, after, inBefore, inAfter) => {
      const a = [...new Array(inBefore).fill('x'), 7, ...new Array(inAfter).fill(null)]
      const list = [...new Array(before).fill({ a: ['x'] }), { a }, ...new Array(after).fill({})]
      const paths = new Set(listSchemaErrors(schema, validator, { list }).map((error) => error.instancePath))
      return paths.has(`/list/${before}/a/${inBefore}`) && validator.Check({ list }) === false
    }),
    { numRuns: limitRuns(100) },
  )
})

t.test('errors of a long list as a whole, and of values of other types, are listed', async (t) => {
  const schema = Type.Object({
    few: Type.Array(Type.Integer(), { maxItems: 2 }),
    many: Type.Optional(Type.Array(Type.Integer(), { maxItems: 200 })),
    text: Type.String(),
  })
  const listPaths = (value: unknown) =>
    listSchemaErrors(schema, Compile(schema), value).map((error) => error.instancePath)
  t.same(listPaths({ few: NUMBERS, text: 'a' }), ['/few'])
  t.same(listPaths({ few: [1], many: NUMBERS, text: 'a' }), ['/many'])
  t.same(listPaths({ few: [1], text: NUMBERS }), ['/text'])
  for (const other of [NUMBERS, null, 'x', 7]) t.same(listPaths(other), [''])
})

t.test(
  'a long record has the errors of its first invalid member and of its first misnamed one',
  async (t) => {
    const Numbers = Type.Record(Type.String({ pattern: '^[a-z/~]+\\d*$' }), Type.Array(Type.Integer()), {
      additionalProperties: false,
    })
    const schema = Type.Intersect([Type.Object({ a: Type.String() }), Type.Object({ record: Numbers })])
    const members = Array.from({ length: 5_000 }, (_, index): [string, unknown] => [`m${index}`, [index]])
    const listPaths = (record: object) =>
      listSchemaErrors(schema, Compile(schema), { a: '', record }).map((error) => error.instancePath)
    const record = Object.fromEntries(members)
    t.ok(listPaths({ ...record, 'a/~': [...NUMBERS, 'x'], b: [7.5] }).includes(`/record/a~1~0/${LENGTH}`))
    t.ok(listPaths({ ...record, A: [1] }).includes('/record'))
    t.notOk(listPaths({ ...record, b: 7 }).some((path) => path.startsWith('/record/m')))
  },
)
