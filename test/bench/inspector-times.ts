/**
 * `node test/bench/inspector-times.ts FILE`: measures the inspector's screens on a database that `big-database.ts`
 * created, from opening the address to showing the content. RESULTS.md contains the table that it prints.
 */
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { type CDPSession, chromium } from 'playwright-core'
import { startLlmProxy } from '../helpers/llm-proxy.ts'

const RUNS = 3
/** The unit of CPU time in Linux's `/proc`. */
const TICKS_PER_S = 100

const SCREENS = [
  { name: 'sessions, 10,000', hash: '#/sessions', shown: '.sessions-table .virtual .row a' },
  { name: 'groups, 1,250', hash: '#/groups', shown: '.groups-table .virtual .row a' },
  { name: "a session's tree, 1,000 turns", hash: '#/session/long', shown: '.turn-list .virtual .row' },
  { name: 'its complete transcript', hash: '#/session/long', shown: '.transcript .turn' },
  { name: 'tokens of a row of 100,000', hash: '#/tokens/half/0', shown: '.heat-map span' },
  { name: 'tokens of a row of 200,000', hash: '#/tokens/long/0', shown: '.heat-map span' },
]

const path = process.argv[2]
if (path === undefined) throw new Error('pass a database that test/bench/big-database.ts created')
const server = startLlmProxy(['view', '--db', path, '--port', '0'])
server.stderr.pipe(process.stderr)
const { value: ready } = await createInterface({ input: server.stdout })[Symbol.asyncIterator]().next()
const url = /http:\S+\/ui/.exec(String(ready))![0]
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] })
const processes = await browser.newBrowserCDPSession()
try {
  console.log('| screen | time | processor, browser | processor, server |\n|---|---|---|---|')
  for (const { name, hash, shown } of SCREENS) {
    const runs: number[][] = []
    for (let run = 0; run < RUNS; run += 1) {
      const page = await browser.newPage()
      const [start, browserStart, serverStart] = [
        performance.now(),
        await getBrowserSeconds(processes),
        getServerSeconds(),
      ]
      await page.goto(url + hash, { waitUntil: 'commit' })
      await page.locator(shown).first().waitFor()
      const tookS = (performance.now() - start) / 1_000
      runs.push([
        tookS,
        (await getBrowserSeconds(processes)) - browserStart,
        getServerSeconds() - serverStart,
      ])
      await page.close()
    }
    const getMedian = (figure: number) => runs.map((run) => run[figure]!).sort((a, b) => a - b)[RUNS >> 1]!
    console.log(`| ${name} | ${[0, 1, 2].map((figure) => `${getMedian(figure).toFixed(2)} s`).join(' | ')} |`)
  }
} finally {
  await browser.close()
  server.kill()
}

/** Returns the CPU time of all the browser's processes together. */
async function getBrowserSeconds(session: CDPSession): Promise<number> {
  const { processInfo } = await session.send('SystemInfo.getProcessInfo')
  return processInfo.reduce((sum, { cpuTime }) => sum + cpuTime, 0)
}

/** Returns the server's CPU time. The launcher's process is the server, because it replaces itself. */
function getServerSeconds(): number {
  const fields = readFileSync(`/proc/${server.pid}/stat`, 'utf8').split(') ')[1]!.split(' ')
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_S
}
