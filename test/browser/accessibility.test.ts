/** axe-core checks every screen of the inspector, light and dark, for readability and keyboard access. */
import { existsSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { type Browser, chromium, type Page } from 'playwright-core'
import t, { type Test } from 'tap'
import { recordTurn, startSessionsApi } from '../helpers/sessions-api.ts'
import { recordToolSession } from '../helpers/tool-session.ts'

const CHROMIUM = '/usr/bin/chromium'
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

const SCREENS: readonly { path: string; shows: string; keys?: string; opens?: string }[] = [
  { path: 'sessions', shows: 'run-1' },
  { path: 'session/run-1', shows: 'run-1' },
  { path: 'session/run-1', shows: 'run-1', keys: 'jl', opens: '.labels-form' },
  { path: 'tokens/run-1/0', shows: 'run-1' },
  { path: 'groups?by=instance_id', shows: 'sea' },
  { path: 'groups?by=step', shows: 'staleness, versions' },
  { path: 'group/instance_id/%22sea%22', shows: 'run-2' },
  { path: 'compare?a=run-1%230&b=run-2%230', shows: 'run-2' },
  { path: 'engines', shows: 'Prompts by origin' },
  { path: 'search?text=looking', shows: 'turn 0' },
]

interface Violation {
  id: string
  impact: string | null
  nodes: { target: string[]; failureSummary: string }[]
}

async function findViolations(page: Page, options: object = {}): Promise<object[]> {
  // The page's content security policy would block a script element.
  await page.evaluate(AXE)
  const { violations } = (await page.evaluate(`axe.run(${JSON.stringify(options)})`)) as {
    violations: Violation[]
  }
  return violations.map(({ id, impact, nodes }) => ({
    id,
    impact,
    at: nodes.slice(0, 3).map(({ target, failureSummary }) => `${target}: ${failureSummary}`),
  }))
}

/** In a narrow window more elements scroll, which the keyboard must be able to do. */
const NARROW = { runOnly: ['scrollable-region-focusable'] }

t.test('axe-core', { skip: !existsSync(CHROMIUM) && 'there is no chromium' }, async (t) => {
  const browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] })
  t.teardown(() => browser.close())
  for (const colorScheme of ['light', 'dark'] as const) await checkScreens(t, browser, colorScheme)
})

async function checkScreens(t: Test, browser: Browser, colorScheme: 'light' | 'dark'): Promise<void> {
  const api = await startSessionsApi(t)
  await recordToolSession(api, 'run-1', 1)
  const marks = { labels: ['cheat'], note: 'It edits the test.' }
  await api.sessions.updateMarks('run-1', { ...marks, turns: { 0: marks } })
  for (const step of [1, 2, 3]) {
    await api.sessions.create({ sessionId: `step-${step}`, metadata: { step } })
    await api.sessions.setReward(`step-${step}`, { reward: step, components: { tests: step } })
  }
  await api.sessions.create({ sessionId: 'run-2', metadata: { instance_id: 'sea' } })
  await api.sessions.updateMarks('run-2', marks)
  await recordTurn(api.store, 'run-2', 0, {})
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 }, colorScheme })
  t.teardown(() => page.close())
  for (const { path, shows, keys = '', opens } of SCREENS) {
    await page.goto(`${api.url}/ui/#/${path}`)
    await page.reload()
    await page.getByText(shows).first().waitFor()
    if (opens) await page.locator('.turn').first().waitFor()
    for (const key of keys) await page.keyboard.press(key)
    if (opens) await page.locator(opens).waitFor()
    t.strictSame(await findViolations(page), [], `${path} ${keys}, ${colorScheme}`)
    await page.setViewportSize({ width: 390, height: 844 })
    t.strictSame(await findViolations(page, NARROW), [], `${path} ${keys}, ${colorScheme}, narrow`)
    await page.setViewportSize({ width: 1440, height: 900 })
  }
}
