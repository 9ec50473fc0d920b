/** Faulty engines: a server between the proxy and the engine interrupts responses. */
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'
import type { Test } from 'tap'

/** A complete response of the engine. */
interface EngineResponse {
  status: number
  type: string
  body: Buffer
}

/** Responds to a streamed request. @param sendRequest sends the request to the engine */
type Responder = (
  body: Buffer,
  sendRequest: () => Promise<EngineResponse>,
  response: ServerResponse,
) => Promise<unknown>

/**
 * Forwards requests to the engine, and disconnects in the middle of one response.
 * @param cutIndex index of the streamed response that is cut, from 0
 * @returns the URL for the proxy
 */
export async function startDisconnectingEngine(
  t: Test,
  engineUrl: string,
  cutIndex: number,
): Promise<string> {
  let streams = 0
  return startForwarder(t, engineUrl, async (_, sendRequest, response) => {
    const isCut = streams++ === cutIndex
    const reply = await sendRequest()
    if (!isCut) return send(reply, response)
    response.writeHead(reply.status, { 'content-type': reply.type })
    return response.write(reply.body.subarray(0, reply.body.length / 2), () => response.destroy())
  })
}

/** A request for a completion in token mode. */
interface CompletionBody {
  prompt: number[]
  return_token_ids?: boolean
}

/** An event of a stream of vLLM's completions in token mode. */
interface StreamEvent {
  choices: {
    logprobs: { tokens: string[] } | null
    /** Only in the first event, and on request. */
    prompt_token_ids?: readonly number[] | null
  }[]
  usage: { prompt_tokens: number; completion_tokens: number; total_tokens: number } | null
}

/** The rest of a response. */
interface ResponseRest {
  /** The prompt of the response, followed by the ids that were already sent. */
  prompt: readonly number[]
  /** The number of ids that were already sent. */
  sent: number
  events: StreamEvent[]
  /** The remaining cuts. */
  cuts: readonly ('disconnect' | 'abort')[]
}

/** A part of a completion that one engine request sampled. */
export interface SampledPart {
  prompt: readonly number[]
  ids: number[]
}

/**
 * Forwards requests to the engine, and sends each streamed response in three parts: it disconnects after the first, and
 * aborts the second. A request whose prompt is that of the response followed by the sent ids receives the next part.
 * @param parts collects each part that was sent
 * @returns the URL for the proxy
 */
export async function startCuttingEngine(t: Test, engineUrl: string, parts: SampledPart[]): Promise<string> {
  const rests: ResponseRest[] = []
  return startForwarder(t, engineUrl, async (body, sendRequest, response) => {
    const { prompt, return_token_ids: returnsIds } = JSON.parse(body.toString()) as CompletionBody
    const index = rests.findIndex((rest) => isSame(rest.prompt, prompt))
    let [rest] = index === -1 ? [] : rests.splice(index, 1)
    if (rest === undefined) {
      const reply = await sendRequest()
      if (reply.status !== 200) return send(reply, response)
      rest = { prompt, sent: 0, events: readEvents(reply.body), cuts: ['disconnect', 'abort'] }
    }
    return sendPart(rest, { rests, parts, returnsIds: returnsIds === true, response })
  })
}

/** The last event of a response that the engine aborted. */
const ABORT = { choices: [{ index: 0, text: '', logprobs: null, finish_reason: 'abort' }] }

interface PartContext {
  rests: ResponseRest[]
  parts: SampledPart[]
  returnsIds: boolean
  response: ServerResponse
}

/** Sends the events of a response up to its next cut. */
function sendPart(rest: ResponseRest, { rests, parts, returnsIds, response }: PartContext): void {
  const { prompt, sent, events, cuts } = rest
  const [cut, ...remainingCuts] = cuts
  const tokenEvents = events.filter((event) => getIds(event).length > 0).length
  const partEvents = cut === undefined ? events : events.slice(0, Math.floor(tokenEvents / (cuts.length + 1)))
  const ids = partEvents.flatMap(getIds)
  parts.push({ prompt, ids })
  if (cut !== undefined)
    rests.push({
      prompt: [...prompt, ...ids],
      sent: sent + ids.length,
      events: events.slice(partEvents.length),
      cuts: remainingCuts,
    })
  const stream = partEvents
    .map((event, index) => formatEvent(toPart(event, index === 0 && returnsIds, rest)))
    .join('')
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  if (cut === 'disconnect') response.write(stream, () => response.destroy())
  else response.end(`${stream}${cut === 'abort' ? formatEvent(ABORT) : ''}data: [DONE]\n\n`)
}

/** Returns an event as it would be in the response of a request that samples only the rest. */
function toPart(event: StreamEvent, hasPrompt: boolean, { prompt, sent }: ResponseRest): StreamEvent {
  const { choices, usage } = event
  return {
    ...event,
    choices: choices.map((choice) => ({ ...choice, prompt_token_ids: hasPrompt ? prompt : null })),
    usage: usage && {
      ...usage,
      prompt_tokens: usage.prompt_tokens + sent,
      completion_tokens: usage.completion_tokens - sent,
    },
  }
}

/** Returns the ids of an event's tokens. `logprobs` always has them, `token_ids` only on request. */
function getIds({ choices }: StreamEvent): readonly number[] {
  return (choices[0]?.logprobs?.tokens ?? []).map((token) => Number(token.replace('token_id:', '')))
}

function readEvents(body: Buffer): StreamEvent[] {
  return [...body.toString().matchAll(/^data: (\{.*\})$/gm)].map(([, json]) => JSON.parse(json!))
}

function formatEvent(event: object): string {
  return `data: ${JSON.stringify(event)}\n\n`
}

function isSame(one: readonly number[], other: readonly number[]): boolean {
  return one.length === other.length && one.every((id, index) => id === other[index])
}

function send({ status, type, body }: EngineResponse, response: ServerResponse): void {
  response.writeHead(status, { 'content-type': type })
  response.end(body)
}

/** Starts a server that passes streamed requests to `respond` and forwards all others. @returns its URL */
async function startForwarder(t: Test, engineUrl: string, respond: Responder): Promise<string> {
  const handle = async (request: IncomingMessage, response: ServerResponse) => {
    const { method = 'GET', headers, url } = request
    const body = method === 'GET' ? null : await buffer(request)
    const requestType = headers['content-type']
    const sendRequest = async () => {
      const init = {
        method,
        body,
        ...(requestType !== undefined && { headers: { 'content-type': requestType } }),
      }
      const response = await fetch(engineUrl + url, init)
      const type = response.headers.get('content-type') ?? 'text/plain'
      return { status: response.status, type, body: Buffer.from(await response.arrayBuffer()) }
    }
    if (body?.includes('"stream":true')) await respond(body, sendRequest, response)
    else send(await sendRequest(), response)
  }
  const server = createServer((request, response) => void handle(request, response))
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}
