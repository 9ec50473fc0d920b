/** The writer's handling of image bytes: they are stored once, as long as any session has them. */
import t, { type Test } from 'tap'
import type { ThreadCommand } from '../../../../../src/proxy/store/common/calls.ts'
import { TurnSender } from '../../../../../src/proxy/store/common/turn-sender.ts'
import type { WriteMethods } from '../../../../../src/proxy/store/common/write-methods.ts'
import { anOutcome, aTurn } from '../../../../conformance/turn-store.ts'
import { toOutcomeMessage } from '../../../../helpers/prompt-ids.ts'
import { createSessionRow, openStoreWriter } from '../../../../helpers/store-writer.ts'

type Operation = [keyof WriteMethods, ...unknown[]]

const PICTURE_BYTES = 50_000

/** @param seed distinguishes pictures */
function picture(seed: number): Buffer {
  return Buffer.from(Uint8Array.from({ length: PICTURE_BYTES }, (_, index) => (index * 7919 + seed) % 251))
}

function createMessage(picture: Buffer, text = 'What is this?'): string {
  const image = {
    type: 'image_url',
    image_url: { url: `data:image/png;base64,${picture.toString('base64')}` },
  }
  return JSON.stringify({ role: 'user', content: [image, { type: 'text', text }] })
}

/** Creates the opening of a turn. The first letter of its id names its session. */
function openTurn(turnId: string, ...requestMessages: string[]): Operation {
  const turn = aTurn(turnId, { sessionId: turnId[0]!, requestMessages })
  return ['openTurn', new TurnSender().pack(turn).sent]
}

function openWriter(t: Test) {
  const { db, writer, reader } = openStoreWriter(t)
  /** @returns the code of each operation's error, or null */
  const commit = (...operations: Operation[]) => {
    const group = operations.map(
      ([method, ...args], id): ThreadCommand<WriteMethods> => ({ id, method, args }),
    )
    return writer.commit(group).map((reply) => ('error' in reply ? reply.error.code : null))
  }
  const purge = () => {
    while (writer.purge());
  }
  const getStored = () =>
    db.prepare('SELECT count(*) AS pictures, coalesce(sum(length(body)), 0) AS bytes FROM blobs').get()
  const countUses = () => db.prepare<[], number>('SELECT count(*) FROM blob_uses').pluck().get()
  const readTexts = (sessionId: string) => {
    const { texts } = reader.readPage(Math.random(), sessionId)
    return texts.map(([, text]) => text)
  }
  commit(['createSession', createSessionRow('a')], ['createSession', createSessionRow('b')])
  return { db, writer, commit, purge, getStored, countUses, readTexts }
}

const ONE = { pictures: 1, bytes: PICTURE_BYTES }
const NONE = { pictures: 0, bytes: 0 }

t.test('sessions with one picture store its bytes once, until the last of them is deleted', async (t) => {
  const { commit, purge, getStored, countUses, readTexts } = openWriter(t)
  const [first, second] = [createMessage(picture(0)), createMessage(picture(0), 'And this?')]
  t.strictSame(commit(openTurn('a1', first), openTurn('a2', first, second)), [null, null])
  t.strictSame(commit(openTurn('b1', first)), [null])
  t.strictSame([getStored(), countUses()], [ONE, 2])
  t.ok(readTexts('a').includes(second), 'every reader gets the message as it was sent')
  t.ok(readTexts('b').includes(first))

  commit(['deleteSession', 'a'])
  purge()
  t.strictSame([getStored(), countUses()], [ONE, 1])
  t.ok(readTexts('b').includes(first))
  commit(['deleteSession', 'b'])
  purge()
  t.strictSame([getStored(), countUses()], [NONE, 0])
})

t.test('a reset and a sweep free unused bytes, as a deletion does', async (t) => {
  const { commit, purge, getStored, readTexts } = openWriter(t)
  commit(['createSession', { ...createSessionRow('c'), ttl_ms: 1 }])
  commit(
    openTurn('a1', createMessage(picture(0))),
    openTurn('b1', createMessage(picture(1))),
    openTurn('c1', createMessage(picture(2))),
  )
  commit(['closeTurn', toOutcomeMessage(anOutcome('c1', { sessionId: 'c' }))])
  t.match(getStored(), { pictures: 3 })
  commit(['resetSession', 'a', 5])
  purge()
  t.match(getStored(), { pictures: 2 })
  commit(['sweep', 1_000_000, 0, 10])
  purge()
  t.strictSame(getStored(), ONE)
  t.ok(readTexts('b').includes(createMessage(picture(1))))
})

t.test('a picture that is used again while its last session is removed stays complete', async (t) => {
  const { writer, commit, purge, getStored, readTexts } = openWriter(t)
  const first = createMessage(picture(0))
  commit(openTurn('a1', first))
  commit(['deleteSession', 'a'])
  // Between any two steps of the removal.
  let steps = 0
  for (; writer.purge(); steps += 1) {
    const name = `c${steps}`
    commit(['createSession', createSessionRow('c')], openTurn(name, first))
    t.ok(readTexts('c').includes(first), `after step ${steps}`)
    commit(['deleteSession', 'c'])
    if (steps > 20) break
  }
  t.ok(steps > 0, `${steps} steps`)
  commit(['createSession', createSessionRow('c')], openTurn('c', first))
  purge()
  t.strictSame(getStored(), ONE)
  t.ok(readTexts('c').includes(first))
})

t.test('a failed operation leaves no picture behind', async (t) => {
  const { commit, getStored, countUses } = openWriter(t)
  const codes = commit(
    openTurn('a1', createMessage(picture(0))),
    openTurn('a1', createMessage(picture(1))),
    openTurn('none', createMessage(picture(2))),
  )
  t.strictSame(codes, [null, 'store_failed', 'session_not_found'])
  t.strictSame([getStored(), countUses()], [ONE, 1])
})

t.test('one step frees few of many pictures', async (t) => {
  const { db, writer, commit, getStored } = openWriter(t)
  const pictures = 24
  commit(
    ...Array.from({ length: pictures }, (_, index) => openTurn(`a${index}`, createMessage(picture(index)))),
  )
  t.match(getStored(), { pictures })
  commit(['deleteSession', 'a'])
  const left = db.prepare<[], number>('SELECT count(*) FROM blobs').pluck()
  let most = 0
  for (let before = pictures; writer.purge(); before = left.get()!)
    most = Math.max(most, before - left.get()!)
  t.ok(most > 0 && most <= 4, `${most} at most`)
  t.strictSame(getStored(), NONE)
})

t.test('a picture and its uses are found without a table scan', async (t) => {
  const { db } = openWriter(t)
  const plans = [
    'SELECT id FROM blobs WHERE sha256 = ?',
    'SELECT 1 FROM blob_uses WHERE blob = ?',
    'SELECT id FROM blob_uses WHERE tree = ?',
  ].map((sql) => db.prepare(`EXPLAIN QUERY PLAN ${sql}`).all(1) as { detail: string }[])
  for (const plan of plans.flat()) t.match(plan.detail, /^SEARCH .* USING (COVERING )?INDEX/)
})
