/** Gemini's generateContent: its parser, its serializer, and the round trip through both. */
import fc from 'fast-check'
import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { CompletionBuilder } from '../../../../../src/protocol/canonical/completion.ts'
import type {
  GenerationDelta,
  GenerationEnd,
  GenerationEvent,
} from '../../../../../src/protocol/canonical/events.ts'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import { PromptIds } from '../../../../../src/protocol/token-ids/prompt-ids.ts'
import { buildGoogleError } from '../../../../../src/proxy/dialects/gemini/error.ts'
import { lowerGeminiCount, lowerGeminiRequest } from '../../../../../src/proxy/dialects/gemini/request.ts'
import {
  ArrayFrame,
  buildGeminiResponse,
  GeminiStreamWriter,
} from '../../../../../src/proxy/dialects/gemini/response.ts'

const URL_PARAMS = { model: 'm', stream: false }
const contents = [{ role: 'user', parts: [{ text: 'go' }] }]
const lower = (body: object) => lowerGeminiRequest({ contents, ...body }, URL_PARAMS)
const getMessages = (some: object[]) => lower({ contents: some }).body.messages as ChatMessage[] | undefined

t.test('a null member of a part is not set', async (t) => {
  const parts = [{ text: 'go', functionResponse: null, function_call: null, inline_data: null }]
  t.same(getMessages([{ role: 'user', parts }]), [{ role: 'user', content: 'go' }])
})

t.test('tools that Google runs are omitted and listed', async (t) => {
  const tools = [{ google_search: {} }, { functionDeclarations: [{ name: 'f' }] }]
  const { body, annotations } = lower({ tools })
  t.match(body.tools, [{ function: { name: 'f' } }])
  t.same(annotations, { dropped_tools: ['googleSearch'] })
})

t.test('results with role `tool`, and files that models cannot read, are accepted', async (t) => {
  const call = { role: 'model', parts: [{ functionCall: { id: 'c', name: 'read', args: {} } }] }
  const result = {
    role: 'tool',
    parts: [{ functionResponse: { id: 'c', name: 'read', response: { output: 'ok' } } }],
  }
  const pdf = { role: 'user', parts: [{ inlineData: { mimeType: 'application/pdf', data: 'JVBE' } }] }
  t.match(getMessages([...contents, call, result, pdf])?.slice(2), [
    { role: 'tool', tool_call_id: 'c', content: 'ok' },
    {
      role: 'user',
      content: '[A file of type application/pdf was given here. It cannot be shown to this model.]',
    },
  ])
})

t.test('a request with all fields that agents send becomes a canonical one', async (t) => {
  const { body, responseOptions, annotations } = lower({
    systemInstruction: { parts: [{ text: 'Be' }, { text: 'brief.' }] },
    tools: [
      {
        functionDeclarations: [
          {
            name: 'run',
            description: 'Runs',
            parameters: {
              type: 'OBJECT',
              propertyOrdering: ['type'],
              properties: {
                type: { type: 'STRING', nullable: true },
                n: { type: 'ARRAY', minItems: '1', items: { type: 'INTEGER' } },
              },
            },
          },
          { name: 'see', parametersJsonSchema: { type: 'object', additionalProperties: false } },
        ],
      },
    ],
    toolConfig: { functionCallingConfig: { mode: 'ANY', allowedFunctionNames: ['run'] } },
    generationConfig: {
      temperature: 0.5,
      topP: 0.9,
      topK: 40,
      maxOutputTokens: 9,
      seed: 3,
      stopSequences: ['x'],
      mediaResolution: 'LOW',
      thinkingConfig: { includeThoughts: true, thinkingBudget: 0 },
    },
    safetySettings: [],
    repetition_penalty: 1.1,
  })
  t.strictSame(body, {
    repetition_penalty: 1.1,
    model: 'm',
    messages: [
      { role: 'system', content: 'Be\nbrief.' },
      { role: 'user', content: 'go' },
    ],
    tools: [
      {
        type: 'function',
        function: {
          name: 'run',
          description: 'Runs',
          parameters: {
            type: 'object',
            properties: {
              type: { type: ['string', 'null'] },
              n: { type: 'array', minItems: 1, items: { type: 'integer' } },
            },
          },
        },
      },
      {
        type: 'function',
        function: { name: 'see', parameters: { type: 'object', additionalProperties: false } },
      },
    ],
    tool_choice: { type: 'function', function: { name: 'run' } },
    chat_template_kwargs: { enable_thinking: false },
    max_tokens: 9,
    temperature: 0.5,
    top_p: 0.9,
    top_k: 40,
    seed: 3,
    stop: ['x'],
  })
  t.match(responseOptions, { reasoning: true })
  t.match(annotations, {
    request_fields: { safetySettings: { length: 0 }, generationConfig: { mediaResolution: 'LOW' } },
  })
})

t.test("the agent's arguments of the chat template are merged with the thinking budget", (t) => {
  const lower = (thinkingBudget: number, chat_template_kwargs: unknown) => {
    const contents = [{ role: 'user', parts: [{ text: 'go' }] }]
    const raw = { contents, generationConfig: { thinkingConfig: { thinkingBudget } }, chat_template_kwargs }
    const { body } = lowerGeminiRequest(raw, { model: 'm', stream: false })
    t.same(lowerGeminiCount(raw, 'm').chat_template_kwargs, body.chat_template_kwargs, 'also when counted')
    return body.chat_template_kwargs
  }
  t.same(lower(0, { style: 'short' }), { style: 'short', enable_thinking: false })
  t.same(lower(9, { enable_thinking: false }), { enable_thinking: false }, 'their own switch has precedence')
  t.same(lower(0, null), { enable_thinking: false })
  t.same(lower(-1, { style: 'short' }), { style: 'short' })
  t.equal(lower(0, 'invalid'), 'invalid', 'the engine rejects it')
  t.end()
})

t.test('snake_case names, as sent by curl and Python, are equivalent', async (t) => {
  const tools = {
    functionDeclarations: [{ name: 'f', parameters: { type: 'OBJECT', any_of: [{ type: 'STRING' }] } }],
  }
  const snake = lower({
    system_instruction: { parts: [{ text: 's' }] },
    generation_config: { max_output_tokens: 5, thinking_config: { include_thoughts: true } },
    tool_config: { function_calling_config: { mode: 'NONE' } },
    tools: [
      { function_declarations: [{ name: 'f', parameters: { type: 'OBJECT', anyOf: [{ type: 'STRING' }] } }] },
    ],
  })
  const camel = lower({
    systemInstruction: { parts: [{ text: 's' }] },
    generationConfig: { maxOutputTokens: 5, thinkingConfig: { includeThoughts: true } },
    toolConfig: { functionCallingConfig: { mode: 'NONE' } },
    tools: [tools],
  })
  t.strictSame(snake, camel)
  const image = [{ role: 'user', parts: [{ inline_data: { mime_type: 'image/png', data: 'a-_b' } }] }]
  t.match(getMessages(image)?.[0], { content: [{ image_url: { url: 'data:image/png;base64,a+/b' } }] })
})

t.test('results without ids belong to the tool calls of their names, in order', async (t) => {
  const call = (name: string, id?: string) => ({ functionCall: { name, args: {}, ...(id && { id }) } })
  const result = (name: string, output: unknown, id?: string) => ({
    functionResponse: { name, response: { output }, ...(id && { id }) },
  })
  const messages = getMessages([
    ...contents,
    { role: 'model', parts: [call('a', 'one'), call('b')] },
    { role: 'model', parts: [call('a', 'three')] },
    {
      role: 'user',
      parts: [result('b', 'B'), result('a', { n: 1 }), { text: 'and?' }, result('a', 'A3', 'three')],
    },
  ])
  t.match(messages?.slice(1), [
    {
      role: 'assistant',
      content: null,
      tool_calls: [{ id: 'one' }, { id: 'call_contents.1.parts.1' }, { id: 'three' }],
    },
    { role: 'tool', tool_call_id: 'call_contents.1.parts.1', content: 'B' },
    { role: 'tool', tool_call_id: 'one', content: '{"n":1}' },
    { role: 'tool', tool_call_id: 'three', content: 'A3' },
    { role: 'user', content: 'and?' },
  ])
  const [failed] =
    getMessages([
      { role: 'user', parts: [{ functionResponse: { name: 'a', response: { error: 'no' } } }] },
    ]) ?? []
  t.match(failed, { role: 'tool', content: 'Error: no' })
})

t.test('equal results of one tool call are one result', async (t) => {
  const result = (id: string | undefined, output: string) => ({
    functionResponse: { name: 'a', response: { output }, ...(id && { id }) },
  })
  const getTools = (...results: object[]) =>
    getMessages([
      ...contents,
      { role: 'model', parts: ['one', 'two'].map((id) => ({ functionCall: { name: 'a', args: {}, id } })) },
      { role: 'user', parts: results },
    ])?.slice(2)
  const [one, two] = ['one', 'two'].map((id) => ({ role: 'tool', tool_call_id: id, content: 'ok' }))
  t.same(getTools(result('one', 'ok'), result('two', 'ok'), result('one', 'ok'), result('two', 'ok')), [
    one,
    two,
  ])
  t.same(getTools(result('one', 'ok'), result('one', 'other')), [one, { ...one, content: 'other' }])
  t.equal(
    getTools(result(undefined, 'ok'), result(undefined, 'ok'))?.length,
    2,
    'without ids each belongs to its own tool call',
  )
})

t.test('unsupported fields are rejected with their name', async (t) => {
  const rejections: [object, string, string][] = [
    [{ contents: [] }, 'invalid_request', 'contents'],
    [{ contents: [{ role: 'user', parts: [{ text: 3 }] }] }, 'invalid_request', 'contents.0.parts.0.text'],
    [{ contents: [{ role: 'robot', parts: [] }] }, 'invalid_request', 'contents.0.role'],
    [{ contents: [{ role: 'model', parts: [{ text: 'a' }] }] }, 'unsupported', 'contents.0.role'],
    [{ contents: [{ role: 'user', parts: [{ executableCode: {} }] }] }, 'unsupported', 'contents.0.parts.0'],
    [{ cachedContent: 'cachedContents/1' }, 'unsupported', 'cachedContent'],
    [{ generationConfig: { candidateCount: 2 } }, 'unsupported', 'generationConfig.candidateCount'],
    [{ generationConfig: { maxOutputTokens: 0 } }, 'invalid_request', 'generationConfig.maxOutputTokens'],
  ]
  for (const [body, code, param] of rejections)
    t.throws(() => lower(body), { code, param }, `${code} ${param}`)
})

t.test('a token count accepts contents, or a complete request', async (t) => {
  const system = { systemInstruction: { parts: [{ text: 's' }] } }
  const counted = lowerGeminiCount(
    { generateContentRequest: { model: 'models/m', contents, ...system } },
    'm',
  )
  t.strictSame(counted, lower(system).body)
  t.match(lowerGeminiCount({ contents }, 'm'), { messages: [{ content: 'go' }] })
})

const identity = { turnId: 'ab-cd', createdS: 5, model: 'requested' }
const createResponseOptions = (reasoning: boolean) => ({
  logprobs: false,
  tokenIds: false,
  reasoning,
  streamUsage: true,
})
const start: GenerationEvent = { type: 'start', engine: 'e', model: 'm', promptTokenIds: PromptIds.of(7, 8) }
const end: GenerationEnd = { type: 'end', finishReason: 'stop' }

type GeminiResponse = {
  candidates: [{ content: { parts: Record<string, unknown>[]; role: string }; finishReason?: string }]
}

function createResponse(events: readonly GenerationEvent[], reasoning: boolean): GeminiResponse {
  const builder = new CompletionBuilder()
  for (const event of events) builder.add(event)
  return JSON.parse(JSON.stringify(buildGeminiResponse(identity, createResponseOptions(reasoning), builder)))
}

/** @param sizes the number of events in each batch */
function write(
  events: readonly GenerationEvent[],
  reasoning: boolean,
  sizes: readonly number[],
  isSse: boolean,
): GeminiResponse[] {
  const writer = new GeminiStreamWriter(
    identity,
    createResponseOptions(reasoning),
    isSse ? undefined : new ArrayFrame(),
  )
  let text = ''
  let index = 0
  for (const size of sizes) {
    text += writer.write(events.slice(index, index + size))
    index += size
  }
  text += writer.write(events.slice(index))
  if (!isSse) return JSON.parse(text)
  const responses = text.split('\n\n')
  if (responses.pop() !== '') throw new Error('the last event has no end')
  return responses.map((response) => JSON.parse(response.replace(/^data: /, '')))
}

const delta: fc.Arbitrary<GenerationDelta> = fc.oneof(
  fc.string({ unit: 'grapheme', minLength: 1 }).map((content) => ({ type: 'delta' as const, content })),
  fc.string({ minLength: 1 }).map((reasoning) => ({ type: 'delta' as const, reasoning })),
  fc.tuple(fc.nat(2), fc.string()).map(([index, text]) => ({
    type: 'delta' as const,
    toolCalls: [{ index, id: `call_${index}`, function: { name: `f${index}`, arguments: text } }],
  })),
)

t.test(
  "for any chunks, framing and thinking setting, the echo of a stream is the model's message",
  async (t) => {
    const property = fc.property(
      fc.array(delta, { maxLength: 12 }),
      fc.array(fc.nat(4)),
      fc.boolean(),
      fc.boolean(),
      (deltas, sizes, isSse, shown) => {
        // Engines number tool calls in the order in which they start.
        const startOrder = [
          ...new Set(deltas.flatMap(({ toolCalls }) => (toolCalls ?? []).map(({ index }) => index))),
        ]
        const ordered = deltas.map((one) => ({
          ...one,
          ...(one.toolCalls && {
            toolCalls: one.toolCalls.map((call) => ({ ...call, index: startOrder.indexOf(call.index) })),
          }),
        }))
        const events = [start, ...ordered, end]
        const builder = new CompletionBuilder()
        for (const event of events) builder.add(event)
        const content = builder.content ?? ''
        const hasPart = content !== '' || builder.toolCalls.length > 0
        const expected = {
          content: content === '' && builder.toolCalls.length > 0 ? null : content,
          // Hidden reasoning at the end has no following part whose signature could contain it.
          reasoning: (shown || hasPart) && builder.reasoning ? builder.reasoning : undefined,
          calls: builder.toolCalls.map(({ id, function: { name } }) => ({ id, name })),
        }
        const streamed = write(events, shown, sizes, isSse)
        const last = streamed.at(-1)!.candidates[0]
        if (last.finishReason !== 'STOP') throw new Error('no finish reason')
        for (const responses of [streamed, [createResponse(events, shown)]]) {
          const echo = responses.map((response) => response.candidates[0].content)
          const nextMessage = { role: 'user', parts: [{ text: 'next' }] }
          const restored = getMessages([...contents, ...echo, nextMessage])?.[1] as unknown as Record<
            string,
            unknown
          >
          const calls = (restored.tool_calls ?? []) as { id: string; function: { name: string } }[]
          const actual = {
            content: restored.content,
            calls: calls.map(({ id, function: { name } }) => ({ id, name })),
          }
          if (JSON.stringify(actual) !== JSON.stringify({ content: expected.content, calls: expected.calls }))
            throw new Error(`${JSON.stringify(actual)} is not ${JSON.stringify(expected)}`)
          // Reasoning after the last part is only in its thought.
          const isLast = deltas.at(-1)?.reasoning !== undefined
          if (
            (shown || !isLast) &&
            responses !== streamed &&
            restored.reasoning_content !== expected.reasoning
          )
            throw new Error(`${restored.reasoning_content} is not ${expected.reasoning}`)
        }
      },
    )
    fc.assert(property)
    t.pass()
  },
)

t.test('hidden thoughts are restored from the signature of the following part', async (t) => {
  const events: GenerationEvent[] = [
    start,
    { type: 'delta', reasoning: 'I thïnk.' },
    { type: 'delta', toolCalls: [{ index: 0, id: 'c', function: { name: 'f', arguments: '{"a": 1}' } }] },
    { type: 'end', finishReason: 'tool_calls' },
  ]
  for (const shown of [true, false]) {
    const [{ content, finishReason }] = createResponse(events, shown).candidates
    t.equal(finishReason, 'STOP')
    t.equal(content.parts.length, shown ? 2 : 1)
    // The echo omits the thoughts, as Gemini CLI does.
    const parts = content.parts.filter(({ thought }) => thought !== true)
    t.match(getMessages([...contents, { role: 'model', parts }, ...contents])?.[1], {
      reasoning_content: 'I thïnk.',
      tool_calls: [{ id: 'c', function: { name: 'f', arguments: '{"a":1}' } }],
    })
  }
})

t.test('usage counts thoughts separately, and an end has its finish reason', async (t) => {
  const usage = {
    prompt_tokens: 5,
    completion_tokens: 4,
    total_tokens: 9,
    completion_tokens_details: { reasoning_tokens: 3 },
  }
  t.match(createResponse([start, { type: 'end', finishReason: 'length', usage }], false), {
    candidates: [{ content: { parts: [{ text: '' }], role: 'model' }, finishReason: 'MAX_TOKENS' }],
    usageMetadata: {
      promptTokenCount: 5,
      candidatesTokenCount: 1,
      thoughtsTokenCount: 3,
      totalTokenCount: 9,
    },
  })
  for (const finishReason of ['repetition', 'insufficient_system_resource'])
    t.match(createResponse([start, { type: 'end', finishReason, usage }], false), {
      candidates: [{ finishReason: 'OTHER' }],
    })
  t.match(
    createResponse([start, { type: 'end', finishReason: 'content_filter' }], false).candidates[0]
      .finishReason,
    'SAFETY',
  )
})

t.test("errors have the shape of Google's", async (t) => {
  t.match(buildGoogleError(new ProxyError('invalid_request', 'no', { param: 'contents' })), {
    error: {
      code: 400,
      message: 'no',
      status: 'INVALID_ARGUMENT',
      details: [{ reason: 'INVALID_REQUEST', metadata: { param: 'contents' } }],
    },
  })
  const long = "This model's maximum context length is 40 tokens. However, your request has 50 input tokens."
  t.match(buildGoogleError(new ProxyError('context_length_exceeded', long)), {
    error: { message: 'The input token count (50) exceeds the maximum number of tokens allowed (40).' },
  })
})

t.test('a thinking level is forwarded under its own name, in lower case', async (t) => {
  for (const level of ['MINIMAL', 'LOW', 'MEDIUM', 'HIGH', 'XHIGH', 'MAX']) {
    const { body } = lower({ generationConfig: { thinkingConfig: { thinkingLevel: level } } })
    t.equal(body.reasoning_effort, level.toLowerCase())
  }
})

t.test('names of types are lower case in every nested schema', async (t) => {
  const google = {
    type: 'OBJECT',
    properties: {
      type: { type: 'STRING' },
      list: { type: 'ARRAY', prefixItems: [{ type: 'NUMBER' }], items: { any_of: [{ type: 'INTEGER' }] } },
      open: { type: 'OBJECT', additionalProperties: { type: 'BOOLEAN' } },
      any: { type: 'TYPE_UNSPECIFIED', enum: ['STRING'], default: null },
      pet: { ref: '#/defs/Pet' },
    },
    defs: { Pet: { type: 'OBJECT', nullable: true } },
  }
  const json = {
    type: 'object',
    properties: {
      type: { type: 'string' },
      list: { type: 'array', prefixItems: [{ type: 'number' }], items: { anyOf: [{ type: 'integer' }] } },
      open: { type: 'object', additionalProperties: { type: 'boolean' } },
      any: { enum: ['STRING'], default: null },
      pet: { $ref: '#/$defs/Pet' },
    },
    $defs: { Pet: { type: ['object', 'null'] } },
  }
  for (const name of ['parameters', 'parametersJsonSchema']) {
    const { body } = lower({ tools: [{ functionDeclarations: [{ name: 'f', [name]: google }] }] })
    t.strictSame((body.tools as { function: object }[])[0]!.function, { name: 'f', parameters: json }, name)
  }
  for (const name of ['responseSchema', 'responseJsonSchema']) {
    const generationConfig = { responseMimeType: 'application/json', [name]: google }
    const { body } = lower({ generationConfig })
    t.match(body.response_format, { json_schema: { schema: json } }, name)
  }
})

t.test('formats and name rules that grammars reject, and that constrain nothing, are removed', async (t) => {
  const properties = {
    day: { type: 'STRING', format: 'date-time' },
    size: { type: 'STRING', format: 'enum', enum: ['S', 'M'] },
    count: { type: 'INTEGER', format: 'int32', nullable: true },
    open: { type: 'object', propertyNames: { type: 'string' }, additionalProperties: {} },
    ruled: { type: 'object', propertyNames: { type: 'string', pattern: '^x' } },
  }
  const generationConfig = { responseMimeType: 'application/json', responseSchema: { properties } }
  const { response_format: format } = lower({ generationConfig }).body
  t.strictSame((format as { json_schema: { schema: object } }).json_schema.schema, {
    properties: {
      day: { type: 'string', format: 'date-time' },
      size: { type: 'string', enum: ['S', 'M'] },
      count: { type: ['integer', 'null'] },
      open: { type: 'object', additionalProperties: {} },
      ruled: { type: 'object', propertyNames: { type: 'string', pattern: '^x' } },
    },
  })
})

t.test('some of the functions may be allowed, and an unknown mode is an error', async (t) => {
  const tools = [{ functionDeclarations: ['a', 'b', 'c'].map((name) => ({ name })) }]
  const choose = (functionCallingConfig: object) => {
    const { tool_choice: choice, tools: left } = lower({ tools, toolConfig: { functionCallingConfig } }).body
    return [choice, (left as { function: { name: string } }[]).map((tool) => tool.function.name).join('')]
  }
  t.strictSame(choose({ mode: 'ANY', allowedFunctionNames: ['a', 'c'] }), ['required', 'ac'])
  t.strictSame(choose({ mode: 'any', allowedFunctionNames: ['a', 'b', 'c'] }), ['required', 'abc'])
  t.strictSame(choose({ mode: 'VALIDATED', allowedFunctionNames: ['b'] }), ['auto', 'b'])
  t.strictSame(choose({ mode: 'NONE' }), ['none', 'abc'])
  const param = 'toolConfig.functionCallingConfig'
  t.throws(() => choose({ mode: 'REQUIRED' }), { code: 'invalid_request', param: `${param}.mode` })
  const unknown = { mode: 'ANY', allowedFunctionNames: ['x', 'y'] }
  t.throws(() => choose(unknown), { code: 'invalid_request', param: `${param}.allowedFunctionNames` })
})

t.test('a tool choice without tools is removed, and one that requires a tool call is an error', async (t) => {
  const param = 'toolConfig.functionCallingConfig'
  for (const tools of [[{ googleSearch: {} }], []]) {
    const choose = (mode: string) => lower({ tools, toolConfig: { functionCallingConfig: { mode } } }).body
    for (const mode of ['AUTO', 'NONE', 'VALIDATED']) t.notOk('tool_choice' in choose(mode), mode)
    t.throws(() => choose('ANY'), { code: 'unsupported', param })
  }
})

t.test('null means "not set", a single part needs no list, and an empty part is ignored', async (t) => {
  const restored = getMessages([
    { role: 'user', parts: { text: 'go' } },
    { role: 'model', parts: [{ functionCall: { id: null, name: 'f', args: { a: null } }, text: null }, {}] },
    { role: 'user', parts: [{ functionResponse: { name: 'f', response: { output: 'x' } } }] },
    { role: 'model', parts: [{ text: 'ok', functionCall: null, functionResponse: null }] },
    { role: 'user', parts: [{ text: 'more', functionResponse: null, inline_data: null }] },
  ])!
  t.match(restored, [
    { role: 'user', content: 'go' },
    { role: 'assistant', tool_calls: [{ function: { name: 'f', arguments: '{"a":null}' } }] },
    { role: 'tool', content: 'x' },
    { role: 'assistant', content: 'ok' },
    { role: 'user', content: 'more' },
  ])
})
