/** Exports in other projects' formats. Tests in test/agents/readers and python/tests parse them there. */
import t from 'tap'
import { recordTurn, type SessionsApi, startSessionsApi } from '../helpers/sessions-api.ts'
import { recordToolSession } from '../helpers/tool-session.ts'

// biome-ignore lint/suspicious/noExplicitAny: documents of any shape
type Json = any

async function readLines({ url }: SessionsApi, path: string): Promise<Json[]> {
  const response = await fetch(url + path)
  t.equal(response.status, 200)
  t.match(response.headers.get('content-type'), 'application/x-ndjson')
  const text = await response.text()
  if (text !== '') t.ok(text.endsWith('\n'))
  return text
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line))
}

t.test(`a session in ATIF has one step per message, and each result at its tool call`, async (t) => {
  const api = await startSessionsApi(t)
  await recordToolSession(api, 'a/b', 1)
  const [document] = await readLines(api, '/sessions/a%2Fb/export?format=atif')
  t.match(document, {
    schema_version: 'ATIF-v1.7',
    session_id: 'a/b',
    trajectory_id: 'a/b:main',
    agent: { name: 'mini', version: '1.0', model_name: 'm' },
    final_metrics: { total_steps: 6, total_cached_tokens: 8 },
    extra: { status: 'completed', reward: 1, reward_components: { tests: 1 }, metadata: { task: 'fix' } },
  })
  t.strictSame(
    document.steps.map(({ step_id, source, message }: Json) => [step_id, source, message]),
    [
      [1, 'system', 'You fix things.'],
      [2, 'user', 'Fix it.'],
      [3, 'agent', 'Looking.'],
      [4, 'agent', 'Done 1.'],
      [5, 'user', 'No ids'],
      [6, 'agent', 'None'],
    ],
  )
  const [, , first, second, , last] = document.steps
  t.strictSame(first.tool_calls, [
    { tool_call_id: 'call_a', function_name: 'run', arguments: { command: 'ls' } },
    { tool_call_id: 'call_b', function_name: 'run', arguments: {}, extra: { arguments: '{"command":' } },
  ])
  t.strictSame(first.observation.results, [
    { source_call_id: 'call_a', content: 'a.txt' },
    { source_call_id: 'call_b', content: 'bad arguments' },
  ])
  t.strictSame(first.metrics, {
    prompt_tokens: 20,
    completion_tokens: 2,
    cached_tokens: 8,
    prompt_token_ids: Array.from({ length: 20 }, (_, id) => id),
    completion_token_ids: [100, 101],
    logprobs: [-0.5, -0.25],
  })
  t.equal(first.reasoning_content, 'First look.')
  t.strictSame(second.metrics.completion_token_ids, [201])
  t.strictSame(last.metrics, {}, 'a turn without exact ids has none')
  t.equal(last.extra.inexact_reason, 'the engine sent no ids')
  t.match(document.subagent_trajectories, [
    {
      trajectory_id: 'a/b:subagent:finder',
      steps: [{ source: 'system' }, { source: 'user' }, { source: 'agent' }],
    },
  ])
  const [withoutIds] = await readLines(api, '/sessions/a%2Fb/export?format=atif&ids=false&select=main')
  t.notOk(JSON.stringify(withoutIds).includes('token_ids'))
  t.equal(withoutIds.subagent_trajectories, undefined)
  const [full] = await readLines(api, '/sessions/a%2Fb/export?format=atif&side_calls=true')
  t.equal(full.subagent_trajectories.length, 2)
})

t.test(`a training trace has each trained turn once, with the prompt of its completion`, async (t) => {
  const api = await startSessionsApi(t)
  await recordToolSession(api, 's', 1)
  const [trace] = await readLines(api, '/sessions/s/export?format=training_trace')
  t.equal(trace.schema_version, 1)
  t.strictSame(
    trace.turns.map((turn: Json) => [turn.node_id, turn.completion_token_ids, turn.per_token_logps]),
    [
      ['s-0', [100, 101], [-0.5, -0.25]],
      ['s-1', [201], [-1]],
      ['s-2', [502], [-0.5]],
    ],
  )
  const [first, second] = trace.turns
  t.strictSame(second.prompt_token_ids, [...first.prompt_token_ids, ...first.completion_token_ids, 900])
  t.strictSame(second.loss_mask, [...Array(23).fill(0), 1])
  t.strictSame(first.request.messages[0], { role: 'system', content: 'You fix things.' })
  t.equal(first.request.tools[0].function.name, 'run')
  t.match(first.response.choices, [
    {
      message: { role: 'assistant', content: 'Looking.', tool_calls: [{ id: 'call_a' }, {}] },
      finish_reason: 'tool_calls',
    },
  ])
  t.match(first.metadata, { index: 0, line: 'main', model: 'm', weight_version_start: '7' })
})

t.test(`rows to fine-tune on have the sampled tokens as labels, and no others`, async (t) => {
  const api = await startSessionsApi(t)
  await recordToolSession(api, 's', 1)
  const [main, helper, ...others] = await readLines(api, '/sessions/s/export?format=sft')
  t.match(main, { session_id: 's', line: 'main', num_turns: 2, reward: 1 })
  t.equal(main.input_ids.length, main.labels.length)
  t.strictSame(main.labels.slice(20), [100, 101, -100, 201])
  t.ok(main.labels.slice(0, 20).every((label: number) => label === -100))
  t.strictSame(helper.labels, [-100, -100, 502])
  t.strictSame(others, [], 'side requests and turns without ids are omitted')
})

t.test('a rewritten history is copied context, and its completion is a separate step', async (t) => {
  const api = await startSessionsApi(t)
  await api.sessions.create({ sessionId: 's' })
  const [task, go] = ['{"role":"user","content":"Task"}', '{"role":"user","content":"Go on."}']
  const message = '{"role":"assistant","content":"hello"}'
  await recordTurn(api.store, 's', 0, { requestMessages: [task] })
  const summary = '{"role":"user","content":"In short"}'
  await recordTurn(api.store, 's', 1, { requestMessages: [summary, task, message, go] })
  const [{ steps }] = await readLines(api, '/sessions/s/export?format=atif')
  t.strictSame(
    steps.map(({ source, message, is_copied_context: copied }: Json) => [source, message, copied]),
    [
      ['user', 'Task', undefined],
      ['agent', 'hello', undefined],
      ['user', 'In short', undefined],
      ['user', 'Task', true],
      ['agent', 'hello', true],
      ['user', 'Go on.', undefined],
      ['agent', 'hello', undefined],
    ],
  )
})

t.test('a rejected compaction is a step in ATIF on request only, and rows cannot be selected', async (t) => {
  const api = await startSessionsApi(t)
  await api.sessions.create({ sessionId: 's' })
  const user = (content: string) => JSON.stringify({ role: 'user', content })
  const summaries = [
    'This summary of the work is not used by the agent.',
    'The other summary is the one it uses.',
  ]
  const compaction = { annotations: '{"line":{"told":"compaction","rule":"header"}}' }
  await recordTurn(api.store, 's', 0, { requestMessages: [user('Task')] })
  for (const [index, completionText] of summaries.entries())
    await recordTurn(api.store, 's', index + 1, {
      requestMessages: [user('Task'), user('Sum it up')],
      promptTokenIds: Int32Array.of(50 + index),
      completionText,
      ...compaction,
    })
  await recordTurn(api.store, 's', 3, {
    requestMessages: [user(summaries[1]!)],
    annotations: '{"line":{"told":"main","rule":"header"}}',
  })
  const listMessages = async (query: string) => {
    const [{ steps }] = await readLines(api, `/sessions/s/export?format=atif${query}`)
    return steps.filter(({ source }: Json) => source === 'agent').map(({ message }: Json) => message)
  }
  t.strictSame(await listMessages(''), ['hello', summaries[1], 'hello'])
  t.strictSame(await listMessages('&rejected=true'), ['hello', ...summaries, 'hello'])
  for (const select of ['longest', 'last', 'policy:a']) {
    const rejected = await api.call('GET', `/sessions/s/export?format=atif&select=${select}`)
    t.equal(rejected.status, 400)
    t.match(JSON.stringify(rejected.body), /selects rows, which the format atif does not have/)
  }
})

t.test('images are parts with their addresses; inline images are described by a text', async (t) => {
  const api = await startSessionsApi(t)
  await api.sessions.create({ sessionId: 's' })
  const image = (url: string) => ({ type: 'image_url', image_url: { url } })
  const content = [
    { type: 'text', text: 'Look' },
    image('https://example.com/a.PNG?size=1'),
    image('data:image/jpeg;base64,AAAA'),
    image('https://example.com/b'),
  ]
  await recordTurn(api.store, 's', 0, { requestMessages: [JSON.stringify({ role: 'user', content })] })
  const [{ steps }] = await readLines(api, '/sessions/s/export?format=atif')
  t.strictSame(steps[0].message, [
    { type: 'text', text: 'Look' },
    { type: 'image', source: { media_type: 'image/png', path: 'https://example.com/a.PNG?size=1' } },
    { type: 'text', text: '[image/jpeg, in the record]' },
    { type: 'text', text: '[image at https://example.com/b]' },
  ])
})

t.test('a prompt of Completions is a step with only its new part, followed by its completion', async (t) => {
  const api = await startSessionsApi(t)
  await api.sessions.create({ sessionId: 's' })
  const completion = { dialect: 'completions', requestMessages: [] }
  await recordTurn(api.store, 's', 0, { ...completion, promptPieces: ['"Once'] })
  await recordTurn(api.store, 's', 1, { ...completion, promptPieces: ['"Once upon'] })
  const [{ steps }] = await readLines(api, '/sessions/s/export?format=atif')
  t.strictSame(
    steps.map(({ message }: Json) => message),
    ['Once', 'hello', ' upon', 'hello'],
  )
})

t.test('an export without turns has no lines, and an unknown format is rejected', async (t) => {
  const api = await startSessionsApi(t)
  await api.sessions.create({ sessionId: 's' })
  t.strictSame(await readLines(api, '/sessions/s/export?format=atif'), [])
  t.strictSame(await readLines(api, '/sessions/s/export?format=sft&finished_only=true'), [])
  t.strictSame(await readLines(api, '/sessions/s/export?format=training_trace'), [
    { schema_version: 1, turns: [] },
  ])
  t.equal((await fetch(`${api.url}/sessions/s/export?format=csv`)).status, 400)
  t.equal((await fetch(`${api.url}/sessions/s/export`)).status, 400)
  t.equal((await fetch(`${api.url}/sessions/none/export?format=sft`)).status, 404)
})
