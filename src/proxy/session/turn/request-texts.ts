/** A request in the form in which it is recorded. */
import { ProxyError } from '../../../base/errors.ts'
import { formatTools } from '../../../protocol/canonical/number-texts.ts'
import type { CanonicalRequest, GenerationRequest } from '../../../protocol/canonical/request.ts'
import { encodeElements } from '../../../protocol/json/json-member.ts'
import type { OpenTurn } from '../../store/port/turn-store.ts'
import { toPromptChunks } from '../prompts/prompt-chunks.ts'
import type { SessionMemory } from '../state/session-memory.ts'

export type RequestTexts = Pick<OpenTurn, 'lastMessage' | 'tools' | 'params' | 'promptPieces'>

/**
 * Serializes a request. Only the parts that the session's earlier requests did not contain are converted to JSON.
 * @throws ProxyError `invalid_request` for nesting that JSON cannot represent
 */
export function writeRequest(
  request: CanonicalRequest,
  { messages, requests }: Pick<SessionMemory, 'messages' | 'requests'>,
): RequestTexts {
  try {
    const params = toParamsText(request)
    if (request.kind === 'completion') {
      const chunks = toPromptChunks(request.body.prompt)
      return { lastMessage: undefined, tools: null, params, promptPieces: chunks }
    }
    const { tools } = request.body
    return {
      lastMessage: messages.addMessages(request.body.messages),
      tools: tools ? requests.computeOnce(formatTools, tools) : null,
      params,
      promptPieces: [],
    }
  } catch (cause) {
    throw new ProxyError('invalid_request', 'The request is nested too deeply', { cause })
  }
}

/** Returns the body without the parts that are stored separately. */
export function toParamsText({ body }: CanonicalRequest): string {
  const { messages: _messages, tools: _tools, prompt: _prompt, ...params } = body
  return JSON.stringify(params)
}

/**
 * Returns the parts of a request that exist as JSON, or are serialized once for all requests of the session.
 * @param messagesJson the original bytes of the messages
 */
export function getKnownJson(
  request: CanonicalRequest,
  { lastMessage }: RequestTexts,
  { messages, prompts, requests }: SessionMemory,
  messagesJson: readonly Buffer[] | undefined,
): Pick<GenerationRequest, 'messagesJson' | 'toolsJson' | 'promptLists'> {
  const json = messagesJson ?? (lastMessage && messages.getJsonUpTo(lastMessage))
  const tools = (request.kind === 'chat' && request.body.tools) || []
  return {
    promptLists: prompts,
    messagesJson: json,
    // The bytes are encoded again each time, because caching them would keep a third copy of the tools.
    ...(tools.length > 0 && { toolsJson: encodeElements(requests.computeOnce(formatTools, tools)) }),
  }
}
