/** Engines whose responses are cut: a server between the proxy and the engine holds back a part of them. */
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'
import type { Test } from 'tap'

/** A response of the engine, complete. */
interface Answer {
  status: number
  type: string
  body: Buffer
}

/** Responds to a streamed request. @param ask sends the request to the engine */
type Respond = (
  body: Buffer,
  sendRequest: () => Promise<Answer>,
  response: ServerResponse,
) => Promise<unknown>

/**
 * Forwards requests to the engine, and only half of one response.
 * @param lostResponse index of the streamed response that is lost, from 0
 * @returns the URL for the proxy
 */
export async function startLosingEngine(t: Test, engineUrl: string, lostResponse: number): Promise<string> {
  let streams = 0
  return startBetween(t, engineUrl, async (_, sendRequest, response) => {
    const isLost = streams++ === lostResponse
    const reply = await sendRequest()
    if (!isLost) return send(reply, response)
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

/** What follows in a response after `prompt`, which ends with the tokens that were sent before. */
interface Rest {
  prompt: readonly number[]
  /** The number of tokens that were sent before. */
  sent: number
  events: StreamEvent[]
  /** The cuts that are still to come. */
  cuts: readonly ('lost' | 'abort')[]
}

/** A request that sampled tokens. */
export interface SampledPart {
  prompt: readonly number[]
  ids: number[]
}

/**
 * Forwards requests to the engine, and gives each streamed response in three parts: it breaks the connection after the
 * first, and aborts the second. A request receives the next part if its prompt is that of the response, followed by the
 * ids that were sent.
 * @param parts receives each part that was sent
 * @returns the URL for the proxy
 */
export async function startCuttingEngine(t: Test, engineUrl: string, parts: SampledPart[]): Promise<string> {
  const rests: Rest[] = []
  return startBetween(t, engineUrl, async (body, sendRequest, response) => {
    const { prompt, return_token_ids: returnsIds } = JSON.parse(body.toString()) as CompletionBody
    const index = rests.findIndex((rest) => isSame(rest.prompt, prompt))
    let [rest] = index === -1 ? [] : rests.splice(index, 1)
    if (rest === undefined) {
      const reply = await sendRequest()
      if (reply.status !== 200) return send(reply, response)
      rest = { prompt, sent: 0, events: readEvents(reply.body), cuts: ['lost', 'abort'] }
    }
    return sendPart(rest, { rests, parts, returnsIds: returnsIds === true, response })
  })
}

/** The last event of a request that the engine aborted. */
const ABORT = { choices: [{ index: 0, text: '', logprobs: null, finish_reason: 'abort' }] }

interface PartReceivers {
  rests: Rest[]
  parts: SampledPart[]
  returnsIds: boolean
  response: ServerResponse
}

/** Sends the events of a response up to its next cut. */
function sendPart(rest: Rest, { rests, parts, returnsIds, response }: PartReceivers): void {
  const { prompt, sent, events, cuts } = rest
  const [cut, ...later] = cuts
  const tokenEvents = events.filter((event) => getIds(event).length > 0).length
  const own = cut === undefined ? events : events.slice(0, Math.floor(tokenEvents / (cuts.length + 1)))
  const ids = own.flatMap(getIds)
  parts.push({ prompt, ids })
  if (cut !== undefined)
    rests.push({
      prompt: [...prompt, ...ids],
      sent: sent + ids.length,
      events: events.slice(own.length),
      cuts: later,
    })
  const sentEvents = own.map((event, index) => write(toPart(event, index === 0 && returnsIds, rest))).join('')
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  if (cut === 'lost') response.write(sentEvents, () => response.destroy())
  else response.end(`${sentEvents}${cut === 'abort' ? write(ABORT) : ''}data: [DONE]\n\n`)
}

/** Returns an event as the request that samples only the rest would have it. */
function toPart(event: StreamEvent, hasPrompt: boolean, { prompt, sent }: Rest): StreamEvent {
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

/** Returns the ids of an event's tokens; `token_ids` has them only on request. */
function getIds({ choices }: StreamEvent): readonly number[] {
  return (choices[0]?.logprobs?.tokens ?? []).map((token) => Number(token.replace('token_id:', '')))
}

function readEvents(body: Buffer): StreamEvent[] {
  return [...body.toString().matchAll(/^data: (\{.*\})$/gm)].map(([, json]) => JSON.parse(json!))
}

function write(event: object): string {
  return `data: ${JSON.stringify(event)}\n\n`
}

function isSame(one: readonly number[], other: readonly number[]): boolean {
  return one.length === other.length && one.every((id, index) => id === other[index])
}

function send({ status, type, body }: Answer, response: ServerResponse): void {
  response.writeHead(status, { 'content-type': type })
  response.end(body)
}

/** Starts a server that forwards all requests but the streamed ones, which `respond` receives. @returns its URL */
async function startBetween(t: Test, engineUrl: string, respond: Respond): Promise<string> {
  const handle = async (request: IncomingMessage, response: ServerResponse) => {
    const { method = 'GET', headers, url } = request
    const body = method === 'GET' ? null : await buffer(request)
    const type = headers['content-type']
    const sendRequest = async () => {
      const init = { method, body, ...(type !== undefined && { headers: { 'content-type': type } }) }
      const response = await fetch(engineUrl + url, init)
      const answerType = response.headers.get('content-type') ?? 'text/plain'
      return { status: response.status, type: answerType, body: Buffer.from(await response.arrayBuffer()) }
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
