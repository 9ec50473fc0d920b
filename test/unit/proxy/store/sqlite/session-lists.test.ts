import { join } from 'node:path'
import t from 'tap'
import type { SessionFilter } from '../../../../../src/proxy/store/port/turn-store.ts'
import { openSqliteStore } from '../../../../../src/proxy/store/sqlite/open.ts'
import { createSession } from '../../../../conformance/turn-store.ts'
import { inProcess } from '../../../../helpers/store-in-process.ts'

/** More sessions than one step examines. */
const SESSIONS = 4_500

t.test('lists of many sessions are complete, and block no other work', async (t) => {
  const store = await openSqliteStore({
    path: join(t.testdir(), 'turns.db'),
    durability: 'process',
    spawn: inProcess,
  })
  t.teardown(() => store.close())
  await Promise.all(
    Array.from({ length: SESSIONS }, (_, index) =>
      store.createSession(createSession(`s${index}`, { createdAtMs: index, metadata: { task: index % 3 } })),
    ),
  )
  await store.setReward('s4000', { reward: 1, components: {} }, 9_000)

  await t.test('totals and groups count each session once', async (t) => {
    t.match(await store.totalSessions({}), { sessions: SESSIONS, active: SESSIONS, rewards: { count: 1 } })
    t.match(await store.totalSessions({ text: 's44' }), { sessions: 111 })
    t.strictSame(await store.countSessions(0), { sessions: SESSIONS, active: SESSIONS, expired: 0 })
    const groups = await store.groupSessions('task', {})
    t.strictSame(
      groups.map(({ sessions }) => sessions),
      [1_500, 1_500, 1_500],
    )
    t.match(
      groups.find(({ value }) => value === 1),
      { createdAtMs: 1, rewards: { mean: 1 } },
    )
  })

  await t.test('pages of a filtered list join, at any position in the list', async (t) => {
    const all = async (filter: SessionFilter, limit: number) => {
      const found: string[] = []
      let cursor: string | undefined
      do {
        const page = await store.listSessions({ ...filter, limit, ...(cursor && { cursor }) })
        t.ok(page.sessions.length > 0, 'a page with a cursor before it has sessions')
        found.push(...page.sessions.map(({ sessionId }) => sessionId))
        cursor = page.nextCursor
      } while (cursor !== undefined)
      return found
    }
    const ids = Array.from({ length: SESSIONS }, (_, index) => `s${index}`)
    const listMatching = (text: string) => ids.filter((id) => id.includes(text)).reverse()
    t.strictSame(await all({ text: '12' }, 7), listMatching('12'))
    t.strictSame(await all({ text: 's12' }, 1_000), listMatching('s12'))
    t.strictSame(await all({ text: 's0' }, 1), ['s0'], 'the very last one')
    t.strictSame(
      await all({ metadata: { task: 1 } }, 500),
      ids.filter((_, index) => index % 3 === 1).reverse(),
    )
    t.strictSame(await store.listSessions({ text: 'nothing', limit: 10 }), { sessions: [] })
  })

  for (const [what, sendRequest] of [
    ['totals', () => store.totalSessions({})],
    ['groups', () => store.groupSessions('task', {})],
    ['a search', () => store.listSessions({ text: 'nothing', limit: 10 })],
  ] as const) {
    await t.test(`a session that is created after ${what} is in the list`, async (t) => {
      const responses: string[] = []
      await Promise.all([
        sendRequest().then(() => responses.push(what)),
        store.getSession('s1').then(() => responses.push('session')),
      ])
      t.strictSame(responses, ['session', what])
    })
  }
})
