/** A request as JSON texts, for the record and for whoever sends it on. */
import type { ChatMessage, Tool } from '../canonical/messages.ts'
import type { CanonicalRequest } from '../canonical/request.ts'
import { ProxyError } from '../errors.ts'
import { RecentlyUsed } from '../recently-used.ts'
import type { OpenTurn } from '../store/turn-store.ts'
import { promptPieces } from './prompt-pieces.ts'

export type RequestTexts = Pick<OpenTurn, 'requestMessages' | 'tools' | 'params' | 'promptPieces'>

/** For the last requests of all sessions. */
const MAX_CHARS = 16 * 1024 * 1024

interface Written {
  readonly messages: readonly ChatMessage[]
  readonly tools: readonly Tool[] | null | undefined
  readonly texts: RequestTexts
}

/**
 * Writes requests as JSON. What is the very object that the session's last request had is not written again: `src/http`
 * hands on the same one for what an agent repeats.
 */
export class RequestTextWriter {
  readonly #last = new RecentlyUsed<string, Written>(MAX_CHARS, charsOf)

  /** @throws ProxyError `invalid_request` for nesting that JSON cannot carry */
  write(sessionId: string, request: CanonicalRequest): RequestTexts {
    try {
      const params = paramsText(request)
      if (request.kind === 'completion')
        return { requestMessages: [], tools: null, params, promptPieces: promptPieces(request.body.prompt) }
      const { messages, tools } = request.body
      const last = this.#last.get(sessionId)
      const requestMessages = messageTexts(messages, last)
      const texts = { requestMessages, tools: toolsText(tools, last), params, promptPieces: [] }
      this.#last.set(sessionId, { messages, tools, texts })
      return texts
    } catch (cause) {
      throw new ProxyError('invalid_request', 'The request is nested too deeply', { cause })
    }
  }
}

/** The body without what is stored apart from it. */
export function paramsText({ body }: CanonicalRequest): string {
  const { messages: _messages, tools: _tools, prompt: _prompt, ...params } = body
  return JSON.stringify(params)
}

function messageTexts(messages: readonly ChatMessage[], last: Written | undefined): string[] {
  return messages.map((message, place) =>
    message === last?.messages[place] ? last.texts.requestMessages[place]! : JSON.stringify(message),
  )
}

function toolsText(tools: readonly Tool[] | null | undefined, last: Written | undefined): string | null {
  if (!tools) return null
  return tools === last?.tools ? last.texts.tools : JSON.stringify(tools)
}

function charsOf({ texts: { requestMessages, tools } }: Written): number {
  return requestMessages.reduce((sum, { length }) => sum + length, tools?.length ?? 0)
}
