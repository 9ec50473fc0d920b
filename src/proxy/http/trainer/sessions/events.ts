/** Routes that stream events as newline-delimited JSON until the client disconnects. */
import type { FastifyPluginCallback, FastifyReply, FastifyRequest } from 'fastify'
import type { Backend, BackendMember } from '../../../engines/port/backend.ts'
import type { Activity } from '../../../session/state/activity.ts'
import type { Sessions } from '../../../session/state/sessions.ts'
import type { TurnReader } from '../../../store/port/turn-store.ts'
import { describe, describeMedia } from '../../schemas/described.ts'
import { validatorCompiler } from '../../schemas/validate.ts'
import { NDJSON, NdjsonReply } from '../../transport/ndjson-reply.ts'
import { getSessionOrThrow } from './get-session.ts'
import { LiveOutputTail } from './live-output-tail.ts'
import { LiveEvent, ProxyEvent } from './read-schemas.ts'
import { SessionParams } from './schemas.ts'

interface EventsOptions {
  activity: Activity
  sessions: Sessions
  backend: Backend
  reader: TurnReader
  /** Adds the events of the other nodes of the database. Default: there are no other nodes. */
  others?: { follow(request: FastifyRequest, lines: NdjsonReply): void } | undefined
}

/** The interval at which the state of engines and workers is polled. */
const MEMBERS_MS = 1_000
/** The interval at which the output of open turns is polled. */
const LIVE_MS = 100
/** The interval of pings, which keep the connection open through reverse proxies. */
const KEEP_ALIVE_MS = 15_000

export const eventsRoutes: FastifyPluginCallback<EventsOptions> = (app, options, done) => {
  const { activity, sessions, backend, reader, others } = options
  const watching = new Set<NdjsonReply>()
  // A closing server waits for responses in progress, and these would never end by themselves.
  app.addHook('preClose', async () => {
    for (const lines of watching) lines.end()
  })
  const openLines = (reply: FastifyReply) => {
    const lines = new NdjsonReply(reply)
    lines.runEvery(KEEP_ALIVE_MS, () => lines.send({ type: 'ping' }))
    watching.add(lines)
    lines.runWhenClosed(() => watching.delete(lines))
    return lines
  }
  app.setValidatorCompiler(validatorCompiler)
  app.get(
    '/events',
    {
      config: { awaitedOnClose: false },
      ...describe('sessions', 'Stream events of the proxy', describeMedia(NDJSON, ProxyEvent), {}),
    },
    async (request, reply) => {
      const lines = openLines(reply)
      others?.follow(request, lines)
      lines.runWhenClosed(activity.listen((event) => lines.send(event)))
      const members = new MemberWatch(backend)
      lines.runEvery(MEMBERS_MS, () => {
        for (const event of members.takeChanges()) lines.send(event)
      })
      return reply
    },
  )
  app.get<{ Params: { sessionId: string } }>(
    '/sessions/:sessionId/live',
    {
      config: { ofOwner: 'watch', awaitedOnClose: false },
      ...describe(
        'sessions',
        "Stream the output of a session's open turns",
        describeMedia(NDJSON, LiveEvent),
        {
          params: SessionParams,
        },
      ),
    },
    async ({ params: { sessionId } }, reply) => {
      await getSessionOrThrow(reader, sessionId)
      const lines = openLines(reply)
      const tail = new LiveOutputTail()
      const sendAdditions = () => {
        for (const event of tail.takeAdditions(sessions.listTurns(sessionId))) lines.send(event)
      }
      sendAdditions()
      lines.runEvery(LIVE_MS, sendAdditions)
      return reply
    },
  )
  done()
}

/**
 * A detector of engines and workers that came up, went down or left since the previous poll; the first poll reports
 * all.
 */
class MemberWatch {
  readonly #backend: Backend
  #up = new Map<string, boolean>()

  constructor(backend: Backend) {
    this.#backend = backend
  }

  takeChanges(): object[] {
    const up = new Map(this.#backend.getStatus().members.map((member) => [member.name, isUp(member)]))
    const left = [...this.#up.keys()].filter((name) => !up.has(name))
    const changed = [...up].filter(([name, is]) => this.#up.get(name) !== is)
    this.#up = up
    return [
      ...changed.map(([member, is]) => ({ type: is ? 'member_up' : 'member_down', member })),
      ...left.map((member) => ({ type: 'member_left', member })),
    ]
  }
}

function isUp({ healthy, connected = true }: BackendMember): boolean {
  return healthy && connected
}
