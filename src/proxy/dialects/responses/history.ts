/** Access to recorded responses, for `previous_response_id` and `GET …/responses/{id}`. */
import { ProxyError } from '../../../base/errors.ts'
import { getAncestor, getMessagesBetween } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage, Tool, ToolCall, Usage } from '../../../protocol/canonical/messages.ts'
import { parseKeepingNumbers } from '../../../protocol/canonical/number-texts.ts'
import type { TurnOutline, TurnRecord } from '../../store/port/turn-store.ts'
import { toOutputItems } from './output.ts'
import type { OutputItem } from './output-item.ts'
import type { ResponsesAnnotation } from './request.ts'
import {
  buildResponseObject,
  parseTurnId,
  type ResponseFrame,
  readOutputOptions,
  toEndState,
} from './response.ts'
import type { ResponsesRequest } from './schema.ts'

/** A function that returns a turn of the request's own session by its id. */
export type TurnFinder = (turnId: string) => Promise<TurnRecord | undefined>

/** Returns the messages that a request continues, without the instructions of earlier requests, as in the API. */
export async function readHistory(request: ResponsesRequest, find: TurnFinder): Promise<ChatMessage[]> {
  const { previous_response_id: id } = request
  if (id === undefined || id === null) return []
  const turn = await findResponse(id, find, 'previous_response_id')
  const messages = getMessagesBetween(undefined, turn.lastMessage).map(({ value }) => value)
  return [...(readAnnotation(turn).instructions ? messages.slice(1) : messages), buildAssistantMessage(turn)]
}

/**
 * Returns the turn of a response.
 * @param param the name of the field that contains the id
 * @throws ProxyError `response_not_found`, also if the request set `store: false`, or the response has not ended
 */
export async function findResponse(id: string, find: TurnFinder, param: string): Promise<TurnRecord> {
  const turnId = parseTurnId(id)
  const turn = turnId === undefined ? undefined : await find(turnId)
  if (turn && isResponse(turn)) return turn
  throw new ProxyError('response_not_found', `Response with id '${id}' not found.`, { param })
}

/** The parts of a turn that its output consists of. */
export type OutputTurn = Pick<TurnRecord, keyof TurnOutline & keyof TurnRecord>

/** Returns whether a turn is a response that requests may refer to. */
export function isResponse(turn: OutputTurn): boolean {
  const isComplete = turn.finishReason !== null
  return turn.dialect === 'responses' && isComplete && toFrameParams(turn).store !== false
}

/** Returns the response object of a turn. Its tools are the functions that the model was shown. */
export function buildRecordedResponse(turn: TurnRecord): object {
  const frame = toResponseFrame(turn)
  return buildResponseObject(frame, {
    ...toEndState({ finishReason: turn.finishReason ?? '' }),
    model: turn.model ?? undefined,
    output: buildOutputItems(turn),
    usage: turn.usage === null ? undefined : (JSON.parse(turn.usage) as Usage),
    endedAtS: turn.endedAtMs === null ? undefined : Math.floor(turn.endedAtMs / 1000),
  })
}

/** Returns the output items of a recorded response. */
export function buildOutputItems(turn: OutputTurn): OutputItem[] {
  const isComplete = toEndState({ finishReason: turn.finishReason ?? '' }).status === 'completed'
  const completion = {
    content: turn.completionText,
    reasoning: turn.reasoning,
    refusal: null,
    toolCalls: JSON.parse(turn.toolCalls) as ToolCall[],
  }
  return toOutputItems(readOutputOptions(toOutputFrame(turn)), completion, isComplete)
}

function buildAssistantMessage(turn: TurnRecord): ChatMessage {
  const toolCalls = JSON.parse(turn.toolCalls) as ToolCall[]
  return {
    role: 'assistant',
    content: turn.completionText,
    ...(turn.reasoning !== null && { reasoning_content: turn.reasoning }),
    ...(toolCalls.length > 0 && { tool_calls: toolCalls }),
  } as ChatMessage
}

function toResponseFrame(turn: TurnRecord): ResponseFrame {
  const frame = toOutputFrame(turn)
  const { annotation, params } = frame
  const first = annotation.instructions ? getAncestor(turn.lastMessage, 1)?.value : undefined
  return {
    ...frame,
    instructions: typeof first?.content === 'string' ? first.content : null,
    tools: (turn.tools === null ? [] : (JSON.parse(turn.tools) as Tool[])).map(flattenTool),
    toolChoice: flattenChoice(params.tool_choice),
  }
}

/** Returns the parts of the frame that determine the output, which requires neither messages nor tools. */
function toOutputFrame(turn: OutputTurn) {
  const annotation = readAnnotation(turn)
  const params = toFrameParams(turn)
  const reasoning = params.include_reasoning !== false
  return {
    identity: {
      turnId: turn.turnId,
      createdS: Math.floor(turn.startedAtMs / 1000),
      model: params.model ?? '',
    },
    responseOptions: { logprobs: false, reasoning, tokenIds: false },
    annotation,
    wireTools: new Map(Object.entries(annotation.wire_tools)),
    params,
  }
}

/** Returns a tool in the flat form of the Responses API, which Chat Completions nests. */
function flattenTool(tool: Tool): Tool {
  return tool.type === 'function' ? ({ type: 'function', ...tool.function } as unknown as Tool) : tool
}

function flattenChoice(choice: unknown): unknown {
  if (typeof choice !== 'object' || choice === null) return choice ?? 'auto'
  return { type: 'function', ...(choice as { function: object }).function }
}

function toFrameParams(turn: OutputTurn): ResponseFrame['params'] {
  return parseKeepingNumbers(turn.params) as ResponseFrame['params']
}

/** Reads the annotation, which every completed turn of this dialect has. */
function readAnnotation(turn: OutputTurn): ResponsesAnnotation {
  return (JSON.parse(turn.annotations) as { responses: ResponsesAnnotation }).responses
}
