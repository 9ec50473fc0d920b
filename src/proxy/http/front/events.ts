/** `GET /events` of all nodes as one stream: each event says of which node it is, and so does the loss of a node. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { NdjsonReply } from '../transport/ndjson-reply.ts'
import { nodesAway, refuse } from './ask-all.ts'
import { type Nodes, reasonOf } from './nodes.ts'

/** Between two attempts to reach a node that is away. */
const AGAIN_MS = 1_000

/** Streams that are open; the front's end is theirs. */
export class EventStreams {
  readonly #nodes: Nodes
  readonly #open = new Set<AbortController>()

  constructor(nodes: Nodes) {
    this.#nodes = nodes
  }

  close(): void {
    for (const stream of this.#open) stream.abort()
  }

  /** @throws ProxyError `node_away` when no node answers; what a node refuses for all is the answer */
  async answer(request: FastifyRequest, reply: FastifyReply): Promise<unknown> {
    const stream = new AbortController()
    const { signal } = stream
    const places = Array.from({ length: this.#nodes.count }, (_, place) => place)
    const first = await Promise.all(places.map((place) => this.#begin(place, request, signal)))
    const refusal = first.find(isRefusal)
    const isUseless = refusal !== undefined || first.every((each) => each instanceof Error)
    if (isUseless) stream.abort()
    if (refusal) return refuse(reply, refusal)
    if (isUseless) {
      throw nodesAway(
        first.map((each, place) => ({ node: this.#nodes.nameOf(place), error: reasonOf(each) })),
      )
    }
    const lines = new NdjsonReply(reply)
    this.#open.add(stream)
    lines.until(() => stream.abort())
    signal.addEventListener('abort', () => {
      this.#open.delete(stream)
      lines.end()
    })
    for (const place of places) void this.#follow(place, { request, first: first[place]!, signal, lines })
    return reply
  }

  /** What a node says, for as long as the client stays; it is asked again when it was lost. Never rejects. */
  async #follow(place: number, { request, first, signal, lines }: Followed): Promise<void> {
    const node = this.#nodes.nameOf(place)
    for (let answer = first; !signal.aborted; ) {
      let error = reasonOf(answer)
      if (answer instanceof Response && answer.ok) {
        error = 'its stream has ended'
        try {
          for await (const line of linesOf(answer)) lines.sendLine(ofNode(line, node))
        } catch (thrown) {
          error = reasonOf(thrown)
        }
      }
      if (signal.aborted) return
      lines.send({ type: 'node_away', error, node })
      do {
        await sleep(AGAIN_MS, undefined, { signal }).catch(() => {})
        answer = await this.#begin(place, request, signal)
      } while (!signal.aborted && !(answer instanceof Response && answer.ok))
      if (!signal.aborted) lines.send({ type: 'node_back', node })
    }
  }

  async #begin(place: number, request: FastifyRequest, signal: AbortSignal): Promise<Begun> {
    try {
      const response = await this.#nodes.open(place, request, signal)
      const { ok, status } = response
      if (ok) return response
      const text = await response.text()
      return status < 500 ? { status, text } : new Error(`HTTP ${status}`)
    } catch (error) {
      return error as Error
    }
  }
}

interface Refusal {
  status: number
  text: string
}

type Begun = Response | Refusal | Error

interface Followed {
  request: FastifyRequest
  first: Begun
  signal: AbortSignal
  lines: NdjsonReply
}

function isRefusal(begun: Begun): begun is Refusal {
  return !(begun instanceof Response) && 'status' in begun
}

async function* linesOf({ body }: Response): AsyncGenerator<string> {
  let rest = ''
  for await (const text of body!.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split('\n')
    rest = lines.pop()!
    yield* lines
  }
}

/** An event is an object, and never an empty one. */
function ofNode(line: string, node: string): string {
  return `{"node":"${node}",${line.slice(1)}`
}
