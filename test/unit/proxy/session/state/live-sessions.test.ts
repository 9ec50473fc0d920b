/** The sessions that the process keeps in memory, and their state. */
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

function say(memory: SessionMemory, chars: number): void {
  memory.messages.addMessages([{ role: 'user', content: 'x'.repeat(chars) }])
}

/** Uses a session once, after which it is in memory. */
function touch(lives: LiveSessions, sessionId: string, chars = 100, record = RECORD): void {
  using used = lives.acquire(sessionId)
  used.live.replaceState(record)
  say(used.memory, chars)
}

t.test('all sessions share one budget, and the most recently used ones stay in memory', async (t) => {
  const lives = new LiveSessions(100_000)
  for (let session = 0; session < 100; session += 1) touch(lives, `s${session}`, 10_000)
  t.ok(lives.bytes <= 100_000, `${lives.bytes} bytes`)
  t.ok(lives.get('s99')!.bytes > 10_000)
  t.equal(lives.get('s0'), undefined)
})

t.test('state of a request in flight is not evicted for lack of memory', async (t) => {
  const lives = new LiveSessions(1)
  const busy = lives.acquire('busy')
  busy.live.replaceState(RECORD)
  const { memory } = busy
  say(memory, 100)
  for (const other of ['a', 'b']) touch(lives, other)
  const second = lives.acquire('busy')
  t.equal(second.memory, memory)
  busy[Symbol.dispose]()
  busy[Symbol.dispose]()
  t.equal(lives.get('busy'), second.live)
  second[Symbol.dispose]()
  t.equal(lives.get('busy'), undefined, 'it was not in use')
})

t.test(
  'the state of an ended session is not counted, nor are the additions of its last requests',
  async (t) => {
    const lives = new LiveSessions(1_000_000)
    const used = lives.acquire('s')
    used.live.replaceState(RECORD)
    const { memory } = used
    say(memory, 1_000)
    touch(lives, 's', 1_000)
    const before = lives.bytes
    used.live.discardMemory()
    say(memory, 5_000)
    used[Symbol.dispose]()
    t.ok(lives.bytes < before - 1_000, `${lives.bytes} of ${before} bytes`)
    t.not(lives.acquire('s').memory, memory)
  },
)

t.test('an unrecorded session leaves no state', async (t) => {
  const lives = new LiveSessions(1_000_000)
  for (let session = 0; session < 10; session += 1) {
    using used = lives.acquire(`s${session}`)
    say(used.memory, 1_000)
  }
  t.equal(lives.bytes, 0)
  t.same([...lives.list()], [])
})

t.test('as many ended sessions stay in memory as agents may still use', async (t) => {
  const lives = new LiveSessions(Number.POSITIVE_INFINITY)
  const ended = { ...RECORD, status: 'completed' as const }
  touch(lives, 'active')
  for (let session = 0; session < 10_100; session += 1) {
    using used = lives.acquire(`s${session}`)
    used.live.replaceState(ended)
  }
  t.equal([...lives.list()].length, 10_001)
  t.ok(lives.get('active'))
  t.equal(lives.get('s0'), undefined)
})
