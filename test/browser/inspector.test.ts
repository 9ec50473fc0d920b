/** The inspector in a real browser: every screen, by keyboard, on sessions of real runs and with hostile output. */
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { type Browser, chromium, type Page } from 'playwright-core'
import t, { type Test } from 'tap'
import { packTokenData } from '../../src/protocol/token-data/token-data.ts'
import { KEYS } from '../helpers/keys.ts'
import { runLlmProxy } from '../helpers/llm-proxy.ts'
import { startProxy } from '../helpers/proxy.ts'
import { completeResponse } from '../helpers/scripted-backend.ts'
import { recordTurn, startSessionsApi } from '../helpers/sessions-api.ts'
import { until } from '../helpers/until.ts'

const CHROMIUM = '/usr/bin/chromium'

/** Screenshots for people; git ignores the folder. */
const PICTURES = join(import.meta.dirname, '../../dist/screenshots')

const HOSTILE = `<script>document.title = 'owned'</script><img src=x onerror="document.title = 'owned'">\u202eevil\u0000`

const ids = (from: number, count: number) => Int32Array.from({ length: count }, (_, i) => from + i)

async function startInspector(t: Test, server: Parameters<typeof startSessionsApi>[3] = {}) {
  const tokenTexts = async (_model: string | null, tokens: Int32Array) => ({
    source: 'letters',
    texts: [...tokens].map((id) => ` w${id}`),
  })
  const api = await startSessionsApi(t, undefined, {}, { tokenTexts, ...server })
  for (const [index, reward] of [0.25, 1].entries()) {
    const sessionId = `run-${index}`
    const metadata = { instance_id: 'sea' }
    await api.sessions.create({ sessionId, metadata })
    const messages = [JSON.stringify({ role: 'user', content: 'What is the sea?' })]
    await recordTurn(api.store, sessionId, 0, {
      requestMessages: messages,
      promptTokenIds: ids(0, 20),
      completionTokenIds: Int32Array.of(100, 101, 102 + index),
      completionLogprobs: Float64Array.of(-0.1, -7, -0.2),
      completionText: index === 0 ? HOSTILE : 'Water.',
    })
    await recordTurn(api.store, sessionId, 1, {
      requestMessages: [...messages, JSON.stringify({ role: 'user', content: 'y'.repeat(1_000_000) })],
      promptTokenIds: Int32Array.from([...ids(0, 12), 9, 9]),
      completionTokenIds: ids(200, 2),
      completionLogprobs: Float64Array.of(-1, -1),
    })
    await api.sessions.setReward(sessionId, { reward, components: { correct: reward } })
  }
  return api
}

async function openPage(t: Test, browser: Browser) {
  const page = await browser.newPage({ viewport: { width: 1360, height: 820 } })
  const texts: string[] = []
  page.on('console', (message) => texts.push(message.text()))
  page.on('pageerror', (error) => texts.push(String(error)))
  t.teardown(() => page.close())
  const isSilent = () =>
    t.same(texts, [], 'the console is silent: no error, no violation of the content security policy')
  return { page, isSilent }
}

/**
 * Presses keys one after the other, each as soon as the page has handled the previous one, without a frame in between.
 */
const pressFast = (page: Page, keys: readonly string[]) =>
  page.evaluate(`(async () => {
    const { port1, port2 } = new MessageChannel()
    for (const key of ${JSON.stringify(keys)}) {
      const handled = new Promise((resolve) => (port2.onmessage = resolve))
      document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))
      port1.postMessage(undefined)
      await handled
    }
  })()`)

/** Waits until an element is completely within its scrolling box. @returns whether it remains there */
async function isShown(page: Page, selector: string, box: string): Promise<boolean> {
  await page.locator(selector).first().waitFor()
  return page.evaluate<boolean>(`(async () => {
    const nextFrame = () => new Promise(requestAnimationFrame)
    const isInside = () => {
      const element = document.querySelector(${JSON.stringify(selector)})
      const inner = element.getBoundingClientRect()
      const outer = element.closest(${JSON.stringify(box)}).getBoundingClientRect()
      return inner.top >= outer.top && inner.bottom <= Math.min(outer.bottom, innerHeight)
    }
    for (let frame = 0; frame < 120 && !isInside(); frame += 1) await nextFrame()
    for (let frame = 0; frame < 3; frame += 1) await nextFrame()
    return isInside()
  })()`)
}

const picture = (page: Page, name: string) => page.screenshot({ path: join(PICTURES, `${name}.png`) })

t.test('the inspector', { skip: !existsSync(CHROMIUM) && 'there is no chromium' }, async (t) => {
  mkdirSync(PICTURES, { recursive: true })
  const browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] })
  t.teardown(() => browser.close())

  t.test('navigates from the list to a session and its tokens by keyboard, below a base path', async (t) => {
    const { url } = await startInspector(t, { basePath: '/llm' })
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${url}/ui/`)
    await page.getByText('run-1').waitFor()
    await page.getByText('What is the sea? → hello').first().waitFor()
    await picture(page, 'sessions')
    await page.setViewportSize({ width: 390, height: 820 })
    await picture(page, 'sessions-narrow')
    t.equal(await page.evaluate('document.documentElement.scrollWidth'), 390, 'the page fits a narrow window')
    await page.setViewportSize({ width: 1360, height: 820 })
    await page.keyboard.press('Escape')
    t.match(page.url(), /\/ui/, 'Escape on the list stays in the inspector')
    await page.keyboard.press('j')
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { name: 'run-0' }).waitFor()
    await page.locator('.broke').waitFor()
    await page.locator('.rowlink').first().waitFor()
    t.match(
      await page.locator('.broke').getAttribute('title'),
      /a new row: the response of turn 0 is missing before message 2 .*: 12 tokens re-used/,
    )
    await picture(page, 'session')
    await page.keyboard.press('Enter')
    await page.locator('.heat-map span').first().waitFor()
    await page.keyboard.press('n')
    t.equal(await page.locator('.heat-map .here').textContent(), ' w101', 'n moves to the unlikely token')
    t.match(page.url(), /t=21/, 'the address links to it')
    await picture(page, 'tokens')
    await page.keyboard.press('?')
    await page.getByText('Next unlikely token').waitFor()
    isSilent()
  })

  t.test('has all the text of a long row, and elements only for tokens near the viewport', async (t) => {
    const { url, store, sessions } = await startInspector(t)
    await sessions.create({ sessionId: 'long' })
    const completionLogprobs = new Float64Array(40_000).fill(-0.5)
    await recordTurn(store, 'long', 0, {
      promptTokenIds: ids(0, 100),
      completionTokenIds: ids(100, 40_000),
      completionLogprobs: completionLogprobs.fill(-9, -1),
    })
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${url}/ui#/tokens/long/0`)
    await page.locator('.heat-map span').first().waitFor()
    const map = page.locator('.heat-map')
    t.equal(await map.textContent(), Array.from(ids(0, 40_100), (id) => ` w${id}`).join(''))
    t.ok((await map.locator('span').count()) < 10_000)
    await page.keyboard.press('n')
    await page.locator('.heat-map .here').waitFor()
    t.equal(await page.locator('.heat-map .here').textContent(), ' w40099')
    await page.keyboard.press('m')
    await page.locator('.heat-map .here.trained').waitFor()
    // A row of one block, which is higher than its estimate and than the box.
    await sessions.create({ sessionId: 'wide' })
    await recordTurn(store, 'wide', 0, { promptTokenIds: ids(1e9, 300), completionTokenIds: ids(1e9, 95) })
    for (const address of ['long/0?t=600', 'long/0?t=20000', 'long/0?t=40099', 'wide/0?t=390']) {
      const { page: linked } = await openPage(t, browser)
      await linked.goto(`${url}/ui#/tokens/${address}`)
      t.ok(await isShown(linked, '.heat-map .here', '.text-scroll'), address)
    }
    isSilent()
  })

  t.test('a link to a turn shows it', async (t) => {
    const { url, store, sessions } = await startInspector(t)
    await sessions.create({ sessionId: 'turns' })
    const requestMessages: string[] = []
    for (let index = 0; index < 60; index += 1) {
      requestMessages.push(
        JSON.stringify({ role: 'user', content: `line ${index}\n`.repeat(1 + (index % 20)) }),
      )
      const turn = { requestMessages: [...requestMessages], completionText: `answer ${index}` }
      await recordTurn(store, 'turns', index, turn)
      requestMessages.push(JSON.stringify({ role: 'assistant', content: turn.completionText }))
    }
    for (const turn of [1, 30, 59]) {
      const { page, isSilent } = await openPage(t, browser)
      await page.goto(`${url}/ui#/session/turns?turn=${turn}`)
      t.ok(await isShown(page, `[data-turn="${turn}"] header`, '.conversation'), `turn ${turn}`)
      isSilent()
    }
  })

  t.test(
    'shows the engine requests of a response that continued, and the weights of each token',
    async (t) => {
      const { url, store, sessions } = await startInspector(t)
      await sessions.create({ sessionId: 'continued' })
      const request = (start: number, end: number, version: string, reason: string) => ({
        ...{ start, end, engine: 'e', weight_version: version, request_id: `r${start}`, end_reason: reason },
      })
      await recordTurn(store, 'continued', 0, {
        promptTokenIds: ids(0, 3),
        completionTokenIds: Int32Array.of(10, 11),
        completionLogprobs: Float64Array.of(-1, -1),
        ...{ weightVersionStart: '6', weightVersionEnd: '7' },
        annotations: JSON.stringify({
          engine_requests: [request(0, 1, '6', 'abort'), request(1, 2, '7', 'stop')],
        }),
      })
      const { page, isSilent } = await openPage(t, browser)
      await page.goto(`${url}/ui#/session/continued`)
      const tag = page.getByText('2 engine requests')
      await tag.waitFor()
      const title = await tag.locator('..').getAttribute('title')
      t.equal(title, 'tokens 0 to 1, e, weights 6, abort\ntokens 1 to 2, e, weights 7, stop')
      for (const [token, version, part] of [
        [3, 6, 1],
        [4, 7, 2],
      ]) {
        await page.goto(`${url}/ui#/tokens/continued/0?by=weights&t=${token}`)
        await page.getByText(`weights ${version}`, { exact: true }).waitFor()
        await page.getByText(`engine request ${part} of 2`).waitFor()
        await page.locator(`.heat-map .k${part! - 1}`).waitFor()
      }
      isSilent()
    },
  )

  t.test('loads and shows alternatives once the pointer is on a token', async (t) => {
    const { url, store, sessions } = await startInspector(t)
    await sessions.create({ sessionId: 'top-logprobs' })
    await recordTurn(store, 'top-logprobs', 0, {
      promptTokenIds: ids(0, 3),
      completionTokenIds: Int32Array.of(10, 11),
      completionLogprobs: Float64Array.of(-1, -1),
      details: packTokenData({
        top_logprobs: { counts: [2, 0], ids: [20, 10], logprobs: [Math.log(0.5), Math.log(0.25)] },
      }),
    })
    const { page, isSilent } = await openPage(t, browser)
    const requests: string[] = []
    page.on('request', (request) => {
      if (request.url().includes('/alternatives')) requests.push(request.url())
    })
    await page.goto(`${url}/ui#/tokens/top-logprobs/0`)
    const tokens = page.locator('.heat-map span')
    await tokens.first().waitFor()
    t.equal(requests.length, 0)
    await tokens.nth(3).hover()
    const shown = page.locator('.alternatives > span')
    await shown.nth(2).waitFor()
    t.strictSame(await shown.allTextContents(), ['alternatives', '" w20" p 0.5', '" w10" p 0.25'])
    t.equal(await page.locator('.alternatives .sampled').textContent(), '" w10" p 0.25')
    await tokens.nth(4).hover()
    await shown.first().waitFor({ state: 'detached' })
    await tokens.nth(3).hover()
    await shown.nth(2).waitFor()
    t.equal(requests.length, 1, 'loaded alternatives are not requested again')
    isSilent()
  })

  t.test("colours tokens by the trainer's data", async (t) => {
    const { url, store, sessions } = await startInspector(t)
    await sessions.create({ sessionId: 'known' })
    await recordTurn(store, 'known', 0, {
      promptTokenIds: ids(0, 3),
      completionTokenIds: ids(10, 4),
      completionLogprobs: new Float64Array(4).fill(-1),
      details: packTokenData({
        advantages: [1.5, -0.5, Number.NaN, 0.5],
        teacher_logprobs: { teacher: 'wise', logprobs: [-1, -2, -3, -4] },
      }),
    })
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${url}/ui#/tokens/known/0`)
    const tokens = page.locator('.heat-map span')
    await tokens.first().waitFor()
    await page.getByRole('button', { name: 'advantages' }).click()
    const classes = await tokens.evaluateAll((spans) => spans.map((span) => span.className))
    t.same(classes, ['read', 'read', 'read', 'p0', 'p9', 'read', 'p5'])
    t.match(await page.locator('.legend').textContent(), /^1\.5.*-0\.5/)
    await tokens.nth(4).hover()
    t.match(await page.locator('.token-bar').textContent(), /teacher logprobs -2.*advantages -0\.5/)
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme })
      await picture(page, `advantages-${colorScheme}`)
    }
    isSilent()
  })

  t.test('shows hostile output as text, with hidden characters made visible', async (t) => {
    const { url } = await startInspector(t)
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${url}/ui#/session/run-0`)
    const text = page.locator('.message.sampled pre.text').first()
    await text.waitFor()
    t.match(await text.textContent(), /^<script>.*⟨U\+202E⟩evil⟨NUL⟩$/)
    t.equal(await page.title(), 'llm-proxy')
    t.equal(await page.locator('.conversation script, .conversation img').count(), 0)
    await page.getByText('more characters').waitFor()
    isSilent()
  })

  t.test('shows the requests of coding agents legibly, and why a row was split', async (t) => {
    const { url, store, sessions } = await startInspector(t)
    await sessions.create({ sessionId: 'code' })
    const pixel =
      'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='
    const call = (id: string, name: string, input: object) => ({
      id,
      type: 'function',
      function: { name, arguments: JSON.stringify(input) },
    })
    const edit = {
      file_path: 'src/sea.ts',
      old_string: 'export function depth() {\n  return 3\n}',
      new_string: 'export function depth(): number {\n  return 4_000\n}',
    }
    const calls = [
      call('a', 'Edit', edit),
      call('b', 'Write', { file_path: 'a.py', content: 'import os\n\ndef main():\n    print(1)\n' }),
      call('c', 'apply_patch', {
        input: '*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** End Patch',
      }),
    ]
    const image = { type: 'image_url', image_url: { url: `data:image/png;base64,${pixel}` } }
    const first = JSON.stringify({
      role: 'user',
      content: [
        {
          type: 'text',
          text: '# Fix the depth\n- one\n- **two**\n\n[here](javascript:alert(1)) <img src=x> \u{1F469}\u200D\u{1F4BB}',
        },
        image,
      ],
    })
    await recordTurn(store, 'code', 0, {
      requestMessages: [first],
      params: '{"model":"m","temperature":0.5}',
      tools: '[{"type":"function","function":{"name":"Edit","description":"Edits a file."}}]',
      promptTokenIds: ids(0, 20),
      completionText: 'I edit three files.',
      toolCalls: JSON.stringify(calls),
    })
    const echo = {
      kinds: ['edited', 'arguments'],
      from: 'code-0',
      changes: [
        { kind: 'arguments', call: 'a', path: 'new_string', sampled: '"return 4_000"', echoed: '"cut"' },
      ],
    }
    const result = {
      role: 'tool',
      tool_call_id: 'a',
      content: '  1  export\n\u001b[32m 20\u001b[0m  function',
    }
    await recordTurn(store, 'code', 1, {
      requestMessages: [
        first,
        JSON.stringify({ role: 'assistant', content: 'I edit three files.', tool_calls: calls.slice(0, 1) }),
        JSON.stringify(result),
      ],
      promptTokenIds: Int32Array.from([...ids(0, 20), 9]),
      completionText: '\u001b[1m**All** of it\u001b[0m',
      annotations: JSON.stringify({ prompt: { reason: 'branched' }, echo }),
    })
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${url}/ui#/session/code`)
    const sampled = page.locator('.message.sampled').first()
    await sampled.locator('.call').nth(2).waitFor()
    t.same(await sampled.locator('dt').allTextContents(), [
      'file_path',
      'old_string → new_string',
      'file_path',
      'content',
      'input',
    ])
    t.same(await sampled.locator('.diff .removed').allTextContents(), [
      '-export function depth() {\n',
      '-  return 3\n',
      '-x = 1\n',
    ])
    const settings = page.locator('.settings').first()
    t.equal(await settings.locator('summary').textContent(), 'model m · temperature 0.5 · 1 tool')
    await settings.locator('summary').click()
    await settings.getByText('Edits a file.').waitFor()
    await page.keyboard.press('m')
    await page.locator('.message.user .markdown').waitFor()
    t.same(await page.locator('.message.user .markdown li').allTextContents(), ['one', 'two'])
    t.equal(await page.locator('.conversation a[href^="javascript"], .conversation .markdown img').count(), 0)
    t.match(
      await page.locator('.message.user .markdown').textContent(),
      /here \(javascript:alert\(1\)\) <img src=x>/,
    )
    t.equal(await page.locator('.message.sampled .markdown').nth(1).textContent(), 'All of it', 'no colours')
    await picture(page, 'transcript-markdown')
    await page.keyboard.press('m')
    t.same(await sampled.locator('.diff .added').allTextContents(), [
      '+export function depth(): number {\n',
      '+  return 4_000\n',
      '+x = 2\n',
    ])
    t.equal(
      await sampled.locator('dd pre.arguments').nth(2).textContent(),
      'import os\n\ndef main():\n    print(1)\n',
    )
    t.equal(await page.locator('.message.tool pre').textContent(), '  1  export\n 20  function')
    await page.getByText('tool calls changed by the agent: edited, arguments').waitFor()
    t.equal(await page.locator('.message.user img').count(), 1)
    t.match(await page.locator('.message.user pre').first().textContent(), /\u{1F469}\u200D\u{1F4BB}$/u)
    t.match(
      await page.locator('.split-why').textContent(),
      /^✂ a new row: the agent changed Edit's arguments: new_string \(turn 0\)Edit\.new_string-return 4_000\n\+cut/,
    )
    const font = await page.evaluate(
      "getComputedStyle(document.querySelector('.message.tool pre')).fontFamily",
    )
    t.match(String(font), /mono/i)
    await picture(page, 'transcript')
    await page.emulateMedia({ colorScheme: 'dark' })
    await page.setViewportSize({ width: 800, height: 600 })
    await picture(page, 'transcript-dark-small')
    isSilent()
  })

  t.test('shows the rewards of turns beside them, where they exist', async (t) => {
    const { url, sessions } = await startInspector(t)
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${url}/ui#/session/run-0`)
    await page.locator('.turn-list .cells').nth(1).waitFor()
    t.equal(await page.locator('.turn-list.rewarded').count(), 0)
    await sessions.setReward('run-0', { reward: 1, components: {}, turns: { 1: -0.5 } })
    await page.locator('.turn-list.rewarded').waitFor()
    const cells = page.locator('.turn-list .cells')
    t.match(await cells.nth(0).textContent(), /–/)
    t.match(await cells.nth(1).textContent(), /-0\.5|−0\.5/)
    t.match(await page.locator('.turn[data-turn="1"] header').textContent(), /reward [-−]0\.5/)
    t.notMatch(await page.locator('.turn[data-turn="0"] header').textContent(), /reward/)
    await picture(page, 'session-rewarded')
    isSilent()
  })

  t.test('accepts labels and notes for a session and its turns, and finds sessions by them', async (t) => {
    const { url, store } = await startInspector(t)
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${url}/ui#/session/run-0`)
    const turn = page.locator('.turn[data-turn="1"] header')
    await turn.waitFor()
    await page.keyboard.press('j')
    await page.keyboard.press('l')
    await page.locator('.labels-form input:focus').waitFor()
    await page.keyboard.type('cheat, odd,')
    await page.getByLabel('note', { exact: true }).fill('edits the\ntest')
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme })
      await picture(page, `${colorScheme}-label`)
    }
    await page.getByRole('button', { name: 'save' }).click()
    await turn.getByText('cheat').waitFor()
    t.match(await turn.locator('q').innerText(), 'edits the\ntest')
    await page.locator('.turn-list [title="cheat, odd: edits the\\atest"]').waitFor()
    await page.keyboard.press('L')
    await page.locator('.facts .labels-form input:focus').waitFor()
    await page.keyboard.type('<b>seen</b>')
    await page.keyboard.press('Enter')
    await page.locator('.facts .tag.label').waitFor()
    const turnMarks = { labels: ['cheat', 'odd'], note: 'edits the\ntest' }
    t.match((await store.getSession('run-0'))!.marks, {
      labels: ['<b>seen</b>'],
      note: null,
      turns: { 1: turnMarks },
    })
    await page.keyboard.press('L')
    await page.locator('.labels-form').waitFor()
    await page.keyboard.press('Escape')
    await page.locator('.labels-form').waitFor({ state: 'detached' })
    await picture(page, 'session-labelled')
    await page.goto(`${url}/ui/`)
    await page.getByText('run-1').waitFor()
    await page.getByRole('button', { name: '⚑ odd' }).click()
    await page.getByText('run-1').waitFor({ state: 'detached' })
    t.match(await page.locator('.sessions-table').innerText(), /run-0/)
    await picture(page, 'sessions-labelled')
    isSilent()
  })

  t.test('shows when the requests of a session ran, side by side where they overlapped', async (t) => {
    const { url, store, sessions } = await startInspector(t)
    await sessions.create({ sessionId: 'helpers' })
    const startedAtMs = Date.UTC(2026, 0, 1)
    const recordSpan = async (index: number, fromMs: number, firstMs: number, toMs: number) => {
      const at = (ms: number) => startedAtMs + ms
      await recordTurn(store, 'helpers', index, {
        requestMessages: [JSON.stringify({ role: 'user', content: `part ${index}` })],
        promptTokenIds: ids(0, 20),
        ...{ startedAtMs: at(fromMs), firstTokenAtMs: at(firstMs), endedAtMs: at(toMs) },
      })
    }
    await recordSpan(0, 0, 1_000, 4_000)
    await recordSpan(1, 4_000, 5_000, 10_000)
    await recordSpan(2, 4_000, 8_000, 20_000)
    await sessions.setReward('helpers', { reward: 1, components: {}, turns: { 1: -0.5 } })
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${url}/ui#/session/helpers`)
    await page.locator('.turn-list .cells').nth(2).waitFor()
    await page.keyboard.press('w')
    const bars = page.locator('.turn-list .prefix-bar')
    await page.locator('.turn-list .prefix-bar title').nth(2).waitFor({ state: 'attached' })
    const getBarPositions = (kind: string) =>
      bars
        .locator(kind)
        .evaluateAll((bars) => bars.map((bar) => [bar.getAttribute('x'), bar.getAttribute('width')]))
    t.same(await getBarPositions('.new'), [
      ['0', '10'],
      ['40', '10'],
      ['40', '40'],
    ])
    t.same(await getBarPositions('.sampled'), [
      ['10', '30'],
      ['50', '50'],
      ['80', '120'],
    ])
    t.equal(
      await bars.nth(2).getAttribute('aria-label'),
      'began after 4.0 s, first token after 4.0 s, took 16 s',
    )
    const legend = page.locator('.turn-list .head span').nth(1)
    t.match(await legend.textContent(), /^waiting sampling$/)
    await page.getByRole('button', { name: 'waterfall of 20 s' }).waitFor()
    for (const [width, height] of [
      [1440, 900],
      [800, 600],
    ] as const)
      for (const colorScheme of ['light', 'dark'] as const) {
        await page.setViewportSize({ width, height })
        await page.emulateMedia({ colorScheme })
        const cut = await legend.evaluate(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)
        t.equal(cut, 0, `the legend fits ${width} pixels`)
        await picture(page, `waterfall-${width}-${colorScheme}`)
      }
    await page.keyboard.press('w')
    await page.locator('.turn-list .prefix-bar .reused').first().waitFor({ state: 'attached' })
    isSilent()
  })

  t.test('shows groups, their samples, and where two of them diverge', async (t) => {
    const { url } = await startInspector(t, {
      getHealthFields: () => ({ engines: [{ name: 'a', warning: 'its streams lose ids' }] }),
    })
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${url}/ui#/groups`)
    await page.getByText('sea', { exact: true }).click()
    await page.getByRole('heading', { name: 'instance_id = sea' }).waitFor()
    await page.getByText('0.707', { exact: true }).waitFor()
    await picture(page, 'group')
    await page.keyboard.press('v')
    const columns = page.locator('.columns article')
    await columns.nth(1).waitFor()
    t.match(await columns.nth(0).textContent(), /^run-1 reward 1 · correct 1hello.*turn 0 textturn 1 text$/)
    t.match(await columns.nth(1).textContent(), /^run-0 reward 0\.25/)
    await picture(page, 'answers')
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { name: 'run-1' }).waitFor()
    await page.getByText('sample 1 of 2').waitFor()
    await page.keyboard.press(']')
    await page.getByRole('heading', { name: 'run-0' }).waitFor()
    await page.getByText('sample 2 of 2').click()
    await columns.nth(1).waitFor()
    await page.keyboard.press('v')
    await page.getByText('0.707', { exact: true }).waitFor()
    // The position of the pointer must not affect the keys.
    await page.getByRole('row').nth(2).hover()
    await page.keyboard.press('c')
    await page.getByText('comparing run-1 with').waitFor()
    await page.keyboard.press('j')
    await page.keyboard.press('c')
    t.match(await page.locator('.verdict').textContent(), /first token that differs is 22/)
    await picture(page, 'compare')
    await page.goto(`${url}/ui#/engines`)
    await page.getByText('Prompts by origin').waitFor()
    await page.getByText('a: its streams lose ids').waitFor()
    await page.emulateMedia({ colorScheme: 'dark' })
    await picture(page, 'engines-dark')
    isSilent()
  })

  t.test('shows what happened where a completion has no text, instead of an empty box', async (t) => {
    const { url, store, sessions } = await startSessionsApi(t)
    const call = { id: 'a', type: 'function', function: { name: 'ls', arguments: '{}' } }
    const samples = {
      silent: { completionText: '' },
      thinking: { completionText: '', reasoning: 'Hm.', finishReason: 'length' },
      calling: { completionText: '\n\n', toolCalls: JSON.stringify([call]), finishReason: 'tool_calls' },
      failed: {
        completionText: '',
        status: 'failed' as const,
        finishReason: null,
        error: { code: 'engine_failed' as const, message: 'CUDA out of memory' },
      },
    }
    for (const [sessionId, turn] of Object.entries(samples)) {
      await sessions.create({ sessionId, metadata: { task: 'sea' } })
      await recordTurn(store, sessionId, 0, turn)
    }
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${url}/ui/#/group/task/%22sea%22?view=answers`)
    await page.locator('.columns .steps li').nth(3).waitFor()
    const columns = await page
      .locator('.columns article')
      .evaluateAll((columns) =>
        columns.map((column) =>
          ['header a', '.answer', '.steps li'].map((part) => column.querySelector(part)!.textContent),
        ),
      )
    t.same(Object.fromEntries(columns.map(([id, ...shown]) => [id, shown])), {
      silent: ['no text (finish reason: stop)', 'turn 0 no text (finish reason: stop)'],
      thinking: [
        'no text, only reasoning (finish reason: length)',
        'turn 0 no text, only reasoning (finish reason: length)',
      ],
      calling: ['only white space as text, only 1 tool call (finish reason: tool_calls)', 'turn 0 ls '],
      failed: ['no completed turn: turn 0 failedCUDA out of memory', 'turn 0 engine_failed '],
    })
    await picture(page, 'answers-without-text')
    const sampled = page.locator('.message.sampled')
    for (const [sessionId, shown] of Object.entries({
      silent: 'sampledno text (finish reason: stop)',
      thinking: 'sampledHm.no text, only reasoning (finish reason: length)',
      calling: 'sampledlstool_calls',
      failed: 'sampledCUDA out of memory',
    })) {
      await page.goto(`${url}/ui/#/session/${sessionId}`)
      await page.getByRole('heading', { name: sessionId }).waitFor()
      await sampled.waitFor()
      t.equal(await sampled.textContent(), shown)
    }
    isSilent()
  })

  t.test('handles keys that arrive faster than the screen is painted', async (t) => {
    const { url } = await startInspector(t)
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${url}/ui#/group/instance_id/%22sea%22`)
    await page.getByText('0.707', { exact: true }).waitFor()
    await pressFast(page, ['c', 'j', 'c', '1'])
    await page.getByPlaceholder('Search').waitFor()
    await page.goBack()
    t.match(await page.locator('.verdict').textContent(), /first token that differs is 22/)
    await page.goto(`${url}/ui#/session/run-0`)
    await page.locator('.rowlink').first().waitFor()
    await pressFast(page, ['j', 'j', 'k', 'j', 'Enter'])
    await page.locator('.heat-map span').first().waitFor()
    t.match(page.url(), /turn=1$/)
    await pressFast(page, ['ArrowLeft', 'ArrowLeft', 'ArrowLeft', 'ArrowRight'])
    t.match(page.url(), /t=12$/)
    isSilent()
  })

  t.test('shows a session that was exported into one file', async (t) => {
    const { url } = await startInspector(t)
    const path = join(t.testdir({}), 'run.html')
    const args = ['sessions', 'export', '--format', 'html', '--url', url, '--output', path]
    t.match(await runLlmProxy([...args, 'run-0', 'run-1']), { code: 0, stderr: '' })
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`file://${path}`)
    await page.getByText('run-1').waitFor()
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { name: 'run-0' }).waitFor()
    await page.locator('.rowlink').first().waitFor()
    t.match(await page.locator('.message.sampled pre.text').first().textContent(), /^<script>/)
    await page.keyboard.press('Enter')
    await page.locator('.heat-map span').first().waitFor()
    await page.keyboard.press('n')
    t.equal(await page.locator('.heat-map .here').textContent(), ' w101')
    isSilent()
  })

  t.test('follows a running turn, and shows it with the others once it has ended', async (t) => {
    const api = await startInspector(t)
    const steps = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    api.backend.script = async function* () {
      const [start, first, second, end] = completeResponse()
      yield [start!, first!]
      await steps[0]!.promise
      yield [second!]
      await steps[1]!.promise
      yield [end!]
    }
    t.teardown(() => {
      for (const { resolve } of steps) resolve()
    })
    const messages = [{ role: 'user', content: 'Say hello.' }]
    const response = api.call('POST', '/running/v1/chat/completions', { messages })
    await until(async () => (await api.call('GET', '/sessions/running/tree')).body.open_turns === 1)
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${api.url}/ui/#/session/running`)
    const tail = page.locator('.live-tail pre')
    await tail.getByText('hi').waitFor()
    t.equal(await page.locator('.message.sampled').textContent(), 'sampledin flight', 'no empty box')
    await picture(page, 'live')
    steps[0]!.resolve()
    await tail.getByText('hi there').waitFor()
    steps[1]!.resolve()
    t.equal((await response).status, 200)
    await tail.waitFor({ state: 'detached' })
    await page.locator('.message.sampled pre.text').getByText('hi there').waitFor()
    isSilent()
  })

  t.test('shows the rollouts of a proxy that runs them, and hides the view otherwise', async (t) => {
    const none = await startProxy(t, { db: 'memory' })
    const command =
      'curl -sf "$OPENAI_BASE_URL/chat/completions" -d \'{"model":"m","messages":[{"role":"user","content":"x"}]}\''
    const runner = { runner: 'command', command, verifier: 'true', sandbox: 'none', maxRetries: 0 } as const
    const proxy = await startProxy(t, { ...runner, db: 'memory' })
    const sample = { instance_id: 'sea' }
    await proxy.post('/rollouts', { sample, rollout_id: 'step-1/sea#0' })
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${none.url}/ui/`)
    await page.getByRole('link', { name: 'Engines' }).waitFor()
    t.equal(await page.getByRole('link', { name: 'Rollouts' }).count(), 0)
    await page.goto(`${proxy.url}/ui/`)
    await page.getByRole('link', { name: 'Rollouts' }).waitFor()
    await page.keyboard.press('5')
    const row = page.getByRole('row', { name: /step-1\/sea#0/ })
    await row.waitFor()
    t.match(await row.innerText(), /sea\s+done\s+1\s+1\s/)
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme })
      await picture(page, `${colorScheme}-rollouts`)
    }
    await row.getByRole('link').click()
    await page.getByRole('heading', { name: /^sea-/ }).waitFor()
    isSilent()
  })

  t.test('shows rewards and lengths over the steps of a run, with links to each', async (t) => {
    const { url, store, sessions } = await startInspector(t)
    for (let step = 1; step <= 12; step += 1) {
      const sessionId = `step-${step}`
      await sessions.create({ sessionId, metadata: { step } })
      const finishReason = step === 3 ? 'length' : 'stop'
      await recordTurn(store, sessionId, 0, { completionTokenIds: ids(0, 2 * step), finishReason })
      await sessions.setReward(sessionId, { reward: step / 12, components: { '<b>tests': step % 2 } })
    }
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${url}/ui/#/groups?by=step`)
    const chart = page.locator('.trend .u-over')
    await chart.waitFor()
    await page.getByRole('button', { name: 'tokens per session' }).click()
    await page.getByRole('button', { name: 'reward: <b>tests' }).click()
    await page.getByRole('button', { name: 'truncated turns' }).click()
    await page.getByText('of the latest 16 sessions of each').waitFor()
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme })
      await picture(page, `${colorScheme}-trend`)
    }
    await page.setViewportSize({ width: 800, height: 600 })
    await picture(page, 'trend-small')
    await page.setViewportSize({ width: 1360, height: 820 })
    const { width } = (await chart.boundingBox())!
    await chart.click({ position: { x: width - 2, y: 20 } })
    await page.getByRole('heading', { name: 'step = 12' }).waitFor()
    await page.goto(`${url}/ui/#/groups?by=instance_id`)
    await page.getByText('sea').first().waitFor()
    t.equal(await page.locator('.trend').count(), 0, 'there is no trend over texts')
    isSilent()
  })

  t.test('finds text, page by page, and links to the turn', async (t) => {
    const { url, store, sessions } = await startInspector(t)
    for (let index = 0; index < 102; index += 1) {
      await sessions.create({ sessionId: `text-${index}` })
      await recordTurn(store, `text-${index}`, 0, { completionText: `Depth ${index} <b>here</b>` })
    }
    const { page, isSilent } = await openPage(t, browser)
    await page.goto(`${url}/ui/`)
    await page.getByText('text-101').waitFor()
    await page.keyboard.press('6')
    await page.locator('input[type=search]:focus').waitFor()
    await page.keyboard.type('owned')
    await page.keyboard.press('Enter')
    const hits = page.locator('.hits li')
    await hits.first().waitFor()
    t.match(await hits.first().innerText(), /run-0 · turn 0 sampled, .*<script>document\.title = 'owned'/s)
    t.equal(await page.locator('mark').first().textContent(), 'owned')
    await page.keyboard.press('/')
    await page.locator('input[type=search]:focus').waitFor()
    await page.keyboard.type('DEPTH')
    await page.keyboard.press('Enter')
    await page.getByText('text-101').waitFor()
    t.equal(await hits.count(), 100)
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme })
      await picture(page, `${colorScheme}-search`)
    }
    await page.getByRole('button', { name: 'More' }).click()
    await page.getByText('text-0 ·').waitFor()
    t.equal(await hits.count(), 102)
    await page.getByRole('link', { name: 'text-0 ·' }).click()
    await page.getByRole('heading', { name: 'text-0' }).waitFor()
    await page.goto(`${url}/ui/#/search?text=nowhere`)
    await page.getByText('No matches').waitFor()
    isSilent()
  })

  t.test('reports an unreachable proxy, retains its content, and resumes', async (t) => {
    const { url, sessions } = await startInspector(t)
    const { page } = await openPage(t, browser)
    await page.goto(`${url}/ui/`)
    await page.getByText('run-1').waitFor()
    await page.route('**/*', (route) => route.abort('connectionrefused'))
    await sessions.create({ sessionId: 'meanwhile' })
    await page.getByText('Proxy unreachable').waitFor()
    t.ok(await page.getByText('run-1').isVisible(), 'the content remains')
    await picture(page, 'unreachable')
    await page.unroute('**/*')
    await page.getByText('meanwhile').waitFor()
    await page.getByText('Proxy unreachable').waitFor({ state: 'detached' })
  })

  t.test('asks for a key where keys are required, and accepts one with the view permission', async (t) => {
    const { url } = await startInspector(t, { keys: KEYS })
    const page = await browser.newPage()
    t.teardown(() => page.close())
    await page.goto(`${url}/ui`)
    await page.getByLabel('Key').fill(KEYS.viewKeys[0]!)
    await page.keyboard.press('Enter')
    await page.getByText('run-1').waitFor()
    t.notOk((await page.content()).includes(KEYS.viewKeys[0]!))
    await page.goto(`${url}/ui#/session/run-1`)
    await page.getByRole('heading', { name: 'run-1' }).waitFor()
    await page.keyboard.press('L')
    await page.locator('.facts .labels-form input:focus').waitFor()
    await page.keyboard.type('cheat')
    await page.keyboard.press('Enter')
    await page.getByText('A view key is for reading only').waitFor()
  })
})
