import t from 'tap'
import { CompletionBuilder } from '../../../../../../src/protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../../../../src/protocol/canonical/events.ts'
import { PromptIds } from '../../../../../../src/protocol/token-ids/prompt-ids.ts'
import {
  CompletionReader,
  type CompletionReaderOptions,
} from '../../../../../../src/proxy/engines/clients/wire/completion-reader.ts'

function createReader(options: Partial<CompletionReaderOptions> = {}): CompletionReader {
  return new CompletionReader({
    engine: 'http://gpu-1',
    wantsLogprobs: false,
    wantsIdsAsTokens: false,
    sentPromptTokenIds: undefined,
    redact: (text) => text.replaceAll('sk-1', '***'),
    ...options,
  })
}

function read(responses: object[], options: Partial<CompletionReaderOptions> = {}): GenerationEvent[] {
  const reader = createReader(options)
  const events: GenerationEvent[] = []
  for (const response of responses) reader.read(JSON.stringify(response), events)
  events.push(reader.end())
  return events
}

const stop = { choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] }
const chunk = (delta: object, more: object = {}) => ({ choices: [{ index: 0, delta, ...more }] })
const entry = (token: string, logprob: number) => ({
  token,
  logprob,
  bytes: [...Buffer.from('text')],
  top_logprobs: [],
})
/** Returns the deltas of a stream. */
const deltas = (responses: object[], options: Partial<CompletionReaderOptions> = {}) =>
  read([...responses, stop], options).filter((event) => event.type === 'delta')

t.test('a start names the model only if the engine does, as text', (t) => {
  for (const [model, expected] of [
    ['qwen', 'qwen'],
    [7, undefined],
    [null, undefined],
  ]) {
    const [start] = read([{ model, ...chunk({ content: 'a' }) }, stop])
    t.match(start, { type: 'start', engine: 'http://gpu-1' })
    t.equal(start?.type === 'start' && start.model, expected)
  }
  t.end()
})

t.test('a stream of vLLM chat chunks is parsed', (t) => {
  const responses = [
    {
      model: 'qwen',
      prompt_token_ids: [1, 2],
      ...chunk({ role: 'assistant', content: '' }, { logprobs: null }),
    },
    chunk({ reasoning: 'hm' }, { logprobs: { content: [entry('hm', -0.5)] }, token_ids: [7] }),
    chunk({}, { logprobs: { content: [entry('<tool_call>', -0.25)] }, token_ids: [8] }),
    chunk({
      tool_calls: [{ index: 0, id: 'call-1', type: 'function', function: { name: 'f', arguments: '' } }],
    }),
    chunk(
      {},
      {
        logprobs: { content: [entry('', -9999)] },
        token_ids: [9],
        finish_reason: 'tool_calls',
        stop_reason: null,
      },
    ),
    { choices: [], usage: { prompt_tokens: 2, completion_tokens: 3, total_tokens: 5 } },
  ]
  t.same(read(responses), [
    { type: 'start', engine: 'http://gpu-1', model: 'qwen', promptTokenIds: PromptIds.of(1, 2) },
    { type: 'delta', reasoning: 'hm', logprobs: [-0.5], tokenIds: [7] },
    { type: 'delta', logprobs: [-0.25], tokenIds: [8] },
    {
      type: 'delta',
      toolCalls: [{ index: 0, id: 'call-1', type: 'function', function: { name: 'f', arguments: '' } }],
    },
    { type: 'delta', logprobs: [-9999], tokenIds: [9] },
    {
      type: 'end',
      finishReason: 'tool_calls',
      stopReason: null,
      usage: { prompt_tokens: 2, completion_tokens: 3, total_tokens: 5 },
    },
  ])
  t.end()
})

t.test('a complete chat completion is parsed', (t) => {
  const message = {
    role: 'assistant',
    content: null,
    refusal: null,
    reasoning: 'hm',
    tool_calls: [
      { id: 'a', type: 'function', function: { name: 'f', arguments: '{}' } },
      { id: 'b', type: 'function', function: { name: 'g', arguments: '{' } },
    ],
    annotations: [],
    audio: null,
  }
  const choice = {
    index: 0,
    message,
    finish_reason: 'stop',
    stop_reason: 151645,
    token_ids: [7],
    logprobs: null,
  }
  t.same(read([{ model: 'qwen', choices: [choice], prompt_token_ids: [1], usage: null }]), [
    { type: 'start', engine: 'http://gpu-1', model: 'qwen', promptTokenIds: PromptIds.of(1) },
    {
      type: 'delta',
      reasoning: 'hm',
      toolCalls: [
        { index: 0, id: 'a', type: 'function', function: { name: 'f', arguments: '{}' } },
        { index: 1, id: 'b', type: 'function', function: { name: 'g', arguments: '{' } },
      ],
      tokenIds: [7],
      extra: { annotations: [] },
    },
    { type: 'end', finishReason: 'stop', stopReason: 151645 },
  ])
  t.end()
})

t.test('a text completion has its prompt ids on the choice and its logprobs in lists', (t) => {
  const logprobs = { tokens: ['a', 'b'], token_logprobs: [-1, null], top_logprobs: [{ a: -1, c: -2 }, null] }
  const choice = {
    index: 0,
    text: 'ab',
    logprobs,
    token_ids: [5, 6],
    prompt_token_ids: [1],
    finish_reason: 'length',
  }
  const [start, delta] = read([{ choices: [choice] }], { wantsLogprobs: true })
  t.same(start, { type: 'start', engine: 'http://gpu-1', promptTokenIds: PromptIds.of(1) })
  t.same(delta, {
    type: 'delta',
    content: 'ab',
    logprobs: [-1, Number.NaN],
    tokenIds: [5, 6],
    logprobsContent: [
      {
        token: 'a',
        logprob: -1,
        bytes: null,
        top_logprobs: [
          { token: 'a', logprob: -1, bytes: null },
          { token: 'c', logprob: -2, bytes: null },
        ],
      },
      { token: 'b', logprob: Number.NaN, bytes: null, top_logprobs: [] },
    ],
  })
  t.end()
})

t.test('prompt ids are parsed', (t) => {
  const promptIds = (response: object, options: Partial<CompletionReaderOptions> = {}) => {
    const start = read([response, stop], options)[0]
    return start?.type === 'start' ? start.promptTokenIds : undefined
  }
  t.same(promptIds(chunk({}, { prompt_token_ids: [3] })), Int32Array.of(3), 'on the choice')
  t.same(
    promptIds(chunk({}), { sentPromptTokenIds: [4] }),
    Int32Array.of(4),
    'those sent, if the engine reports none',
  )
  for (const broken of [[1, null], [1.5], [-1], 'ids']) {
    t.equal(
      promptIds({ prompt_token_ids: broken, ...chunk({}) }),
      undefined,
      'unknown when one of them is invalid',
    )
  }
  t.end()
})

t.test('prompt ids of a later chunk become those of the completion, and invalid ones leave none', (t) => {
  const getPrompt = (later: unknown, options: Partial<CompletionReaderOptions> = {}) => {
    const builder = new CompletionBuilder()
    const first = chunk({ role: 'assistant', content: '' })
    const second = chunk({ content: 'a' }, { token_ids: [7], prompt_token_ids: later })
    for (const event of read([first, second, stop], options)) builder.add(event)
    t.same(builder.start?.engine, 'http://gpu-1')
    return [...(builder.start?.promptTokenIds ?? ['unknown'])]
  }
  t.same(getPrompt([3, 4]), [3, 4])
  t.same(getPrompt(null), ['unknown'])
  t.same(getPrompt([3, 4], { sentPromptTokenIds: [4] }), [3, 4], 'instead of those that were sent')
  for (const absent of [null, undefined, [], 'ids', [4]])
    t.same(getPrompt(absent, { sentPromptTokenIds: [4] }), [4], 'as they were sent')
  t.same(getPrompt([3, null], { sentPromptTokenIds: [4] }), [], 'unknown when one of them is invalid')
  const repeated = read([
    { prompt_token_ids: [3], ...chunk({}) },
    { prompt_token_ids: [3], ...stop },
  ])
  t.notOk('promptTokenIds' in repeated.at(-1)!, 'the same ids again are no change')
  t.end()
})

t.test('differences between engines are accepted', (t) => {
  t.same(
    deltas([chunk({ reasoning_content: 'a' })]),
    [{ type: 'delta', reasoning: 'a' }],
    'the older name of reasoning',
  )
  t.same(
    deltas([chunk({ reasoning: 'a', reasoning_content: 'a' })]),
    [{ type: 'delta', reasoning: 'a' }],
    'both names of reasoning',
  )
  t.same(
    deltas([chunk({ content: 'a' }, { token_ids: null })]),
    [{ type: 'delta', content: 'a' }],
    'ids that are null',
  )
  t.same(
    deltas([chunk({ tool_calls: [{ id: null, function: { name: null, arguments: 'x' } }] })]),
    [{ type: 'delta', toolCalls: [{ index: 0, function: { arguments: 'x' } }] }],
    'tool calls with nulls and without an index',
  )
  t.same(
    deltas([
      chunk({
        content: [
          {
            type: 'thinking',
            thinking: [
              { type: 'text', text: 'h' },
              { type: 'text', text: 'm' },
            ],
          },
          { type: 'text', text: 'a' },
          { type: 'reference', reference_ids: [1] },
          null,
          { type: 'text', text: 'b' },
        ],
      }),
    ]),
    [{ type: 'delta', content: 'ab', reasoning: 'hm' }],
    'content in parts',
  )
  t.same(deltas([chunk({ content: [] })]), [], 'no parts')
  t.same(
    deltas([chunk({ tool_calls: [{ index: 0, id: 'c', function: { name: 'f', arguments: { x: [1] } } }] })]),
    [
      {
        type: 'delta',
        toolCalls: [{ index: 0, id: 'c', type: 'function', function: { name: 'f', arguments: '{"x":[1]}' } }],
      },
    ],
    'arguments as an object',
  )
  t.same(
    deltas([chunk({ content: 'a', audio_id: 'x', annotations: null })]),
    [{ type: 'delta', content: 'a', extra: { audio_id: 'x' } }],
    'unknown fields',
  )
  t.same(deltas([{ choices: [{ index: 1, delta: { content: 'b' } }] }]), [], 'another choice')
  t.same(
    read([chunk({}, { finish_reason: 'stop', matched_stop: '###' })]).at(-1),
    { type: 'end', finishReason: 'stop', stopReason: '###' },
    "SGLang's name of the stop reason",
  )
  t.same(
    deltas([{ choices: [{ index: 0, message: { content: 'a' }, response_token_ids: [7, 8] }] }]),
    [{ type: 'delta', content: 'a', tokenIds: [7, 8] }],
    "SGLang's name of the ids of a complete response, since 0.5.18",
  )
  t.end()
})

t.test(
  'ids that are encoded in the tokens are recovered, and hidden unless the agent requested them',
  (t) => {
    const response = chunk({ content: 'text' }, { logprobs: { content: [entry('token_id:42', -1)] } })
    t.same(
      deltas([response]),
      [{ type: 'delta', content: 'text', logprobs: [-1], tokenIds: [42] }],
      'recovered',
    )
    const [shown] = deltas([response], { wantsLogprobs: true })
    t.same(shown?.type === 'delta' && shown.logprobsContent?.[0]?.token, 'text', 'hidden from the agent')
    const [visible] = deltas([response], { wantsLogprobs: true, wantsIdsAsTokens: true })
    t.same(
      visible?.type === 'delta' && visible.logprobsContent?.[0]?.token,
      'token_id:42',
      'requested by the agent',
    )
    const mixed = chunk({}, { logprobs: { content: [entry('token_id:42', -1), entry('x', -1)] } })
    t.same(deltas([mixed]), [{ type: 'delta', logprobs: [-1, -1] }], 'unknown when one is missing')
    t.end()
  },
)

t.test('weight versions are parsed', (t) => {
  const versions = (responses: object[]) =>
    read([...responses, stop]).flatMap((event) => (event.type === 'delta' ? [] : [event.weightVersion]))
  t.same(versions([{ weight_version: 3, ...chunk({}) }]), ['3', '3'], 'at the root')
  t.same(versions([{ metadata: { weight_version: 'v2' }, ...chunk({}) }]), ['v2', 'v2'], 'in the metadata')
  const spans = { weight_version: 'v2', weight_versions: [{ version: 'v1', start: 0, end: 3 }] }
  t.same(versions([{ metadata: spans, ...chunk({}) }]), ['v1', 'v2'], 'of each token')
  t.same(
    versions([chunk({}), { metadata: { weight_version: 'v2' }, choices: [] }]),
    [undefined, 'v2'],
    'late',
  )
  t.end()
})

t.test('the version at the end of a complete response is not the version of its beginning', (t) => {
  const versions = (fields: object) => {
    const reader = createReader()
    const events: GenerationEvent[] = []
    reader.read(JSON.stringify({ ...stop, ...fields }), events, true)
    return [...events, reader.end()].flatMap((event) => (event.type === 'delta' ? [] : [event.weightVersion]))
  }
  t.same(versions({ weight_version: 'v2' }), [undefined, 'v2'])
  t.same(versions({ metadata: { weight_version: 'v2' } }), [undefined, 'v2'])
  const spans = [
    { version: 'v1', start: 0, end: 2 },
    { version: 'v2', start: 2, end: 3 },
  ]
  t.same(
    versions({ metadata: { weight_version: 'v2', weight_versions: spans } }),
    ['v1', 'v2'],
    'spans report it',
  )
  const [choice] = stop.choices
  t.same(versions({ choices: [{ ...choice, weight_versions: spans }] }), ['v1', 'v2'], 'also those of vLLM')
  t.end()
})

t.test('an invalid response is an error', (t) => {
  const assertFails = (json: string, expected: { code: string; message?: RegExp }) =>
    t.throws(() => createReader().read(json, []), expected)
  assertFails('<html>bad\n gateway</html>', {
    code: 'engine_failed',
    message: /did not respond with JSON: <html>bad gateway<\/html>$/,
  })
  assertFails('{"error":{"message":"out of memory","code":500}}', {
    code: 'engine_failed',
    message: /: out of memory$/,
  })
  assertFails('{"error":{"object":"error","message":"older"}}', {
    code: 'engine_failed',
    message: /: older$/,
  })
  assertFails('{"object":"error","message":"key sk-1"}', { code: 'engine_failed', message: /: key \*\*\*$/ })
  assertFails('{"error":"text","choices":[]}', { code: 'engine_failed', message: /: text$/ })
  for (const code of [400, 422])
    t.throws(
      () => createReader().read(`{"error":{"object":"error","message":"bad sk-1","code":${code}}}`, []),
      {
        code: 'engine_rejected',
        status: code,
        message: 'bad ***',
      },
    )
  for (const json of ['null', '[]', '1']) assertFails(json, { code: 'engine_failed' })
  for (const response of [{}, { choices: null }, { detail: 'of sk-1' }]) {
    t.throws(
      () => createReader().read(JSON.stringify(response), [], true),
      { code: 'engine_failed' },
      'complete',
    )
    const fails = response.detail === undefined ? {} : { message: /failed: of \*\*\*$/ }
    const cut = [chunk({ content: 'a' }), response]
    t.throws(() => read(cut), { code: 'engine_failed', ...fails }, 'instead of a finish reason')
  }
  t.throws(() => read([{ warning: 'slow' }, chunk({ content: 'a' })]), { code: 'engine_lost' })
  t.throws(() => createReader().end(), { code: 'engine_lost' }, 'no finish reason')
  for (const [reason, code, message] of [
    ['abort', 'engine_aborted', /aborted the request/],
    ['error', 'engine_failed', /failed during its response/],
  ] as const)
    t.throws(() => read([chunk({ content: 'a' }, { finish_reason: reason })]), { code, message })
  t.end()
})

t.test('a stream event without choices contributes only its usage', (t) => {
  const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 }
  const token = { error: {}, ...chunk({ content: 'a' }, { token_ids: [7] }) }
  const others = [{ warning: 'slow' }, { error: null }, { object: 'cost', usage }, { choices: null }]
  t.same(read([others[0]!, token, others[1]!, stop, ...others], { sentPromptTokenIds: [1] }), [
    { type: 'start', engine: 'http://gpu-1', promptTokenIds: PromptIds.of(1) },
    { type: 'delta', content: 'a', tokenIds: [7] },
    { type: 'end', finishReason: 'stop', usage },
  ])
  for (const error of [{ error: { message: 'late' } }, { object: 'error', message: 'late' }])
    t.throws(() => read([token, stop, error]), { code: 'engine_failed', message: /late$/ })
  const died = { error: { message: 'died', code: 500 } }
  t.throws(
    () => read([token, died]),
    { code: 'engine_lost', message: /died$/ },
    'the tokens before are complete',
  )
  t.throws(() => read([died]), { code: 'engine_failed' })
  t.throws(() => read([token, { error: { message: 'bad', code: 400 } }]), { code: 'engine_rejected' })
  t.end()
})

t.test('arguments with excessive nesting are a failure of the engine', (t) => {
  const deep = `{"x":${'['.repeat(20_000)}${']'.repeat(20_000)}}`
  const call = `{"index":0,"function":{"name":"f","arguments":${deep}}}`
  const response = `{"choices":[{"index":0,"delta":{"tool_calls":[${call}]}}]}`
  t.throws(() => createReader().read(response, []), {
    code: 'engine_failed',
    message: /nested too deeply/,
  })
  t.end()
})

t.test('invalid logprobs are a failure of the engine', (t) => {
  for (const content of [[null], ['x'], [{ logprob: -1 }], [entry('a', -1), { token: 5, logprob: -1 }]]) {
    t.throws(() => deltas([chunk({ content: 'x' }, { logprobs: { content } })]), {
      code: 'engine_failed',
      message: /logprobs/,
    })
  }
  t.end()
})

/** Returns the tool calls of a stream whose chunks contain these deltas. */
function getToolCalls(...chunks: object[][]): string[][] {
  const builder = new CompletionBuilder()
  for (const event of read([...chunks.map((chunks) => chunk({ tool_calls: chunks })), stop]))
    builder.add(event)
  return builder.toolCalls.map((call) => [call.id, call.function.name, call.function.arguments])
}

t.test('a new id with a name, or a name after arguments, starts a tool call at index 0', (t) => {
  const createChunk = (id: string | null, name: string | null, args: string | null, index = 0) => ({
    index,
    id,
    function: { name, arguments: args },
  })
  const two = [
    ['a', 'add', '{"x":1}'],
    ['b', 'weather', '{"x":2}'],
  ]
  const withoutIds = two.map(([, ...rest]) => ['', ...rest])
  const [first, second] = [createChunk('a', 'add', '{"x":1}'), createChunk('b', 'weather', '{"x":2}')]
  t.same(getToolCalls([first], [second]), two, 'in a chunk each')
  t.same(getToolCalls([first, second]), two, 'in one chunk')
  const rest = (text: string) => createChunk(null, null, text)
  const split = [
    createChunk('a', 'add', ''),
    rest('{"x":1}'),
    createChunk('b', 'weather', null),
    rest('{"x":2}'),
  ]
  t.same(getToolCalls(...split.map((each) => [each])), two, 'in deltas')
  const idless = [createChunk(null, 'add', '{"x":1}'), createChunk('', 'weather', ''), rest('{"x":2}')]
  t.same(getToolCalls(...idless.map((each) => [each])), withoutIds, 'without ids')
  const idFirst = [first, createChunk('b', null, ''), createChunk(null, 'weather', ''), rest('{"x":2}')]
  t.same(getToolCalls(...idFirst.map((each) => [each])), two, 'an id before its name')
  const empty = [createChunk('a', 'add', ''), createChunk('b', 'weather', '{}')]
  const noArguments = [
    ['a', 'add', ''],
    ['b', 'weather', '{}'],
  ]
  t.same(getToolCalls(...empty.map((each) => [each])), noArguments, 'the first without arguments')
  const back = [
    createChunk('a', 'add', ''),
    createChunk('b', 'weather', ''),
    createChunk('a', null, '{"x":1}'),
  ]
  t.same(
    getToolCalls(...[...back, createChunk('b', null, '{"x":2}')].map((each) => [each])),
    two,
    'by their ids',
  )
  t.end()
})

t.test('an id for each delta, and a repeated name, start no tool call at a known index', (t) => {
  const createChunk = (index: number, id: string, name: string | null, args: string) => ({
    index,
    id,
    function: { name, arguments: args },
  })
  const madeUp = [
    createChunk(0, 'a', 'f', ''),
    createChunk(0, 'b', null, '{"x":'),
    createChunk(0, 'c', null, '1}'),
  ]
  t.same(getToolCalls(...madeUp.map((each) => [each])), [['a', 'f', '{"x":1}']])
  const repeated = [
    createChunk(0, 'a', 'f', ''),
    createChunk(0, 'a', 'f', '{"x":'),
    createChunk(0, 'a', 'f', '1}'),
  ]
  t.same(getToolCalls(...repeated.map((each) => [each])), [['a', 'f', '{"x":1}']])
  const sameIds = [createChunk(0, 'f:0', 'f', '{}'), createChunk(1, 'f:0', 'f', '{}')]
  t.same(getToolCalls(...sameIds.map((each) => [each])), [
    ['f:0', 'f', '{}'],
    ['f:0', 'f', '{}'],
  ])
  t.same(
    getToolCalls([createChunk(0, 'a', 'get_', '')], [createChunk(0, 'a', 'x', '{}')]),
    [['a', 'get_x', '{}']],
    'in deltas',
  )
  t.end()
})

t.test(
  'tool calls of a stream without an index are distinguished by their ids, or their names',
  async (t) => {
    const call = (id: string | undefined, name: string | undefined, args: string) => ({
      ...(id !== undefined && { id }),
      function: { ...(name !== undefined && { name }), arguments: args },
    })
    const two = [
      ['a', 'read', '{"x":1}'],
      ['b', 'read', '{"x":2}'],
    ]
    t.same(
      getToolCalls([call('a', 'read', '{"x":1}')], [call('b', 'read', '{"x":2}')]),
      two,
      'complete, one per chunk',
    )
    t.same(
      getToolCalls([call('a', 'read', '{"x":1}'), call('b', 'read', '{"x":2}')]),
      two,
      'complete, in one chunk',
    )
    const chunks = [call('a', 'read', ''), call(undefined, undefined, '{"x":1}'), call('b', 'read', '{"x":')]
    t.same(
      getToolCalls(...chunks.map((chunk) => [chunk]), [call(undefined, undefined, '2}')]),
      two,
      'in deltas',
    )
    const named = [call('', 'read', '{"x":1}'), call('', 'read', '{"x":2}')]
    t.same(
      getToolCalls(...named.map((chunk) => [chunk])),
      two.map(([, ...rest]) => ['', ...rest]),
      'without ids',
    )
    const echoed = [call('a', 'read', '{"x":1}'), call('b', 'read', ''), call('b', undefined, '{"x":2}')]
    t.same(getToolCalls(...echoed.map((chunk) => [chunk])), two, 'a repeated id continues its tool call')
  },
)

t.test('tool calls of a complete response are its entries, with any ids that the model writes', async (t) => {
  const call = (args: string) => ({ id: 'functions.Bash:0', function: { name: 'Bash', arguments: args } })
  const message = { role: 'assistant', content: null, tool_calls: [call('{"x":1}'), call('{"x":2}')] }
  const builder = new CompletionBuilder()
  for (const event of read([{ choices: [{ index: 0, message, finish_reason: 'tool_calls' }] }]))
    builder.add(event)
  t.same(
    builder.toolCalls.map((call) => call.function.arguments),
    ['{"x":1}', '{"x":2}'],
  )
})

t.test('an object or a text instead of a logprob is ignored, at any depth', (t) => {
  const deep = `${'['.repeat(20_000)}${']'.repeat(20_000)}`
  for (const second of [deep, '[-1]', '"-1"', 'null', '{"valueOf":1}']) {
    const events: GenerationEvent[] = []
    const entries = `[{"token":"a","logprob":-1},{"token":"b","logprob":${second}}]`
    createReader().read(
      `{"choices":[{"index":0,"text":"hi","token_ids":[3,4],"logprobs":{"content":${entries}}}]}`,
      events,
    )
    t.match(
      events.at(-1),
      { type: 'delta', tokenIds: [3, 4], logprobs: [-1, Number.NaN] },
      second.slice(0, 9),
    )
  }
  t.end()
})

t.test('an object instead of an id or a token is ignored, at any depth', (t) => {
  const deep = `${'['.repeat(20_000)}${']'.repeat(20_000)}`
  for (const second of [deep, '"4"', '{"valueOf":1}', 'null']) {
    const events: GenerationEvent[] = []
    const logprobs = `{"tokens":[${deep},"x"],"token_logprobs":[-1,-1]}`
    createReader().read(
      `{"choices":[{"index":0,"text":"hi","token_ids":[3,${second}],"logprobs":${logprobs}}]}`,
      events,
    )
    t.strictSame(events.at(-1), {
      type: 'delta',
      content: 'hi',
      tokenIds: [3, Number.NaN],
      logprobs: [-1, -1],
    })
  }
  t.end()
})

t.test('without a request for a part, the experts are those of all tokens but the last', (t) => {
  const routed_experts = Buffer.from(Int32Array.of(5, 6, 7).buffer).toString('base64')
  const response = {
    ...chunk({ content: 'hi' }, { token_ids: [7, 8] }),
    prompt_token_ids: [1, 2],
    sglext: { routed_experts },
  }
  const experts = (options: Partial<CompletionReaderOptions>) =>
    deltas([response], { record: { routedExperts: true }, ...options })[0]!.details?.routed_experts
  t.match(experts({}), { start: 0, experts: { shape: [3, 1] } })
  t.equal(experts({ expertsStart: 1 }), undefined, 'a different number than requested')
  t.end()
})

t.test('entries that name their tokens by id get the id as a token, and others are unchanged', (t) => {
  const byId = (id: unknown) => ({ token_id: id, logprob: -1, top_logprobs: [{ token_id: 9, logprob: -2 }] })
  const readEntries = (...content: object[]) =>
    deltas([chunk({ content: 'hi' }, { logprobs: { content }, token_ids: content.map(() => 7) })], {
      wantsLogprobs: true,
    })
  t.match(readEntries(byId(7), { ...byId(8), token: 'eight' })[0]!.logprobsContent, [
    { token: 'token_id:7', bytes: null, top_logprobs: [{ token: 'token_id:9', logprob: -2 }] },
    { token: 'eight', token_id: 8 },
  ])
  t.throws(() => readEntries(byId('7')), { code: 'engine_failed', message: /invalid logprobs/ })
  t.end()
})
