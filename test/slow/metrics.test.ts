/**
 * The metrics of `GET /metrics` after a run, compared with docs/metrics.md and with the queries of dashboard and
 * alerts.
 */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { Metrics } from '../../src/proxy/metrics/metrics.ts'
import { generatedSection } from '../helpers/generated-text.ts'
import { KEYS } from '../helpers/keys.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import {
  createAgent,
  startRelayProxy,
  startWorkerClient,
  streamResponse,
  untilWorkers,
} from '../helpers/relay-rig.ts'

const ROOT = join(import.meta.dirname, '../..')
const DOCUMENT = join(ROOT, 'docs/metrics.md')
const OPENMETRICS = 'application/openmetrics-text; version=1.0.0'
const hasPromtool = spawnSync('promtool', ['--version']).status === 0
const skip = hasPromtool ? false : 'promtool is not installed'

/** Runs two streamed turns and a complete one, an error, a reward and an end. */
async function recordRun(proxy: TestProxy): Promise<void> {
  const sendRequest = async (path: string, body: object) => {
    const response = await fetch(proxy.url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
    await response.text()
    return response.status
  }
  const messages = [{ role: 'user', content: 'What is 2 + 2?' }]
  const body = { model: 'a-name-by-the-agent', messages, max_tokens: 8 }
  for (const stream of [true, true, false])
    await sendRequest('/task-17~trial/v1/chat/completions', { ...body, stream })
  await sendRequest('/task-17~trial/v1/messages', { model: 'claude', messages, max_tokens: 4 })
  await sendRequest('/task-17~trial/v1/chat/completions', { model: 'x' })
  await proxy.post('/sessions/task-17~trial/reward', { reward: 0.5 })
  await proxy.post('/sessions/task-17~trial/complete')
}

async function scrape(proxy: TestProxy, accept = 'text/plain'): Promise<string> {
  return await (await fetch(`${proxy.url}/metrics`, { headers: { accept } })).text()
}

const getNames = (text: string) => [...text.matchAll(/^# TYPE (\S+)/gm)].map(([, name]) => name!)

/** Returns the value of the only sample whose line starts with `start`. */
function sample(text: string, start: string): number {
  const line = text.split('\n').find((each) => each.startsWith(`${start} `))
  return Number(line?.slice(start.length + 1).split(' ')[0])
}

t.test('a run is counted, and reported in two formats', async (t) => {
  const proxy = await startProxy(t, { tokenizer: 'embedded' })
  await proxy.post('/admin/weight_version', { weight_version: 'step-7' })
  await recordRun(proxy)
  await proxy.get('/sessions/task-17~trial/trajectories?select=last')
  await proxy.post('/admin/weight_version', { weight_version: 'step-10' })
  await proxy.get('/sessions/task-17~trial/trajectories?select=last')
  const text = await scrape(proxy)
  t.equal(sample(text, 'llm_proxy_commit_seconds_count'), sample(text, 'llm_proxy_commit_operations_count'))
  const counts = (expected: Record<string, number>) => {
    for (const [start, value] of Object.entries(expected))
      t.equal(sample(text, `llm_proxy_${start}`), value, start)
  }
  counts({
    'turns_total{dialect="chat",outcome="completed"}': 3,
    'turns_total{dialect="messages",outcome="completed"}': 1,
    'http_errors_total{code="invalid_request"}': 1,
    time_to_first_token_seconds_count: 2,
    turn_duration_seconds_count: 4,
    'overhead_seconds_count{part="before"}': 4,
    'overhead_seconds_count{part="after"}': 4,
    'overhead_seconds_count{part="commit"}': 4,
    queue_wait_seconds_count: 4,
    row_staleness_versions_count: 2,
    row_staleness_versions_sum: 3,
    rows_unversioned_total: 0,
    'turns_by_line_total{line="untold"}': 4,
    sessions_created_total: 1,
    'sessions_ended_total{status="completed"}': 1,
    sessions_active: 0,
    session_turns_sum: 4,
    session_reward_sum: 0.5,
    'turns_in_flight{phase="proxy"}': 0,
    'turns_in_flight{phase="engine"}': 0,
    paused: 0,
    'member_up{member="embedded"}': 1,
    'member_calls_in_flight{member="embedded"}': 0,
    store_failures_total: 0,
  })
  const { turns } = await proxy.get('/sessions/task-17~trial')
  const total = (field: string) =>
    turns.reduce((sum: number, turn: Record<string, number[]>) => sum + turn[field]!.length, 0)
  t.equal(sample(text, 'llm_proxy_completion_tokens_total'), total('completion_token_ids'))
  t.equal(sample(text, 'llm_proxy_prompt_tokens_total'), total('prompt_token_ids'))
  const [reused, rendered] = ['reused', 'rendered'].map((how) =>
    sample(text, `llm_proxy_prompt_tokens_${how}_total`),
  )
  t.equal(reused! + rendered!, total('prompt_token_ids'), 'each token of a prompt was reused or rendered')
  t.ok(sample(text, 'llm_proxy_database_bytes{file="database"}') > 0)
  t.ok(sample(text, 'llm_proxy_commit_operations_count') > 0)
  t.ok(sample(text, 'process_cpu_seconds_total') > 0)
  t.notMatch(
    text,
    /task-17|trial|a-name-by-the-agent|claude/,
    'no label contains names that agents and trainers chose',
  )

  const open = await scrape(proxy, OPENMETRICS)
  t.match(open, /# EOF\n$/)
  t.same(
    getNames(open),
    getNames(text).map((name) => name.replace(/_total$/, '')),
  )
  const exemplar = /^llm_proxy_turn_duration_seconds_bucket\{le="\S+"\} \d+ # \{turn_id="(\S+)"\}/m.exec(open)
  const ids = turns.map((turn: { turn_id: string }) => turn.turn_id)
  t.ok(ids.includes(exemplar?.[1]), 'an exemplar names a recorded turn')
  t.notMatch(text, 'turn_id', 'the older format has no exemplars')
  await t.test('promtool accepts the metrics', { skip }, async (t) => {
    const checked = spawnSync('promtool', ['check', 'metrics'], { input: text, encoding: 'utf8' })
    t.equal(checked.stdout + checked.stderr, '')
    t.equal(checked.status, 0)
  })
})

t.test('docs/metrics.md has every metric, and each is exposed (UPDATE=1 writes it)', async (t) => {
  const { families } = new Metrics()
  const tables = [...Map.groupBy(families, ({ type }) => type)].map(([type, members]) => {
    const rows = members.map(({ name, labelNames, help }) => {
      const labels = labelNames.length === 0 ? '' : `{${labelNames.join(', ')}}`
      // The labels already list the dimensions.
      const description = labelNames.length === 0 ? help : help.replace(/, by .*$/, '')
      return `| \`${name}${labels}\` | ${description} |`
    })
    return [`| ${type} | |`, '|---|---|', ...rows].join('\n')
  })
  const table = tables.join('\n\n')
  t.equal(generatedSection(DOCUMENT, 'every metric', table), table)
  const proxy = await startProxy(t)
  t.same(
    getNames(await scrape(proxy)),
    families.map(({ name }) => name),
  )
  const page = readFileSync(DOCUMENT, 'utf8')
  for (const label of new Set(families.flatMap(({ labelNames }) => labelNames))) {
    t.ok(new RegExp(`^\\|[^|]*\`${label}\``, 'm').test(page), `the values of ${label} are documented`)
  }
})

/** Returns the metrics that a PromQL expression, or a text with some, reads. */
function findMetrics(t: Test, text: string): Set<string> {
  const names = [...text.matchAll(/\b(?:llm_proxy|process)_[a-z_]+\b/g)].map(([name]) => name)
  t.ok(names.length > 0)
  return new Set(names)
}

t.test('the dashboard and the alerts read existing metrics', async (t) => {
  const { families } = new Metrics()
  const series = new Set(
    families.flatMap(({ name, type }) =>
      type === 'histogram' ? ['_bucket', '_sum', '_count'].map((suffix) => name + suffix) : [name],
    ),
  )
  const dashboard = JSON.parse(readFileSync(join(ROOT, 'deploy/grafana/llm-proxy.json'), 'utf8'))
  const queries = [...dashboard.panels.flatMap(({ targets }: { targets: { expr: string }[] }) => targets)]
  for (const { expr } of queries) {
    for (const name of findMetrics(t, expr)) t.ok(series.has(name), `the dashboard reads ${name}`)
  }
  for (const name of findMetrics(t, readFileSync(join(ROOT, 'deploy/alerts.yaml'), 'utf8'))) {
    t.ok(series.has(name), `an alert reads ${name}`)
  }
  await t.test('promtool accepts the rules', { skip }, async (t) => {
    const rules = join(ROOT, 'deploy/alerts.yaml')
    const checked = spawnSync('promtool', ['check', 'rules', rules], { encoding: 'utf8' })
    t.equal(checked.status, 0, checked.stdout + checked.stderr)
  })
})

t.test('rows of weights with an unknown version are counted', async (t) => {
  const proxy = await startProxy(t)
  const body = JSON.stringify({ messages: [{ role: 'user', content: 'hi' }], max_tokens: 4 })
  const headers = { 'content-type': 'application/json' }
  const sendRequest = () => fetch(`${proxy.baseUrl('s')}/chat/completions`, { method: 'POST', headers, body })
  await (await sendRequest()).text()
  await proxy.post('/admin/weight_version', { weight_version: 'step-1' })
  await (await sendRequest()).text()
  t.equal((await proxy.get('/sessions/s/trajectories')).trajectories.length, 2)
  const text = await scrape(proxy)
  t.equal(sample(text, 'llm_proxy_rows_unversioned_total'), 1)
  t.equal(sample(text, 'llm_proxy_row_staleness_versions_count'), 1)
})

t.test('failed requests are counted by their code', async (t) => {
  const proxy = await startProxy(t, { awaitEngines: true, queueWaitMs: 20 })
  const body = JSON.stringify({ messages: [{ role: 'user', content: 'hi' }] })
  const headers = { 'content-type': 'application/json' }
  const response = await fetch(`${proxy.baseUrl('s')}/chat/completions`, { method: 'POST', headers, body })
  t.equal(response.status, 503)
  const text = await scrape(proxy)
  t.equal(sample(text, 'llm_proxy_turns_total{dialect="chat",outcome="failed"}'), 1)
  t.equal(sample(text, 'llm_proxy_turn_errors_total{code="engine_unreachable"}'), 1)
  t.equal(sample(text, 'llm_proxy_http_errors_total{code="engine_unreachable"}'), 1)
  t.equal(
    sample(text, 'llm_proxy_turn_duration_seconds_count'),
    0,
    'a failed turn does not count in the durations of turns',
  )
})

t.test('with keys, metrics require a key that may read', async (t) => {
  const proxy = await startProxy(t, KEYS)
  const statusWith = async (key: string) =>
    (await fetch(`${proxy.url}/metrics`, { headers: { authorization: `Bearer ${key}` } })).status
  t.equal(await statusWith(KEYS.metricsKeys[0]!), 200)
  t.equal(await statusWith(KEYS.viewKeys[0]!), 200)
  t.equal(await statusWith(KEYS.workerKeys[0]!), 403)
  t.equal((await fetch(`${proxy.url}/metrics`)).status, 401)
})

t.test('requests without a slot are counted by reason', async (t) => {
  const proxy = await startProxy(t, { awaitEngines: true, queueWaitMs: 1 })
  const response = await proxy.post('/s/v1/chat/completions', {
    model: 'm',
    messages: [{ role: 'user', content: 'hi' }],
  })
  t.ok(response.error)
  t.equal(sample(await scrape(proxy), 'llm_proxy_queue_refusals_total{code="engine_unreachable"}'), 1)
})

t.test('a proxy in relay mode exposes its workers', async (t) => {
  const proxy = await startRelayProxy(t)
  startWorkerClient(t, proxy.url, 'w1')
  await untilWorkers(proxy, 'w1')
  await streamResponse(createAgent(proxy, 's'))
  const text = await scrape(proxy)
  for (const [start, value] of Object.entries({
    'member_up{member="w1"}': 1,
    'member_capacity{member="w1"}': 64,
    worker_connections_total: 1,
    'turns_total{dialect="chat",outcome="completed"}': 1,
    queue_wait_seconds_count: 1,
    time_to_first_token_seconds_count: 1,
  })) {
    t.equal(sample(text, `llm_proxy_${start}`), value, start)
  }
  t.same(
    getNames(text),
    new Metrics().families.map(({ name }) => name),
  )
})
