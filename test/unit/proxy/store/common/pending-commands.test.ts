import t from 'tap'
import type { ThreadCommand } from '../../../../../src/proxy/store/common/calls.ts'
import { PendingCommands } from '../../../../../src/proxy/store/common/pending-commands.ts'
import { TurnSender } from '../../../../../src/proxy/store/common/turn-sender.ts'
import type { WriteMethods } from '../../../../../src/proxy/store/common/write-methods.ts'
import { aTurn } from '../../../../conformance/turn-store.ts'

type Call = ThreadCommand<WriteMethods>

function opening(sessionId: string, messages: number): Call {
  const requestMessages = Array.from({ length: messages }, (_, index) => `"${sessionId}, message ${index}"`)
  const { sent } = new TurnSender().pack(aTurn(`${sessionId}-0`, { sessionId, requestMessages }))
  return { id: 1, method: 'openTurn', args: [sent] }
}

function waitingFor(...calls: Call[]): PendingCommands {
  const waiting = new PendingCommands()
  for (const call of calls) waiting.push(call)
  return waiting
}

/** Sessions of the operations, and the kind of each: `a putTextBatch`. */
function getGroups(
  waiting: PendingCommands,
  ...[isAlone]: Parameters<PendingCommands['takeGroup']>
): string[][] {
  const groups: string[][] = []
  for (let group = waiting.takeGroup(isAlone); group.length > 0; group = waiting.takeGroup(isAlone))
    groups.push(
      group.map(({ method, args: [first] }) => {
        const sessionId = typeof first === 'string' ? first : (first as { sessionId: string }).sessionId
        return `${sessionId} ${method}`
      }),
    )
  return groups
}

t.test('short operations do not wait for long ones of any number of sessions', async (t) => {
  const heaps = Array.from({ length: 20 }, (_, each) => opening(`heap-${each}`, 9_000))
  const waiting = waitingFor(...heaps, opening('short', 1))
  const [first, ...others] = getGroups(waiting)
  t.strictSame(first, ['short openTurn', 'heap-0 putTextBatch'])
  t.ok(
    others.every((group) => group.length === 1),
    'each chunk of a long series is its own group',
  )
  t.match(others.slice(0, 3), [['heap-1 putTextBatch'], ['heap-2 putTextBatch'], ['heap-3 putTextBatch']])
})

t.test(
  'long operations have a place in each group, and the operations of a session stay in order',
  async (t) => {
    const waiting = waitingFor(opening('heap', 8_000))
    const groups: string[][] = []
    for (let each = 0; each < 5; each += 1) {
      waiting.push(opening(`short-${each}`, 1))
      const group = waiting.takeGroup()
      groups.push(
        group.map(({ method, args: [turn] }) => `${(turn as { sessionId: string }).sessionId} ${method}`),
      )
    }
    const stretches = Array.from({ length: 4 }, (_, each) => [`short-${each} openTurn`, 'heap putTextBatch'])
    t.strictSame(groups.slice(0, 4), stretches)
    t.strictSame(groups[4]?.toSorted(), ['heap openTurn', 'short-4 openTurn'])
    t.equal(waiting.size, 0)
  },
)

t.test('an operation with its own group waits for one group at most', async (t) => {
  const isAlone = ({ method }: Call) => method === 'deleteSession'
  const alone: Call = { id: 1, method: 'deleteSession', args: ['gone'] }
  const waiting = waitingFor(opening('a', 1), alone, opening('b', 1), opening('gone', 1))
  t.strictSame(getGroups(waiting, isAlone), [
    ['a openTurn', 'b openTurn'],
    ['gone deleteSession'],
    ['gone openTurn'],
  ])
})
