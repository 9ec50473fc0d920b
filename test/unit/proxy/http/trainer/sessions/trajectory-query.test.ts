/** The trajectories of a session: what is read to answer a query. */
import t from 'tap'
import { computeImageDigest } from '../../../../../../src/protocol/canonical/images.ts'
import { readTrajectories } from '../../../../../../src/proxy/http/trainer/sessions/trajectory-query.ts'
import type { SessionRecord } from '../../../../../../src/proxy/store/port/turn-store.ts'
import { addMessageTexts } from '../../../../../helpers/messages.ts'
import { recordTurn } from '../../../../../helpers/sessions-api.ts'
import { openMemoryStore } from '../../../../../helpers/store-in-process.ts'
import { createTurnStep } from '../../../../../helpers/turn-step.ts'

const QUERY = {
  ...{ select: 'all', side_calls: false, rejected: false, finished_only: false },
  ...{ per_turn: false, mask_stale_tokens: false },
} as const

const TURNS = 20

t.test('each image of a conversation is decoded once', async (t) => {
  const store = await openMemoryStore()
  t.teardown(() => store.close())
  const policies = { ttlMs: null, metadata: {}, samplingParams: {}, trustAgent: false }
  await store.createSession({ sessionId: 's', createdAtMs: 1, ...policies })
  await recordTurn(store, 's', 0)
  const session = (await store.getSession('s'))!

  const images = Array.from({ length: TURNS }, (_, index) => Buffer.from(`image ${index}`))
  const texts = images.map((image) => {
    const url = `data:image/png;base64,${image.toString('base64')}`
    return JSON.stringify({ role: 'user', content: [{ type: 'image_url', image_url: { url } }] })
  })
  let reads = 0
  const turns = texts.map((json, index) => {
    const lastMessage = addMessageTexts(texts.slice(0, index + 1))!
    Object.defineProperty(lastMessage, 'json', {
      get() {
        reads += 1
        return json
      },
    })
    const added = { sha256: computeImageDigest(images[index]!), at: index, tokens: 1 }
    const annotations = JSON.stringify({ prompt: { images: [added] } })
    return { ...createTurnStep(index, [index + 1], [1]), lastMessage, annotations }
  })
  const reader = {
    getSession: async (): Promise<SessionRecord> => session,
    async *readSteps() {
      yield* turns
    },
    readDetails: () => Promise.reject(new Error('no details are requested')),
  }
  const read = async (images: boolean) => {
    reads = 0
    const chunks = await Array.fromAsync(
      (await readTrajectories(reader, session, { ...QUERY, images })).toWire(),
    )
    return { reads, images: JSON.parse(chunks.join('')).images }
  }
  const without = await read(false)
  const found = await read(true)
  t.equal(found.reads - without.reads, TURNS)
  t.same(Object.keys(found.images), images.map(computeImageDigest))
})
