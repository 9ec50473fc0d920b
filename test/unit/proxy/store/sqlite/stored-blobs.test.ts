/** The writer's handling of image bytes: they are stored once, as long as any session has them. */
import t, { type Test } from 'tap'
import type { ThreadCommand } from '../../../../../src/proxy/store/common/calls.ts'
import { TurnSender } from '../../../../../src/proxy/store/common/turn-sender.ts'
import type { WriteMethods } from '../../../../../src/proxy/store/common/write-methods.ts'
import { anOutcome, aTurn } from '../../../../conformance/turn-store.ts'
import { sentWhole } from '../../../../helpers/prompt-ids.ts'
import { openStoreWriter, sessionRow } from '../../../../helpers/store-writer.ts'

type Call = [keyof WriteMethods, ...unknown[]]

const PICTURE_BYTES = 50_000

/** @param at distinguishes pictures */
function picture(at: number): Buffer {
  return Buffer.from(Uint8Array.from({ length: PICTURE_BYTES }, (_, place) => (place * 7919 + at) % 251))
}

function showing(picture: Buffer, text = 'What is this?'): string {
  const image = {
    type: 'image_url',
    image_url: { url: `data:image/png;base64,${picture.toString('base64')}` },
  }
  return JSON.stringify({ role: 'user', content: [image, { type: 'text', text }] })
}

/** A turn that shows pictures; its session is named by the first letter of its id. */
function opened(turnId: string, ...requestMessages: string[]): Call {
  const turn = aTurn(turnId, { sessionId: turnId[0]!, requestMessages })
  return ['openTurn', new TurnSender().pack(turn).sent]
}

function openWriter(t: Test) {
  const { db, writer, reader } = openStoreWriter(t)
  /** @returns the code of each operation's error, or null */
  const commit = (...calls: Call[]) => {
    const group = calls.map(([method, ...args], id): ThreadCommand<WriteMethods> => ({ id, method, args }))
    return writer.commit(group).map((reply) => ('error' in reply ? reply.error.code : null))
  }
  const purge = () => {
    while (writer.purge());
  }
  const held = () =>
    db.prepare('SELECT count(*) AS pictures, coalesce(sum(length(body)), 0) AS bytes FROM blobs').get()
  const uses = () => db.prepare<[], number>('SELECT count(*) FROM blob_uses').pluck().get()
  const shown = (sessionId: string) => {
    const { texts } = reader.readPage(Math.random(), sessionId)
    return texts.map(([, text]) => text)
  }
  commit(['createSession', sessionRow('a')], ['createSession', sessionRow('b')])
  return { db, writer, commit, purge, held, uses, shown }
}

const ONE = { pictures: 1, bytes: PICTURE_BYTES }
const NONE = { pictures: 0, bytes: 0 }

t.test('sessions with one picture store its bytes once, until the last of them is deleted', async (t) => {
  const { commit, purge, held, uses, shown } = openWriter(t)
  const [first, second] = [showing(picture(0)), showing(picture(0), 'And this?')]
  t.strictSame(commit(opened('a1', first), opened('a2', first, second)), [null, null])
  t.strictSame(commit(opened('b1', first)), [null])
  t.strictSame([held(), uses()], [ONE, 2])
  t.ok(shown('a').includes(second), 'every reader gets the message as it was sent')
  t.ok(shown('b').includes(first))

  commit(['deleteSession', 'a'])
  purge()
  t.strictSame([held(), uses()], [ONE, 1])
  t.ok(shown('b').includes(first))
  commit(['deleteSession', 'b'])
  purge()
  t.strictSame([held(), uses()], [NONE, 0])
})

t.test('a reset and a sweep free unused bytes, as a deletion does', async (t) => {
  const { commit, purge, held, shown } = openWriter(t)
  commit(['createSession', { ...sessionRow('c'), ttl_ms: 1 }])
  commit(
    opened('a1', showing(picture(0))),
    opened('b1', showing(picture(1))),
    opened('c1', showing(picture(2))),
  )
  commit(['closeTurn', sentWhole(anOutcome('c1', { sessionId: 'c' }))])
  t.match(held(), { pictures: 3 })
  commit(['resetSession', 'a', 5])
  purge()
  t.match(held(), { pictures: 2 })
  commit(['sweep', 1_000_000, 0, 10])
  purge()
  t.strictSame(held(), ONE)
  t.ok(shown('b').includes(showing(picture(1))))
})

t.test('a picture that is used again while its last session is removed stays complete', async (t) => {
  const { writer, commit, purge, held, shown } = openWriter(t)
  const first = showing(picture(0))
  commit(opened('a1', first))
  commit(['deleteSession', 'a'])
  // Between any two steps of the removal.
  for (let steps = 0; writer.purge(); steps += 1) {
    const name = `c${steps}`
    commit(['createSession', sessionRow('c')], opened(name, first))
    t.ok(shown('c').includes(first), `after step ${steps}`)
    commit(['deleteSession', 'c'])
    if (steps > 20) break
  }
  commit(['createSession', sessionRow('c')], opened('c', first))
  purge()
  t.strictSame(held(), ONE)
  t.ok(shown('c').includes(first))
})

t.test('a failed operation leaves no picture behind', async (t) => {
  const { commit, held, uses } = openWriter(t)
  const codes = commit(
    opened('a1', showing(picture(0))),
    opened('a1', showing(picture(1))),
    opened('none', showing(picture(2))),
  )
  t.strictSame(codes, [null, 'store_failed', 'session_not_found'])
  t.strictSame([held(), uses()], [ONE, 1])
})

t.test('one step frees few of many pictures', async (t) => {
  const { db, writer, commit, held } = openWriter(t)
  const pictures = 24
  commit(...Array.from({ length: pictures }, (_, at) => opened(`a${at}`, showing(picture(at)))))
  t.match(held(), { pictures })
  commit(['deleteSession', 'a'])
  const left = db.prepare<[], number>('SELECT count(*) FROM blobs').pluck()
  let most = 0
  for (let before = pictures; writer.purge(); before = left.get()!)
    most = Math.max(most, before - left.get()!)
  t.ok(most > 0 && most <= 4, `${most} at most`)
  t.strictSame(held(), NONE)
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
