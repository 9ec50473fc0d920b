/** The sessions in the memory of the process, and their state. */
import t from 'tap'
import { LiveSessions } from '../../../../../src/proxy/session/state/live-sessions.ts'
import type { SessionMemory } from '../../../../../src/proxy/session/state/session-memory.ts'
import type { SessionRecord } from '../../../../../src/proxy/store/port/turn-store.ts'

const RECORD = {
  status: 'active',
  samplingParams: '{}',
  policies: {},
  record: null,
  nextIndex: 0,
} as unknown as SessionRecord

function addMessage(memory: SessionMemory, chars: number): void {
  memory.messages.addMessages([{ role: 'user', content: 'x'.repeat(chars) }])
}

/** Uses a session once, after which it is in memory. */
function touch(sessions: LiveSessions, sessionId: string, chars = 100, record = RECORD): void {
  using acquired = sessions.acquire(sessionId)
  acquired.live.replaceState(record)
  addMessage(acquired.memory, chars)
}

t.test('all sessions share one budget, and the most recently used ones stay in memory', async (t) => {
  const sessions = new LiveSessions(100_000)
  for (let session = 0; session < 100; session += 1) touch(sessions, `s${session}`, 10_000)
  t.ok(sessions.bytes <= 100_000, `${sessions.bytes} bytes`)
  t.ok(sessions.get('s99')!.bytes > 10_000)
  t.equal(sessions.get('s0'), undefined)
})

t.test('state of a request in flight is not evicted for lack of memory', async (t) => {
  const sessions = new LiveSessions(1)
  const busy = sessions.acquire('busy')
  busy.live.replaceState(RECORD)
  const { memory } = busy
  addMessage(memory, 100)
  for (const other of ['a', 'b']) touch(sessions, other)
  const second = sessions.acquire('busy')
  t.equal(second.memory, memory)
  busy[Symbol.dispose]()
  busy[Symbol.dispose]()
  t.equal(sessions.get('busy'), second.live)
  second[Symbol.dispose]()
  t.equal(sessions.get('busy'), undefined, 'it was not in use')
})

t.test(
  'the state of an ended session is not counted, nor are the additions of its last requests',
  async (t) => {
    const sessions = new LiveSessions(1_000_000)
    const acquired = sessions.acquire('s')
    acquired.live.replaceState(RECORD)
    const { memory } = acquired
    addMessage(memory, 1_000)
    touch(sessions, 's', 1_000)
    const before = sessions.bytes
    acquired.live.discardMemory()
    addMessage(memory, 5_000)
    acquired[Symbol.dispose]()
    t.ok(sessions.bytes < before - 1_000, `${sessions.bytes} of ${before} bytes`)
    t.not(sessions.acquire('s').memory, memory)
  },
)

t.test('an unrecorded session leaves no state', async (t) => {
  const sessions = new LiveSessions(1_000_000)
  for (let session = 0; session < 10; session += 1) {
    using acquired = sessions.acquire(`s${session}`)
    addMessage(acquired.memory, 1_000)
  }
  t.equal(sessions.bytes, 0)
  t.same([...sessions.list()], [])
})

t.test('as many ended sessions stay in memory as agents may still use', async (t) => {
  const sessions = new LiveSessions(Number.POSITIVE_INFINITY)
  const ended = { ...RECORD, status: 'completed' as const }
  touch(sessions, 'active')
  for (let session = 0; session < 10_100; session += 1) {
    using acquired = sessions.acquire(`s${session}`)
    acquired.live.replaceState(ended)
  }
  t.equal([...sessions.list()].length, 10_001)
  t.ok(sessions.get('active'))
  t.equal(sessions.get('s0'), undefined)
})
