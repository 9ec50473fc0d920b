import fc from 'fast-check'
import t from 'tap'
import { createEchoTemplate, expandEcho } from '../../../../../src/proxy/store/common/echo.ts'

const completion = {
  completionText: ` I will look at "the file" ${'and think '.repeat(10)}\n`,
  reasoning: 'first I wonder, then I know, and then I say it',
  toolCalls: JSON.stringify([
    { id: 'c1', type: 'function', function: { name: 'read', arguments: '{"path":"a/rather/long/path.ts"}' } },
  ]),
}

const message = (fields: object) => JSON.stringify({ role: 'assistant', ...fields })

t.test('an echo of the complete response is stored as little more than its frame', async (t) => {
  const echo = message({
    content: completion.completionText,
    reasoning_content: completion.reasoning,
    reasoning: completion.reasoning,
    tool_calls: JSON.parse(completion.toolCalls),
  })
  const template = createEchoTemplate(echo, completion)
  t.strictSame(JSON.parse(template ?? '[]'), [
    '{"role":"assistant","content":',
    'content',
    ',"reasoning_content":',
    'reasoning',
    ',"reasoning":',
    'reasoning',
    ',"tool_calls":',
    'tool_calls',
    '}',
  ])
  t.equal(expandEcho(template!, completion), echo)
})

t.test('trimmed content and rewritten tool calls are echoes as well', async (t) => {
  const trimmed = message({ content: completion.completionText.trim() })
  t.match(JSON.parse(createEchoTemplate(trimmed, completion)!), [String, 'content_trimmed', '}'])
  const toolCall = { function: { arguments: '{"path":"a/rather/long/path.ts"}', name: 'read' } }
  t.match(
    JSON.parse(
      createEchoTemplate(message({ content: completion.completionText, c: [toolCall] }), completion)!,
    ),
    [String, 'content', String, 'arguments.0', String],
  )
})

t.test('a message that repeats little or nothing is not an echo', async (t) => {
  t.equal(createEchoTemplate(message({ content: 'something else' }), completion), undefined)
  t.equal(
    createEchoTemplate(message({ content: `${completion.completionText}, edited` }), completion),
    undefined,
  )
  const short = { completionText: 'ok', reasoning: null, toolCalls: '[]' }
  t.equal(
    createEchoTemplate(message({ content: 'ok' }), short),
    undefined,
    'a short response is stored unchanged',
  )
})

t.test('a template of any parts restores the message', async () => {
  const text = fc.string({ unit: 'binary', maxLength: 60 })
  const property = fc.property(text, text, fc.json(), text, (content, reasoning, toolCalls, other) => {
    const input = { completionText: content, reasoning, toolCalls }
    const echo = `${other}${message({ content, reasoning })}${toolCalls}`
    const template = createEchoTemplate(echo, input)
    return template === undefined || expandEcho(template, input) === echo
  })
  fc.assert(property, { numRuns: 500 })
})

t.test('a template that refers to missing parts of the completion is an error', async (t) => {
  t.throws(() => expandEcho('["", "reasoning", ""]', { ...completion, reasoning: null }), /lacks/)
})
