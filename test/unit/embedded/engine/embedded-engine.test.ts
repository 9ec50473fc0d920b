import fc from 'fast-check'
import t from 'tap'
import { renderChatMl } from '../../../../src/embedded/engine/chat-ml.ts'
import {
  EmbeddedEngine,
  type EmbeddedEngineOptions,
} from '../../../../src/embedded/engine/embedded-engine.ts'
import { loadEmbeddedModel } from '../../../../src/embedded/engine/embedded-model.ts'
import { Playbook } from '../../../../src/embedded/engine/playbook.ts'
import { rankTokens } from '../../../../src/embedded/engine/score.ts'
import type { CompletionBuilder } from '../../../../src/protocol/canonical/completion.ts'
import type { Tool } from '../../../../src/protocol/canonical/messages.ts'
import {
  chatRequest,
  collect,
  completionRequest,
  engineClientSuite,
  eventually,
  fold,
  noAbort,
  tokenRequest,
} from '../../../conformance/engine-client.ts'
import { pull } from '../../../helpers/event-stream.ts'
import { limitRuns } from '../../../helpers/tier.ts'

const { ngrams, tokenizer, eosTokenId } = loadEmbeddedModel()
const CALCULATOR: Tool = {
  type: 'function',
  function: { name: 'calculator', parameters: { type: 'object' } },
}

/** Returns the model's logprobs of the completion's tokens after its prompt. */
function getScores({ start, tokenIds }: CompletionBuilder): number[] {
  const prompt = [...start!.promptTokenIds!]
  return rankTokens(ngrams, [...prompt, ...tokenIds], prompt.length, 0).map(({ logprob }) => logprob)
}

function createPlaybook(response: object): Playbook {
  return new Playbook({ rules: [{ name: 'only', when: {}, answer: response }] })
}

async function run(
  options: EmbeddedEngineOptions,
  body: Record<string, unknown>,
): Promise<CompletionBuilder> {
  return fold(await collect(pull(new EmbeddedEngine(options), chatRequest(body), noAbort)))
}

for (const mode of ['chat', 'token'] as const) {
  t.test(`the port in ${mode} mode`, (t) => {
    const setUp = async () => {
      // A canned completion has the maximum length for every seed.
      const client = new EmbeddedEngine({ cannedTokens: 30_000, tokensPerSecond: 2_000 })
      return {
        client,
        model: 'embedded',
        endless: { max_tokens: 30_000 },
        running: () => client.running,
        close: () => client.close(),
      }
    }
    engineClientSuite(t, setUp, mode)
    t.end()
  })
}

t.test('in token mode the response is the one of chat mode, with its markup as text', async (t) => {
  const engine = new EmbeddedEngine({
    playbook: createPlaybook({
      content: 'Let me see.',
      tool_calls: [{ name: 'calculator', arguments: { a: 1 } }],
    }),
  })
  const body = {
    messages: [{ role: 'user' as const, content: 'What is 1?' }],
    tools: [CALCULATOR],
    max_tokens: null,
  }
  const inChat = fold(await collect(pull(engine, chatRequest(body), noAbort)))
  const ids = await engine.tokenizeChat(body)
  // In token mode the engine ignores the messages of a request, which are only recorded.
  const request = tokenRequest(ids, { ...body, messages: [{ role: 'user', content: 'Something else' }] })
  const inTokens = fold(await collect(pull(engine, request, noAbort)))
  t.same([...inTokens.start!.promptTokenIds!], ids)
  t.same([inTokens.tokenIds, inTokens.logprobs], [inChat.tokenIds, inChat.logprobs])
  t.same([inTokens.toolCalls, inTokens.end?.finishReason], [[], 'stop'])
  t.match(inTokens.content, /^Let me see\.\s*<tool_call>/)
  t.equal(inChat.toolCalls.length, 1)
  await t.rejects(collect(pull(engine, tokenRequest([], body), noAbort)), { code: 'engine_rejected' })
  await t.rejects(collect(pull(engine, tokenRequest([2 ** 30], body), noAbort)), {
    code: 'engine_rejected',
    message: /out of vocabulary/,
  })
})

t.test(
  'reported logprobs can be recomputed from the ids, bit for bit, with any sampling parameters',
  async () => {
    const engine = new EmbeddedEngine()
    const sampling = fc.record({
      temperature: fc.constantFrom(0, 0.5, 1, 2),
      top_p: fc.constantFrom(0.5, 0.9, 1),
      top_k: fc.constantFrom(-1, 5),
      repetition_penalty: fc.constantFrom(1, 1.3),
      seed: fc.nat(),
      ignore_eos: fc.boolean(),
    })
    const prompts = fc.oneof(fc.string(), fc.constantFrom('Hello!', 'What is a queue?', 'Tell me about Ada.'))
    await fc.assert(
      fc.asyncProperty(sampling, prompts, async (fields, content) => {
        const body = { ...fields, messages: [{ role: 'user', content }], max_tokens: 24 }
        const completion = fold(await collect(pull(engine, chatRequest(body), noAbort)))
        return getScores(completion).every((score, i) => Object.is(score, completion.logprobs[i]))
      }),
      { numRuns: limitRuns(60) },
    )
  },
)

t.test('the same seed gives the same completion, streamed or complete', async (t) => {
  const engine = new EmbeddedEngine()
  for (const seed of [1, 2, 3, 4, 5]) {
    const body = { seed, max_tokens: 60, logprobs: true, top_logprobs: 2, tools: [CALCULATOR] }
    const [streamed, full] = [true, false].map((stream) => pull(engine, chatRequest(body, stream), noAbort))
    t.same(fold(await collect(streamed!)), fold(await collect(full!)), `seed ${seed}`)
  }
})

t.test('without a seed, requests differ and a restarted engine repeats them', async (t) => {
  const draw = async (engine: EmbeddedEngine) =>
    fold(await collect(pull(engine, chatRequest({ max_tokens: 60 }), noAbort))).tokenIds
  const starts = []
  for (let start = 0; start < 2; start++) {
    const engine = new EmbeddedEngine()
    starts.push([await draw(engine), await draw(engine), await draw(engine)])
  }
  t.strictSame(starts[0], starts[1])
  t.equal(new Set(starts[0]!.map(String)).size, 3)
})

t.test('the prompt ids are the rendered messages', async (t) => {
  const messages = [{ role: 'user' as const, content: 'Hello' }]
  const completion = await run({}, { messages, tools: [CALCULATOR] })
  const expected = tokenizer.encode(renderChatMl(messages, [CALCULATOR], true))
  t.same([...completion.start!.promptTokenIds!], expected)
  t.match(completion.end?.usage, {
    prompt_tokens: expected.length,
    completion_tokens: completion.tokenIds.length,
  })
})

t.test('messages and their token ids get the same completion', async (t) => {
  const engine = new EmbeddedEngine()
  const messages = [{ role: 'user' as const, content: 'What is 3 + 4?' }]
  const chat = fold(
    await collect(pull(engine, chatRequest({ messages, tools: [CALCULATOR], max_tokens: 90 }), noAbort)),
  )
  const prompt = [...chat.start!.promptTokenIds!]
  const completion = fold(await collect(pull(engine, completionRequest({ prompt, max_tokens: 90 }), noAbort)))
  t.same(completion.tokenIds, chat.tokenIds)
  t.same(completion.logprobs, chat.logprobs)
  t.equal(
    completion.content,
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3 + 4"}}\n</tool_call>',
  )
  t.equal(completion.end?.finishReason, 'stop', 'a completion has no tool calls')
})

t.test(
  "a forced completion is streamed token by token with the model's logprobs and its own end of turn",
  async (t) => {
    const body = { max_tokens: 100 }
    const playbook = createPlaybook({
      reasoning: 'Let me see.',
      content: 'On it.',
      tool_calls: [{ name: 'calculator', arguments: { expression: '1 + 1' } }],
    })
    const engine = new EmbeddedEngine({ playbook })
    const events = await collect(pull(engine, chatRequest({ ...body, tools: [CALCULATOR] }), noAbort))
    const deltas = events.filter((event) => event.type === 'delta')
    t.ok(
      deltas.every((delta) => delta.tokenIds?.length === 1),
      'one token each, also while the tool call is held back',
    )
    const completion = fold(events)
    t.equal(completion.reasoning, '\nLet me see.\n')
    t.equal(completion.content, '\n\nOn it.')
    t.match(completion.toolCalls, [
      { function: { name: 'calculator', arguments: '{"expression": "1 + 1"}' } },
    ])
    t.equal(completion.end?.finishReason, 'tool_calls')
    t.equal(completion.tokenIds.at(-1), eosTokenId)
    t.same(completion.logprobs, getScores(completion))
  },
)

t.test('tool calls stay text where no tools are offered or tool_choice is none', async (t) => {
  const playbook = createPlaybook({ tool_calls: [{ name: 'calculator', arguments: {} }] })
  for (const body of [{}, { tools: [CALCULATOR], tool_choice: 'none' }]) {
    const completion = await run({ playbook }, { ...body, max_tokens: 100 })
    t.match(completion.content, /<tool_call>/)
    t.same(completion.toolCalls, [])
    t.equal(completion.end?.finishReason, 'stop')
  }
})

t.test('a rule may cut its completion off', async (t) => {
  const completion = await run(
    { playbook: createPlaybook({ content: 'a long answer', cut_after_tokens: 2 }) },
    { max_tokens: 50 },
  )
  t.equal(completion.tokenIds.length, 2)
  t.match(completion.end, { finishReason: 'length', stopReason: null })
})

t.test('a tool call that max_tokens cuts in two ends with length', async (t) => {
  const playbook = createPlaybook({
    tool_calls: [{ name: 'calculator', arguments: { expression: '1 + 1' } }],
  })
  const completion = await run({ playbook }, { tools: [CALCULATOR], max_tokens: 6 })
  t.equal(completion.end?.finishReason, 'length')
  t.equal(completion.tokenIds.length, 6)
})

t.test('a stop string ends the completion, is removed from its text, and is reported', async (t) => {
  const completion = await run(
    { playbook: createPlaybook({ content: 'one two three four' }) },
    { stop: ['three', 'zzz'], max_tokens: 50 },
  )
  t.equal(completion.content, 'one two ')
  t.match(completion.end, { finishReason: 'stop', stopReason: 'three' })
  t.match(tokenizer.decode(completion.tokenIds), /^one two three/, 'the sampled tokens keep it')
})

t.test(
  'text that was held back for a stop string is sent when the stop string does not follow',
  async (t) => {
    const playbook = createPlaybook({ content: 'it was the EN' })
    t.equal((await run({ playbook }, { stop: 'END', max_tokens: 50 })).content, 'it was the EN')
  },
)

t.test('a stop token ends the completion and is the last of its ids', async (t) => {
  const [two] = tokenizer.encode(' two')
  const completion = await run(
    { playbook: createPlaybook({ content: 'one two three' }) },
    { stop_token_ids: [two], max_tokens: 50 },
  )
  t.equal(completion.content, 'one')
  t.equal(completion.tokenIds.at(-1), two)
  t.match(completion.end, { finishReason: 'stop', stopReason: two })
})

t.test('ignore_eos continues past the end of the turn, min_tokens delays it', async (t) => {
  const playbook = createPlaybook({ content: 'Hi.' })
  const ignoring = await run({ playbook }, { ignore_eos: true, max_tokens: 40 })
  t.equal(ignoring.tokenIds.length, 40)
  t.equal(ignoring.end?.finishReason, 'length')
  const none = new Playbook({ rules: [] })
  for (const seed of [1, 2, 3]) {
    const sampled = await run({ playbook: none }, { seed, min_tokens: 30, max_tokens: 35 })
    t.ok(sampled.tokenIds.length >= 30)
    t.notOk(sampled.tokenIds.slice(0, 29).includes(eosTokenId))
  }
})

t.test('a character of several tokens is sent when it is complete', async (t) => {
  const events = await collect(
    pull(
      new EmbeddedEngine({ playbook: createPlaybook({ content: 'a🙂b' }) }),
      chatRequest({ max_tokens: 50 }),
      noAbort,
    ),
  )
  const texts = events.flatMap((event) => (event.type === 'delta' ? [event.content ?? ''] : []))
  t.equal(texts.join(''), 'a🙂b')
  t.ok(texts.every((text) => !text.includes('\ufffd')))
  const cut = await run({ playbook: createPlaybook({ content: '🙂' }) }, { max_tokens: 2 })
  t.equal(cut.content, '\ufffd', 'a character that is cut off is shown as a replacement')
})

t.test('top_logprobs lists the most probable tokens, also beside a forced one', async (t) => {
  const body = { logprobs: true, top_logprobs: 3, max_tokens: 2 }
  const [first] = (await run({ playbook: createPlaybook({ content: 'zebra' }) }, body)).logprobsContent
  t.equal(first?.top_logprobs.length, 3)
  const logprobs = first!.top_logprobs.map((entry) => entry.logprob)
  t.same(
    logprobs,
    logprobs.toSorted((a, b) => b - a),
  )
  t.ok(first!.logprob < logprobs[2]!)
  const asIds = await run({}, { ...body, return_tokens_as_token_ids: true })
  t.same(
    asIds.logprobsContent.map((entry) => entry.token),
    asIds.tokenIds.map((id) => `token_id:${id}`),
  )
})

t.test('a request that cannot be served is rejected before sampling', async (t) => {
  const engine = new EmbeddedEngine({ contextLength: 100 })
  const rejected: [Parameters<EmbeddedEngine['generate']>[0], object][] = [
    [chatRequest({ max_tokens: 99 }), { param: 'input_tokens' }],
    [chatRequest({ continue_final_message: true }), { param: 'continue_final_message' }],
    [chatRequest({ n: 2 }), { param: 'n' }],
    [completionRequest({ prompt: '' }), { param: 'prompt' }],
    [completionRequest({ prompt: [] }), { param: 'prompt' }],
    [completionRequest({ prompt: [99_999] }), { message: 'Token id 99999 is out of vocabulary' }],
    [completionRequest({ prompt: [-1] }), { param: 'prompt' }],
    [completionRequest({ prompt: 'x', echo: true }), { param: 'echo' }],
  ]
  for (const [request, error] of rejected) {
    await t.rejects(collect(pull(engine, request, noAbort)), {
      code: 'engine_rejected',
      status: 400,
      ...error,
    })
  }
  t.equal(engine.running, 0)
})

t.test('a completion request stops after 16 tokens unless it sets another limit', async (t) => {
  const request = completionRequest({ prompt: 'Once', max_tokens: null, ignore_eos: true })
  t.equal(fold(await collect(pull(new EmbeddedEngine(), request, noAbort))).tokenIds.length, 16)
})

t.test('the first token comes after the latency and the others at the given pace', async (t) => {
  const engine = new EmbeddedEngine({ latencyMs: 40, tokensPerSecond: 200, cannedTokens: 11 })
  const startedAtMs = performance.now()
  let firstAtMs: number | undefined
  for await (const _ of pull(engine, chatRequest({ max_tokens: 11 }), noAbort))
    firstAtMs ??= performance.now()
  // Timers may fire a millisecond early.
  t.ok(firstAtMs! - startedAtMs >= 38)
  t.ok(performance.now() - startedAtMs >= 38 + 10 * 5)
})

t.test('an abort during the latency takes effect immediately', async (t) => {
  const engine = new EmbeddedEngine({ latencyMs: 60_000 })
  const controller = new AbortController()
  const pulled = collect(pull(engine, chatRequest({}), controller.signal))
  pulled.catch(() => {})
  await eventually(() => engine.running === 1)
  controller.abort(new Error('left'))
  await t.rejects(pulled, { message: 'left' })
  t.equal(engine.running, 0)
})

t.test('a fast completion yields to other tasks', async (t) => {
  const engine = new EmbeddedEngine({ cannedTokens: 5_000 })
  let iterations = 0
  const count = () => {
    iterations++
    timer = setImmediate(count)
  }
  let timer = setImmediate(count)
  await collect(pull(engine, chatRequest({ max_tokens: 5_000 }), noAbort))
  clearImmediate(timer)
  t.ok(iterations > 50, `${iterations} iterations of the event loop`)
})

t.test(
  'the weight version is reported at the start, and again at the end with its value at that time',
  async (t) => {
    const engine = new EmbeddedEngine({ weightVersion: 'v1', cannedTokens: 100 })
    const events = []
    for await (const batch of pull(engine, chatRequest({ max_tokens: 100 }), noAbort)) {
      events.push(...batch)
      engine.weightVersion = 'v2'
    }
    const completion = fold(events)
    t.equal(completion.start?.weightVersion, 'v1')
    t.equal(completion.end?.weightVersion, 'v2')
    t.match(await engine.checkHealth(noAbort), { weightVersion: 'v2', models: [{ maxModelLen: 131_072 }] })
  },
)

t.test('a canned completion has exactly its length and ends its turn', async (t) => {
  const completion = await run({ cannedTokens: 50 }, { max_tokens: 1_000 })
  t.equal(completion.tokenIds.length, 50)
  t.equal(completion.end?.finishReason, 'stop')
  t.same(completion.logprobs, getScores(completion))
})

t.test(
  "a limit beyond the context is reduced in token mode, where an agent does not know the prompt's length",
  async (t) => {
    const engine = new EmbeddedEngine({ contextLength: 12 })
    const sendRequest = async (prompt: number[]) =>
      fold(
        await collect(pull(engine, tokenRequest(prompt, { max_tokens: 32_000, ignore_eos: true }), noAbort)),
      )
    const completion = await sendRequest([5, 6, 7])
    t.equal(completion.tokenIds.length, 9)
    t.equal(completion.end?.finishReason, 'length')
    await t.rejects(sendRequest(Array(12).fill(5)), { code: 'engine_rejected' })
  },
)
