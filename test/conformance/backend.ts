/** The conformance suite of every backend, whether its members are engines or workers. */
import type { Test } from 'tap'
import type { Backend } from '../../src/proxy/engines/port/backend.ts'
import { findInexactReason } from '../../src/proxy/session/prompts/exactness.ts'
import { pull } from '../helpers/event-stream.ts'
import { chatRequest, collect, eventually, fold, noAbort } from './engine-client.ts'

export interface MemberUnderTest {
  /** The number of generations in progress. */
  running(): number
  /** The number of generations that were requested so far. */
  requestCount(): number
  /** Makes the member unreachable, which fails its generations. Resolves when it is unreachable. */
  stop(): Promise<void>
  /** Makes the member reachable again. */
  restart(): Promise<void>
}

interface BackendUnderTest {
  backend: Backend
  members: MemberUnderTest[]
  /** A model that all members serve. */
  model: string
  /** Body fields that make a generation continue until it is cancelled. */
  endless: Record<string, unknown>
  close(): Promise<void>
}

interface BackendOptions {
  members: number
  maxConcurrency: number
  queueLimit: number
  waitMs: number
}

/**
 * Defines the suite.
 * @param absentCode the error code of a request when no member could serve it for `waitMs`
 */
export function backendSuite(
  t: Test,
  setUp: (options: BackendOptions) => Promise<BackendUnderTest>,
  absentCode: 'engine_unreachable' | 'no_worker',
): void {
  const withBackend = (
    title: string,
    options: Partial<BackendOptions>,
    run: (t: Test, subject: BackendUnderTest) => Promise<void>,
  ) =>
    t.test(title, async (t) => {
      const subject = await setUp({
        members: 2,
        maxConcurrency: 8,
        queueLimit: 8,
        waitMs: 10_000,
        ...options,
      })
      // Keeps the process alive: the backend's timers do not, and its only member may be stopped.
      const keepAlive = setInterval(() => {}, 1_000)
      t.teardown(() => {
        clearInterval(keepAlive)
        return subject.close()
      })
      await run(t, subject)
    })

  const request = ({ model }: BackendUnderTest, sessionId: string, body = {}, stream = true) => ({
    ...chatRequest({ model, ...body }, stream),
    sessionId,
  })
  const serve = async (subject: BackendUnderTest, sessionId: string, stream = true) =>
    fold(await collect(pull(subject.backend, request(subject, sessionId, {}, stream), noAbort)))
  /** Starts a generation that does not end by itself, and waits for its first events. */
  const begin = async (subject: BackendUnderTest, sessionId: string, signal = noAbort) => {
    const stream = pull(subject.backend, request(subject, sessionId, subject.endless), signal)
    const iterator = stream[Symbol.asyncIterator]()
    await iterator.next()
    return iterator
  }

  for (const stream of [true, false]) {
    withBackend(
      `a generation keeps its tokens (${stream ? 'streamed' : 'complete'})`,
      {},
      async (t, subject) => {
        const completion = await serve(subject, 's', stream)
        t.equal(findInexactReason(completion), null)
        t.equal(completion.tokenIds.length, 4)
        t.ok(completion.start?.engine)
      },
    )
  }

  withBackend('requests of a session go to one member, new sessions to others', {}, async (t, subject) => {
    for (let round = 0; round < 3; round += 1) {
      await serve(subject, 'first')
      await serve(subject, 'second')
    }
    t.same(
      subject.members.map((member) => member.requestCount()),
      [3, 3],
    )
  })

  withBackend(
    'no member gets more than its limit; waiting requests are served',
    { maxConcurrency: 1 },
    async (t, subject) => {
      const running = [await begin(subject, 'a'), await begin(subject, 'b')]
      const waiting = serve(subject, 'c')
      await eventually(() => subject.backend.getStatus().queued === 1)
      t.same(
        subject.members.map((member) => member.running()),
        [1, 1],
      )
      await running[1]!.return?.(undefined)
      t.equal((await waiting).tokenIds.length, 4)
      t.equal(subject.backend.getStatus().queued, 0)
      await running[0]!.return?.(undefined)
    },
  )

  withBackend(
    'a full queue rejects requests',
    { members: 1, maxConcurrency: 1, queueLimit: 0 },
    async (t, subject) => {
      const running = await begin(subject, 'a')
      await t.rejects(serve(subject, 'b'), { code: 'queue_full', status: 503 })
      await running.return?.(undefined)
    },
  )

  withBackend('an unavailable member makes no session fail, new or old', {}, async (t, subject) => {
    await serve(subject, 'old')
    const home = subject.members.findIndex((member) => member.requestCount() > 0)
    await subject.members[home]!.stop()
    for (const session of ['old', 'fresh', 'fresher'])
      t.equal((await serve(subject, session)).tokenIds.length, 4)
  })

  withBackend(
    'a member that disconnects after the first event fails the request, but not the next one',
    {},
    async (t, subject) => {
      const running = await begin(subject, 's')
      const home = subject.members.find((member) => member.running() > 0)!
      const rest = (async () => {
        while (!(await running.next()).done);
      })()
      rest.catch(() => {})
      await home.stop()
      t.match(await rest.catch((thrown) => thrown), { name: 'ProxyError', status: 502 })
      t.equal((await serve(subject, 's')).tokenIds.length, 4)
    },
  )

  withBackend('a request waits for a member to return', { members: 1 }, async (t, subject) => {
    await serve(subject, 's')
    await subject.members[0]!.stop()
    const waiting = serve(subject, 's')
    await eventually(() => subject.backend.getStatus().queued === 1)
    await subject.members[0]!.restart()
    t.equal((await waiting).tokenIds.length, 4)
  })

  withBackend(
    'a request that no engine can serve fails after the wait',
    { members: 1, waitMs: 50 },
    async (t, subject) => {
      await subject.members[0]!.stop()
      await t.rejects(serve(subject, 's'), { code: absentCode, status: 503 })
    },
  )

  withBackend("an engine's rejection is forwarded and not retried", {}, async (t, subject) => {
    const rejected = pull(subject.backend, request(subject, 's', { temperature: -1 }), noAbort)
    await t.rejects(collect(rejected), { code: 'engine_rejected', status: 400 })
    t.equal(subject.members[0]!.requestCount() + subject.members[1]!.requestCount(), 1)
  })

  withBackend('an abort cancels the work, frees the slot and throws the reason', {}, async (t, subject) => {
    const controller = new AbortController()
    const reason = new Error('agent left')
    const running = await begin(subject, 's', controller.signal)
    controller.abort(reason)
    await t.rejects(async () => {
      while (!(await running.next()).done);
    }, reason)
    await eventually(() => subject.members.every((member) => member.running() === 0))
    t.ok(subject.backend.getStatus().members.every((member) => member.inFlight === 0))
  })

  withBackend(
    'an abort removes a waiting request from the queue',
    { members: 1, maxConcurrency: 1 },
    async (t, subject) => {
      const running = await begin(subject, 'a')
      const controller = new AbortController()
      const waiting = collect(pull(subject.backend, request(subject, 'b'), controller.signal))
      waiting.catch(() => {})
      await eventually(() => subject.backend.getStatus().queued === 1)
      controller.abort(new Error('agent left'))
      await t.rejects(waiting, { message: 'agent left' })
      t.equal(subject.backend.getStatus().queued, 0)
      await running.return?.(undefined)
    },
  )

  withBackend('models are listed once', {}, async (t, subject) => {
    t.same(
      (await subject.backend.listModels()).map(({ id }) => id),
      [subject.model],
    )
  })

  withBackend('status shows each member and what it does', {}, async (t, subject) => {
    await subject.backend.listModels()
    const running = await begin(subject, 's')
    const { members, queued } = subject.backend.getStatus()
    t.equal(queued, 0)
    t.same(
      members.map(({ healthy, inFlight, models }) => ({ healthy, inFlight, models })),
      [
        { healthy: true, inFlight: 1, models: [subject.model] },
        { healthy: true, inFlight: 0, models: [subject.model] },
      ],
    )
    await running.return?.(undefined)
  })

  withBackend('a pause defers new requests and lets running ones finish', {}, async (t, subject) => {
    const running = await begin(subject, 's')
    subject.backend.pause()
    const waiting = serve(subject, 't')
    t.equal(subject.backend.getStatus().queued, 1)
    t.notOk((await running.next()).done)
    await subject.backend.resume()
    t.equal((await waiting).tokenIds.length, 4)
    await running.return?.(undefined)
  })

  withBackend(
    'once closing has started, waiting and new requests fail',
    { members: 1, maxConcurrency: 1 },
    async (t, subject) => {
      const controller = new AbortController()
      await begin(subject, 'a', controller.signal)
      const waiting = serve(subject, 'b')
      waiting.catch(() => {})
      await eventually(() => subject.backend.getStatus().queued === 1)
      const closing = subject.backend.close()
      controller.abort()
      await t.rejects(waiting, { code: 'shutting_down' })
      await t.rejects(serve(subject, 'c'), { code: 'shutting_down' })
      await closing
    },
  )
}
