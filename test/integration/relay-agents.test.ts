import t from 'tap'
import { killChild, waitForExit } from '../helpers/children.ts'
import { startEngine } from '../helpers/engine.ts'
import { startLlmProxy } from '../helpers/llm-proxy.ts'
import { startProxy } from '../helpers/proxy.ts'
import {
  createAgent,
  getTurns,
  joinWorker,
  startRelayProxy,
  streamResponse,
  untilWorkers,
} from '../helpers/relay-rig.ts'
import { V1Worker } from '../helpers/v1-worker.ts'

const QUESTION = {
  model: 'any',
  messages: [{ role: 'user' as const, content: 'What is in the box?' }],
  temperature: 0,
  seed: 1,
  max_tokens: 12,
}

t.test('with a version-1 worker chat requests work', async (t) => {
  const proxy = await startRelayProxy(t)
  await V1Worker.connect(`${proxy.url.replace('http', 'ws')}/ws/worker`, 'old', ({ messages }) => ({
    token_ids: [7, 8],
    log_probs: [-0.5, -0.25],
    completion_text: `you said ${messages[0]!.content}`,
  }))
  const response = await createAgent(proxy, 's').chat.completions.create({
    model: 'm',
    messages: [{ role: 'user', content: 'hi' }],
  })
  t.match(response.choices[0], { message: { content: 'you said hi' }, finish_reason: 'stop' })
  t.match(await getTurns(proxy, 's'), [
    {
      status: 'completed',
      engine: 'old',
      completion_text: 'you said hi',
      completion_token_ids: [7, 8],
      completion_logprobs: [-0.5, -0.25],
      exact: false,
    },
  ])
  t.match(await proxy.get('/admin/workers'), [{ worker_id: 'old', version: 1, load: 0 }])
  t.match(await proxy.get('/health'), { mode: 'relay', connected_workers: 1 })
})

t.test("a version-1 worker's response has usage, and an empty text, complete and streamed", async (t) => {
  const proxy = await startRelayProxy(t)
  await V1Worker.connect(`${proxy.url.replace('http', 'ws')}/ws/worker`, 'old', () => ({
    token_ids: [7, 8],
    log_probs: [-0.5, -0.25],
    completion_text: '',
    content_text: '',
  }))
  const body = { model: 'm', messages: [{ role: 'user' as const, content: 'hi' }] }
  const usage = { prompt_tokens: 0, completion_tokens: 2, total_tokens: 2 }
  const full = await createAgent(proxy, 's').chat.completions.create(body)
  t.match(full, { usage, choices: [{ message: { content: '' } }] })
  const options = { stream: true, stream_options: { include_usage: true } } as const
  let last: unknown
  for await (const chunk of await createAgent(proxy, 's').chat.completions.create({ ...body, ...options }))
    last = chunk
  t.match(last, { usage, choices: { length: 0 } })
  t.match(await getTurns(proxy, 's'), [{ usage }, { usage }])
})

t.test('with a version-1 worker streaming and tool calls work', async (t) => {
  const proxy = await startRelayProxy(t)
  const toolCall = { id: 'c1', type: 'function', function: { name: 'open', arguments: '{"box":1}' } }
  let seen: unknown
  await V1Worker.connect(`${proxy.url.replace('http', 'ws')}/ws/worker`, 'old', ({ tools, messages }) => {
    seen = messages
    return tools
      ? { content_text: 'I open it', tool_calls: [toolCall], finish_reason: 'tool_calls' }
      : { completion_text: 'a cat' }
  })
  t.same(await streamResponse(createAgent(proxy, 's')), { text: 'a cat', error: undefined })
  const stream = createAgent(proxy, 's').chat.completions.stream({
    model: 'm',
    messages: [{ role: 'user', content: 'open the box' }],
    tools: [{ type: 'function', function: { name: 'open', parameters: {} } }],
  })
  const { choices } = await stream.finalChatCompletion()
  const expectedCall = { ...toolCall, id: /^call_[0-9a-f]{24}$/ }
  t.match(choices[0], {
    finish_reason: 'tool_calls',
    message: { content: 'I open it', tool_calls: [expectedCall] },
  })
  const { id } = choices[0]!.message.tool_calls![0]!
  const [hi, echo, result] = [
    { role: 'user' as const, content: 'open the box' },
    {
      role: 'assistant' as const,
      content: 'I open it',
      tool_calls: [{ ...toolCall, id, type: 'function' as const }],
    },
    { role: 'tool' as const, tool_call_id: id, content: 'a cat' },
  ]
  await createAgent(proxy, 's').chat.completions.create({ model: 'm', messages: [hi, echo, result] })
  const named = [hi, { ...echo, tool_calls: [toolCall] }, { ...result, tool_call_id: 'c1' }]
  t.same(seen, named, 'the worker reads its own id')
})

t.test('neither an agent nor a trainer can distinguish relay mode from local mode', async (t) => {
  const { url: engineUrl } = await startEngine(t, { model: 'any', weightVersion: '12' })
  const relay = await startRelayProxy(t)
  const local = await startProxy(t, { engineUrls: [engineUrl], db: 'memory' })
  const proxyUrls = [relay.url.replace('http', 'ws')]
  joinWorker(t, { proxyUrls, engineUrls: [engineUrl], workerId: 'w' })
  await untilWorkers(relay, 'w')
  for (const proxy of [local, relay]) {
    const agent = createAgent(proxy, 's')
    await agent.chat.completions.create({ ...QUESTION, logprobs: true })
    await streamResponse(agent, QUESTION)
    await agent.completions.create({ model: 'any', prompt: [5, 6, 7], max_tokens: 4, temperature: 0 })
    await t.rejects(agent.chat.completions.create({ ...QUESTION, model: 'nobody' }), {
      message: /does not exist/,
      status: 404,
    })
  }
  const [inLocal, inRelay] = [await getTurns(local, 's'), await getTurns(relay, 's')]
  t.equal(inLocal.length, 4)
  t.same(inRelay.map(omitVaryingFields), inLocal.map(omitVaryingFields))
  t.equal(inRelay[0].engine, `w/${inLocal[0].engine}`)
  t.equal(inRelay[0].weight_version_start, '12')
  t.ok(inRelay[0].exact)
  t.same(await relay.get('/s/v1/models'), await local.get('/s/v1/models'))
})

t.test('a worker process that gets SIGTERM finishes its request, leaves and exits with 0', async (t) => {
  const { url: engineUrl } = await startEngine(t, { model: 'any', tokensPerSecond: 40 })
  const relay = await startRelayProxy(t)
  const args = ['worker', '--proxy-url', relay.url, '--engine-url', engineUrl, '--worker-id', 'w']
  const process = startLlmProxy([...args, '--log-level', 'error'])
  t.teardown(() => killChild(process))
  await untilWorkers(relay, 'w')
  let stopped = false
  const { text, error } = await streamResponse(
    createAgent(relay, 's'),
    { ...QUESTION, ignore_eos: true },
    () => {
      if (!stopped) process.kill('SIGTERM')
      stopped = true
    },
  )
  t.ok(text)
  t.equal(error, undefined)
  t.same(await waitForExit(process), [0, null])
  t.match(await getTurns(relay, 's'), [{ status: 'completed' }])
  await untilWorkers(relay)
})

t.test('a worker without a proxy URL reports it', async (t) => {
  const process = startLlmProxy(['worker'])
  const [code] = await waitForExit(process)
  t.not(code, 0)
})

/** Removes the fields of a turn that vary from run to run. */
function omitVaryingFields(turn: Record<string, unknown>): object {
  const { turn_id, started_at, ended_at, first_token_at, created_at, latency_ms, engine, ...rest } = turn
  return rest
}
