/** A request as it goes on record. */
import { ProxyError } from '../../../base/errors.ts'
import { formatTools } from '../../../protocol/canonical/number-texts.ts'
import type { CanonicalRequest, GenerationRequest } from '../../../protocol/canonical/request.ts'
import { encodeElements } from '../../../protocol/json/json-member.ts'
import type { OpenTurn } from '../../store/port/turn-store.ts'
import { promptPieces } from '../prompts/prompt-pieces.ts'
import type { SessionMemory } from '../state/session-memory.ts'

export type WrittenRequest = Pick<OpenTurn, 'lastMessage' | 'tools' | 'params' | 'promptPieces'>

/**
 * Only what the session's earlier requests did not have is written as JSON.
 * @throws ProxyError `invalid_request` for nesting that JSON cannot carry
 */
export function writeRequest(
  request: CanonicalRequest,
  { messages, requests }: Pick<SessionMemory, 'messages' | 'requests'>,
): WrittenRequest {
  try {
    const params = paramsText(request)
    if (request.kind === 'completion') {
      const pieces = promptPieces(request.body.prompt)
      return { lastMessage: undefined, tools: null, params, promptPieces: pieces }
    }
    const { tools } = request.body
    return {
      lastMessage: messages.addMessages(request.body.messages),
      tools: tools ? requests.once(formatTools, tools) : null,
      params,
      promptPieces: [],
    }
  } catch (cause) {
    throw new ProxyError('invalid_request', 'The request is nested too deeply', { cause })
  }
}

/** The body without what is stored apart from it. */
export function paramsText({ body }: CanonicalRequest): string {
  const { messages: _messages, tools: _tools, prompt: _prompt, ...params } = body
  return JSON.stringify(params)
}

/**
 * What of a request is there as JSON, or is written once for all calls of the session.
 * @param messagesJson of the messages as they came
 */
export function jsonAtHand(
  request: CanonicalRequest,
  { lastMessage }: WrittenRequest,
  { messages, prompts, requests }: SessionMemory,
  messagesJson: readonly Buffer[] | undefined,
): Pick<GenerationRequest, 'messagesJson' | 'toolsJson' | 'promptLists'> {
  const json = messagesJson ?? (lastMessage && messages.jsonUpTo(lastMessage))
  const tools = (request.kind === 'chat' && request.body.tools) || []
  return {
    promptLists: prompts,
    messagesJson: json,
    // From the text that is on record: kept as well, these bytes would be the tools' third copy.
    ...(tools.length > 0 && { toolsJson: encodeElements(requests.once(formatTools, tools)) }),
  }
}
