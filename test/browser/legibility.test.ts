/** All texts on every screen of the inspector are legible and reachable: light, dark and at the width of a telephone. */
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { type Browser, chromium, type Page } from 'playwright-core'
import t, { type Test } from 'tap'
import { packTokenData } from '../../src/protocol/token-data/token-data.ts'
import { findCutTexts, findFaintTexts } from '../helpers/page-legibility.ts'
import { completeResponse, untilAborted } from '../helpers/scripted-backend.ts'
import { recordTurn, type SessionsApi, startSessionsApi } from '../helpers/sessions-api.ts'
import { recordToolSession } from '../helpers/tool-session.ts'

const CHROMIUM = '/usr/bin/chromium'
const PICTURES = join(import.meta.dirname, '../../dist/screenshots/legibility')

interface Screen {
  path: string
  /** Selector of an element that is visible when the screen is complete. */
  shows: string
  keys?: readonly string[]
  /** Selector of an element that is visible after the keys and the click. */
  opens?: string
  /** Text of a button to click. */
  click?: string
}

const SCREENS: Readonly<Record<string, Screen>> = {
  sessions: { path: 'sessions', shows: '.preview' },
  filtered: { path: 'sessions?label=cheat&status=completed', shows: '.cells' },
  help: { path: 'sessions', shows: '.preview', keys: ['?'], opens: '.keys' },
  session: { path: 'session/run-1', shows: '.rowlink' },
  markdown: { path: 'session/run-1', shows: '.turn', keys: ['m', 's'], opens: '.markdown' },
  waterfall: { path: 'session/run-1', shows: '.turn', keys: ['w'], opens: '.prefix-bar title' },
  labels: { path: 'session/run-1', shows: '.turn', keys: ['l'], opens: '.labels-form' },
  code: { path: 'session/code', shows: '.split-why' },
  raw: { path: 'session/run-1', shows: '.turn', click: 'raw JSON', opens: '.dialog pre' },
  logprob: { path: 'tokens/known/0?t=5', shows: '.heat-map .here' },
  mask: { path: 'tokens/run-1/0?by=mask', shows: '.heat-map span' },
  turn: { path: 'tokens/run-1/0?by=turn', shows: '.heat-map span' },
  weights: { path: 'tokens/run-1/0?by=weights', shows: '.heat-map span' },
  advantages: { path: 'tokens/known/0?by=advantages&t=5', shows: '.alternatives .sampled' },
  groups: { path: 'groups?by=instance_id', shows: '.cells' },
  trend: { path: 'groups?by=step', shows: '.trend .u-over' },
  group: { path: 'group/instance_id/%22sea%22', shows: '.measure' },
  columns: { path: 'group/instance_id/%22sea%22?view=answers', shows: '.columns .steps li' },
  compare: { path: 'compare?a=run-1%230&b=known%230', shows: '.turn-difference' },
  'compare-none': { path: 'compare', shows: '.empty' },
  engines: { path: 'engines', shows: '.plain-table .id' },
  rollouts: { path: 'rollouts', shows: '.plain-table .id' },
  search: { path: 'search?text=looking', shows: '.hits mark' },
  'search-none': { path: 'search', shows: '.empty' },
  rewarded: { path: 'session/step-1', shows: '.turn-list.rewarded .cells' },
  running: { path: 'session/running', shows: '.live-tail .caret' },
  missing: { path: 'session/missing', shows: '.empty strong' },
}

const MEMBER = {
  worker_id: 'http://10.0.0.7:8000',
  url: 'http://10.0.0.7:8000',
  kind: 'engine',
  engine: 'vllm',
  version: 2,
  healthy: true,
  draining: false,
  error: null,
  load: 3,
  max_concurrency: 64,
  models: ['Qwen/Qwen3-30B-A3B-Instruct-2507'],
  weight_version: '7',
  connected_since: 1_764_000_000,
}
const RESPONSES = {
  'admin/workers': [
    MEMBER,
    { ...MEMBER, worker_id: 'b', url: '', healthy: false, error: 'connect ECONNREFUSED 10.0.0.8:8000' },
    { ...MEMBER, worker_id: 'c', url: '', draining: true },
  ],
  rollouts: {
    rollouts: ['done', 'running', 'failed', 'cancelled'].map((status, index) => ({
      rollout_id: `step-1/sea#${index}`,
      status,
      created_at: 1_764_000_000,
      ended_at: 1_764_000_100,
      instance_id: 'sea',
      session_id: `runs/one/sea-${index}-0123456789abcdef`,
      reward: index,
      tries: 1,
      error: status === 'failed' ? 'the command exited with code 1: no such file or directory' : null,
    })),
  },
}

async function recordAll(api: SessionsApi): Promise<void> {
  await recordToolSession(api, 'run-1', 1)
  const marks = { labels: ['cheat'], note: 'It edits the test.' }
  await api.sessions.updateMarks('run-1', { ...marks, turns: { 0: marks } })
  for (const step of [1, 2, 3]) {
    await api.sessions.create({ sessionId: `step-${step}`, metadata: { step } })
    await recordTurn(api.store, `step-${step}`, 0, {})
    const turns = { 0: -step }
    await api.sessions.setReward(`step-${step}`, { reward: step, components: { tests: step }, turns })
  }
  const ids = (from: number, count: number) => Int32Array.from({ length: count }, (_, index) => from + index)
  await api.sessions.create({ sessionId: 'known', metadata: { instance_id: 'sea' } })
  await recordTurn(api.store, 'known', 0, {
    promptTokenIds: ids(0, 3),
    completionTokenIds: ids(10, 12),
    completionLogprobs: Float64Array.from({ length: 12 }, (_, index) => -index / 1.7),
    completionText: 'It is deep.\n'.repeat(30),
    weightVersionStart: '7',
    weightVersionEnd: '8',
    details: packTokenData({
      advantages: Array.from({ length: 12 }, (_, index) => index - 6),
      top_logprobs: {
        counts: Array.from({ length: 12 }, () => 2),
        ids: Array.from({ length: 12 }, (_, index) => [90, 10 + index]).flat(),
        logprobs: Array.from({ length: 12 }, () => [-0.5, -1]).flat(),
      },
    }),
  })
  await api.sessions.setReward('known', { reward: -1, components: { correct: -1, format: 0 } })
  await api.sessions.create({ sessionId: 'silent', metadata: { instance_id: 'sea' } })
  await recordTurn(api.store, 'silent', 0, { completionText: '', finishReason: 'length' })
  await api.sessions.updateMarks('silent', marks)
  await api.sessions.create({ sessionId: 'failed', metadata: { instance_id: 'sea' } })
  await recordTurn(api.store, 'failed', 0, {
    status: 'failed',
    completionText: '',
    finishReason: null,
    error: { code: 'engine_failed', message: 'CUDA out of memory' },
  } as never)
  await api.sessions.abort('failed')
  await recordCode(api)
}

/** Starts a request that ends with the test. */
async function startRunningTurn({ backend, call }: SessionsApi): Promise<void> {
  const started = Promise.withResolvers<void>()
  backend.script = async function* (_request, signal) {
    const [start, first] = completeResponse()
    yield [start!, first!]
    started.resolve()
    await untilAborted(signal)
  }
  const messages = [{ role: 'user', content: 'Say hello.' }]
  call('POST', '/running/v1/chat/completions', { messages }).catch(() => {})
  await started.promise
}

async function recordCode({ store, sessions }: SessionsApi): Promise<void> {
  const edit = { file_path: 'src/sea.ts', old_string: 'return 3', new_string: 'return 4_000' }
  const call = { id: 'a', type: 'function', function: { name: 'Edit', arguments: JSON.stringify(edit) } }
  const user = JSON.stringify({ role: 'user', content: '# Depth\n- `one`\n> two\n\n```\nthree\n```\n[a](b)' })
  await sessions.create({ sessionId: 'code', metadata: { instance_id: 'a-long-name/of-a-task__1234' } })
  await recordTurn(store, 'code', 0, {
    requestMessages: [user],
    promptTokenIds: Int32Array.of(1, 2, 3),
    reasoning: 'I think.',
    completionText: '',
    toolCalls: JSON.stringify([call]),
    finishReason: 'tool_calls',
  })
  const changes = [
    { kind: 'arguments', call: 'a', path: 'new_string', sampled: '"return 4_000"', echoed: '"cut"' },
  ]
  await recordTurn(store, 'code', 1, {
    requestMessages: [
      user,
      JSON.stringify({ role: 'assistant', content: null, tool_calls: [call] }),
      JSON.stringify({ role: 'tool', tool_call_id: 'a', content: '\u001b[32mok\u001b[0m' }),
    ],
    promptTokenIds: Int32Array.of(1, 2, 3, 9),
    annotations: JSON.stringify({
      prompt: { reason: 'branched' },
      echo: { kinds: ['edited', 'arguments'], from: 'code-0', changes },
    }),
  })
}

t.test('legibility', { skip: !existsSync(CHROMIUM) && 'there is no chromium' }, async (t) => {
  mkdirSync(PICTURES, { recursive: true })
  const browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] })
  t.teardown(() => browser.close())
  const tokenTexts = async (_model: string | null, tokens: Int32Array) => ({
    source: 'letters',
    texts: [...tokens].map((id) => (id % 7 === 5 ? '\n' : ` w${id}`)),
  })
  const getHealthFields = () => ({
    engines: [{ name: 'a', warning: 'its streams lose ids' }],
    notes: ['A note.'],
  })
  const api = await startSessionsApi(t, undefined, {}, { tokenTexts, getHealthFields })
  await recordAll(api)
  await startRunningTurn(api)

  const page = await openPage(t, browser)
  const picture = (name: string) => page.screenshot({ path: join(PICTURES, `${name}.png`) })

  for (const [name, screen] of Object.entries(SCREENS)) {
    t.test(`${name}: texts have a contrast of 4.5, and all fit a telephone`, async (t) => {
      await page.setViewportSize({ width: 1440, height: 900 })
      await show(page, api.url, screen)
      for (const colorScheme of ['dark', 'light'] as const) {
        await page.emulateMedia({ colorScheme })
        t.strictSame(await findFaintTexts(page), [], colorScheme)
        await picture(`${name}-${colorScheme}`)
      }
      await page.setViewportSize({ width: 390, height: 844 })
      t.strictSame(await findCutTexts(page), [])
      await picture(`${name}-narrow`)
    })
  }
})

async function openPage(t: Test, browser: Browser): Promise<Page> {
  const page = await browser.newPage()
  t.teardown(() => page.close())
  for (const [path, response] of Object.entries(RESPONSES))
    await page.route(`**/${path}`, (route) => route.fulfill({ json: response }))
  return page
}

async function show(
  page: Page,
  url: string,
  { path, shows, keys = [], opens, click }: Screen,
): Promise<void> {
  await page.goto(`${url}/ui/#/${path}`)
  await page.reload()
  await page.locator(shows).first().waitFor({ state: 'attached' })
  for (const key of keys) await page.keyboard.press(key)
  if (click) await page.getByRole('button', { name: click }).first().click()
  if (opens) await page.locator(opens).first().waitFor({ state: 'attached' })
}
