/** Responses that a thread parses by a response template. */
import t, { type Test } from 'tap'
import type { Tool } from '../../../../../src/protocol/canonical/messages.ts'
import { ResponseReader } from '../../../../../src/proxy/tokens/responses/response-reader.ts'
import { mergeDeltas } from '../../../../helpers/parsed-output.ts'

const tools: Tool[] = [{ type: 'function', function: { name: 'f' } }]
const template = {
  start_anchor: '<start>',
  fields: {
    thinking: { open_pattern: '(?:a+)+b', close: '</t>' },
    tool_calls: {
      open: '<call>',
      close: '</call>',
      repeats: true,
      content: 'json',
      transform: { function: '{content}' },
    },
    content: {},
  },
}
const CALL = '<call>{"name": "f", "arguments": {"n": 1}}</call>'
/** A text on which the pattern of reasoning takes years. */
const HOSTILE = 'a'.repeat(200)

function openReader(t: Test, timeLimitMs = 2_000): ResponseReader {
  const reader = new ResponseReader(template, { timeLimitMs })
  t.teardown(() => reader.close())
  return reader
}

t.test('a response that takes too long is sent as it was written, and others are still parsed', async (t) => {
  const reader = openReader(t)
  const hostile = reader.open('<start>', tools)
  const other = reader.open('<start>', tools)
  const before = await other.read(['So: ', '<call>{"name": "f", '], false)
  const shown = [await hostile.read(['I ', CALL, ' <cal'], false)]
  const [slow, following] = await Promise.all([
    hostile.read([`l> ${HOSTILE}`], false),
    other.read([`"arguments": {"n": 1}}</call>`, ' and then'], false),
  ])
  shown.push(slow, await hostile.read([' more ', CALL], true))
  const read = mergeDeltas(shown.flat())
  t.equal(read.content, `I<call> ${HOSTILE} more ${CALL}`)
  t.equal(read.toolCalls.length, 1)
  const rest = await other.read(['.'], true)
  t.match(mergeDeltas([...before, ...following, ...rest]), {
    content: 'So:and then.',
    toolCalls: [{ function: { name: 'f', arguments: '{"n": 1}' } }],
  })
})

t.test('a long text is read in chunks without dividing a character', async (t) => {
  const reader = openReader(t, 60_000)
  const long = `${'🙂 é '.repeat(50_000)}.`
  const deltas = await reader.open('<start>', tools).read([`x${long}`, CALL], true)
  t.equal(deltas.length, 3)
  const { content, toolCalls } = mergeDeltas(deltas)
  t.ok(content === `x${long}`)
  t.match(toolCalls, [{ function: { name: 'f' } }])
})

t.test('text is sent as soon as it cannot be a marker', async (t) => {
  const response = openReader(t).open('<start>', tools)
  const deltas = await response.read(['Hel', 'lo <', 'cal', 'm> ', 'x'], false)
  t.same(
    deltas.map(({ content }) => content),
    ['Hel', 'lo', undefined, ' <calm>', ' x'],
  )
  response.close()
})

t.test('an unusable template is reported before the first response', async (t) => {
  const reader = new ResponseReader({ fields: {} })
  t.teardown(() => reader.close())
  await t.rejects(reader.launch(), { code: 'config_invalid', message: /fields must be a non-empty dict/ })
})
