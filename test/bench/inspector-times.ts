/**
 * `node test/bench/inspector-times.ts FILE`: how long the inspector's screens take on a database that `big-database.ts`
 * made, from the address to what it is looked at for. Prints the table of docs/inspector.md.
 */
import { createInterface } from 'node:readline'
import { chromium } from 'playwright-core'
import { startLlmProxy } from '../helpers/llm-proxy.ts'

const TRIES = 5

const SCREENS = [
  { name: 'sessions, 10,000', hash: '#/sessions', shown: '.sessions-table .virtual .row a' },
  { name: 'groups, 1,250', hash: '#/groups', shown: '.groups-table .virtual .row a' },
  { name: "a session's tree, 1,000 turns", hash: '#/session/long', shown: '.turn-list .virtual .row' },
  { name: 'its whole transcript', hash: '#/session/long', shown: '.transcript .turn' },
  { name: 'tokens of a row of 200,000', hash: '#/tokens/long/0', shown: '.heat-map span' },
]

const path = process.argv[2]
if (path === undefined) throw new Error('name a database that test/bench/big-database.ts made')
const view = startLlmProxy(['view', '--db', path, '--port', '0'])
const { value: ready } = await createInterface({ input: view.stdout })[Symbol.asyncIterator]().next()
const url = /http:\S+\/ui/.exec(String(ready))![0]
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] })
try {
  console.log('| screen | median | fastest |\n|---|---|---|')
  for (const { name, hash, shown } of SCREENS) {
    const times: number[] = []
    for (let attempt = 0; attempt < TRIES; attempt += 1) {
      const page = await browser.newPage()
      const startMs = performance.now()
      await page.goto(url + hash, { waitUntil: 'commit' })
      await page.locator(shown).first().waitFor()
      times.push((performance.now() - startMs) / 1_000)
      await page.close()
    }
    times.sort((a, b) => a - b)
    console.log(`| ${name} | ${times[TRIES >> 1]!.toFixed(2)} s | ${times[0]!.toFixed(2)} s |`)
  }
} finally {
  await browser.close()
  view.kill()
}
