import t from 'tap'
import type { ThreadCommand } from '../../../../../src/proxy/store/common/calls.ts'
import { PendingCommands } from '../../../../../src/proxy/store/common/pending-commands.ts'
import { TurnSender } from '../../../../../src/proxy/store/common/turn-sender.ts'
import type { WriteMethods } from '../../../../../src/proxy/store/common/write-methods.ts'
import { anOutcome, aTurn } from '../../../../conformance/turn-store.ts'

type Command = ThreadCommand<WriteMethods>

function createOpening(sessionId: string, messages: number): Command {
  const requestMessages = Array.from({ length: messages }, (_, index) => `"${sessionId}, message ${index}"`)
  const { sent } = new TurnSender().pack(aTurn(`${sessionId}-0`, { sessionId, requestMessages }))
  return { id: 1, method: 'openTurn', args: [sent] }
}

function enqueue(...commands: Command[]): PendingCommands {
  const pending = new PendingCommands()
  for (const command of commands) pending.push(command)
  return pending
}

/** Describes the operations of each group by session and method: `a putTextBatch`. */
function getGroups(
  pending: PendingCommands,
  ...[isAlone]: Parameters<PendingCommands['takeGroup']>
): string[][] {
  const groups: string[][] = []
  for (let group = pending.takeGroup(isAlone); group.length > 0; group = pending.takeGroup(isAlone))
    groups.push(describeGroup(group))
  return groups
}

function describeGroup(group: ReturnType<PendingCommands['takeGroup']>): string[] {
  return group.map(({ method, args: [first] }) => {
    const sessionId = typeof first === 'string' ? first : (first as { sessionId: string }).sessionId
    return `${sessionId} ${method}`
  })
}

t.test('short operations do not wait for long ones of any number of sessions', async (t) => {
  const long = Array.from({ length: 20 }, (_, each) => createOpening(`heap-${each}`, 9_000))
  const pending = enqueue(...long, createOpening('short', 1))
  const [first, ...others] = getGroups(pending)
  t.strictSame(first, ['short openTurn', 'heap-0 putTextBatch'])
  t.ok(
    others.every((group) => group.length === 1),
    'each chunk of a long series is its own group',
  )
  t.match(others.slice(0, 3), [['heap-1 putTextBatch'], ['heap-2 putTextBatch'], ['heap-3 putTextBatch']])
})

t.test(
  'each group has one chunk of a long operation, and the operations of a session stay in order',
  async (t) => {
    const pending = enqueue(createOpening('heap', 8_000))
    const groups: string[][] = []
    for (let each = 0; each < 5; each += 1) {
      pending.push(createOpening(`short-${each}`, 1))
      groups.push(describeGroup(pending.takeGroup()))
    }
    const expected = Array.from({ length: 4 }, (_, each) => [`short-${each} openTurn`, 'heap putTextBatch'])
    t.strictSame(groups.slice(0, 4), expected)
    t.strictSame(groups[4]?.toSorted(), ['heap openTurn', 'short-4 openTurn'])
    t.equal(pending.size, 0)
  },
)

t.test('token data counts as work, so that a group has at most one large response', async (t) => {
  const createClosing = (turnId: string, mebibytes: number): Command => {
    const details = [{ kind: 'routed_experts', body: new Uint8Array(mebibytes * 1024 * 1024) }]
    const { promptTokenIds: _, ...outcome } = anOutcome(turnId, { sessionId: turnId })
    return { id: 1, method: 'closeTurn', args: [{ ...outcome, prompt: null, details }] }
  }
  const pending = enqueue(createClosing('a', 10), createClosing('b', 10), createClosing('c', 0))
  t.strictSame(getGroups(pending), [['c closeTurn', 'a closeTurn'], ['b closeTurn']])
})

t.test('an operation with its own group waits for one group at most', async (t) => {
  const isAlone = ({ method }: Command) => method === 'deleteSession'
  const alone: Command = { id: 1, method: 'deleteSession', args: ['gone'] }
  const pending = enqueue(createOpening('a', 1), alone, createOpening('b', 1), createOpening('gone', 1))
  t.strictSame(getGroups(pending, isAlone), [
    ['a openTurn', 'b openTurn'],
    ['gone deleteSession'],
    ['gone openTurn'],
  ])
})
