/**
 * The canonical request: the body of OpenAI Chat Completions (or of the older Completions), with wire names, and
 * with every field the agent sent, known or not. Dialects make it, the session layer overrides its sampling, engine
 * clients and workers serve it.
 */
import type { CaptureOptions } from '../token-data/kinds.ts'
import type { PromptIds } from '../token-ids/prompt-ids.ts'
import type { PromptLists } from '../token-ids/prompt-lists.ts'
import type { Message } from './conversation.ts'
import type { PromptImages } from './images.ts'
import type { ChatMessage, Tool } from './messages.ts'
import type { TurnSpans } from './spans.ts'

/** Sampling fields that the proxy itself reads; all others pass through under their own names. */
export interface SamplingFields {
  model?: string
  temperature?: number | null
  top_p?: number | null
  top_k?: number | null
  seed?: number | null
  max_tokens?: number | null
  max_completion_tokens?: number | null
  stop?: string | string[] | null
  n?: number | null
  /** A name of `reasoning-effort.ts`, or a value of the model's own. */
  reasoning_effort?: unknown
  /** Variables of the chat template. */
  chat_template_kwargs?: unknown
  [field: string]: unknown
}

export interface ChatBody extends SamplingFields {
  messages: ChatMessage[]
  tools?: Tool[] | null
  /** As the agent sent it: whether the agent wants logprobs. Recording never depends on it. */
  logprobs?: boolean | null
  top_logprobs?: number | null
}

export interface CompletionBody extends SamplingFields {
  /** Text, or token ids. */
  prompt: string | number[]
  /** As the agent sent it: how many alternatives per token; null or absent is none. */
  logprobs?: number | null
  echo?: boolean | null
}

interface CanonicalChat {
  kind: 'chat'
  body: ChatBody
  /**
   * Token mode, for a prompt that leaves no room for an answer: an error, on which agents of this dialect shorten their
   * conversation. Otherwise the answer is empty, and ends for its length.
   */
  refuseOverlong?: boolean
}

/** What an agent asks for, whatever its dialect. */
export type CanonicalRequest = CanonicalChat | { kind: 'completion'; body: CompletionBody }

/** What the session layer asks a backend for. One per turn. */
export type GenerationRequest = CanonicalRequest & {
  /** Unique per call; also the turn's id. */
  requestId: string
  sessionId: string
  /** Which of the session's sub-agents calls, by the agent's own word; absent: none does, or nobody says so. */
  subagent?: string | undefined
  /** Whether events should come as the engine samples (true) or all at once when it is done. */
  stream: boolean
  /** What is recorded beyond ids and logprobs; absent: nothing. */
  record?: CaptureOptions | undefined
  /** Routed experts of the prompt are on record up to this place, and need not come again; absent: none is. */
  expertsStart?: number
  /** The call of which this is one of several answers: their prompt is the same. Absent: the only one. */
  choiceOf?: string | undefined
  /** Only for an engine that lists the body's model: any other one would sample with other weights. */
  mustServe?: boolean | undefined
  /** The last of the body's messages, of a call that is recorded. */
  lastMessage?: Message | undefined
  /**
   * JSON of the body's messages, where it is there already: in UTF-8, with commas between them and without
   * brackets, in pieces.
   */
  messagesJson?: readonly Buffer[] | undefined
  /** JSON of the body's tools, if it is there: in UTF-8, with commas between them and without brackets. */
  toolsJson?: Buffer
  /**
   * Token mode, of kind `chat` only: sample after exactly these ids; messages and tools are for the record. The proxy
   * decodes and parses: events carry `tokenIds` and `logprobs`, and `content`, where an engine gives text, is its raw text.
   */
  promptTokenIds?: PromptIds
  /**
   * With `promptTokenIds`: how the model writes tool calls, by the name of the parser that reads them. An engine that can
   * hold the answer to calls in this markup (`tools`, `tool_choice`, `parallel_tool_calls` of the body) does so; for any
   * other a forced call has a JSON schema as its `response_format`.
   */
  callFormat?: string
  /** With `promptTokenIds`: the model may reason before it answers; its template has not ended that already. */
  mayReason?: boolean
  /** With `promptTokenIds`: which of them stand for the images of the body's messages. Absent: there are none. */
  images?: PromptImages
  /** Is called when an engine or a worker is about to be asked: not while the call waits for one, and for each one anew. */
  onAsked?(): void
  /** What is known of the session's prompts as engines read and write them. */
  promptLists?: PromptLists
  /** Is told of its steps; absent: nobody traces it. */
  spans?: TurnSpans | undefined
  /** Names the span that it belongs to: for its engine, as the header of this name (W3C Trace Context). */
  traceparent?: string
}
