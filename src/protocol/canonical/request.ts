/**
 * The canonical request: the body of OpenAI Chat Completions (or of the older Completions), with wire names and every
 * field that the agent sent, known or not. Dialects create it, the session layer overrides its sampling parameters,
 * engine clients and workers serve it.
 */
import type { ErrorCode } from '../../base/errors.ts'
import type { CaptureOptions } from '../token-data/kinds.ts'
import type { PromptIds } from '../token-ids/prompt-ids.ts'
import type { PromptLists } from '../token-ids/prompt-lists.ts'
import type { Message } from './conversation.ts'
import type { GenerationLog } from './generation-log.ts'
import type { PromptImages } from './images.ts'
import type { ChatMessage, Tool } from './messages.ts'
import type { RawNumber } from './number-texts.ts'
import type { TurnSpans } from './spans.ts'

/** Sampling fields that the proxy itself reads; all others pass through under their own names. */
export interface SamplingFields {
  model?: string
  temperature?: number | null
  top_p?: number | null
  top_k?: number | null
  seed?: number | RawNumber | null
  max_tokens?: number | null
  max_completion_tokens?: number | null
  stop?: string | string[] | null
  n?: number | null
  /** A name of `reasoning-effort.ts`, or a model-specific value. */
  reasoning_effort?: unknown
  /** Variables of the chat template. */
  chat_template_kwargs?: unknown
  [field: string]: unknown
}

export interface ChatBody extends SamplingFields {
  messages: ChatMessage[]
  tools?: Tool[] | null
  /** The field as the agent sent it: whether it requests logprobs. Recording never depends on it. */
  logprobs?: boolean | null
  top_logprobs?: number | null
}

export interface CompletionBody extends SamplingFields {
  /** The prompt as text or token ids. */
  prompt: string | number[]
  /** The number of alternatives per token that the agent requested; null or absent: none. */
  logprobs?: number | null
  echo?: boolean | null
}

interface CanonicalChat {
  kind: 'chat'
  body: ChatBody
  /**
   * Token mode: whether a prompt that leaves no room for a completion fails, with an error that makes agents of this
   * dialect shorten their conversation. Absent: the completion is empty and ends with `length`.
   */
  rejectOverlong?: boolean
}

/** A request of an agent, independent of its dialect. */
export type CanonicalRequest = CanonicalChat | { kind: 'completion'; body: CompletionBody }

/** The request that the session layer sends to a backend, one per turn. */
export type GenerationRequest = CanonicalRequest & {
  /** Unique per request; also the turn's id. */
  requestId: string
  sessionId: string
  /** The sub-agent that sent the request, as declared by the client; absent: none, or undeclared. */
  subagent?: string | undefined
  /** Whether events arrive as the engine samples (true) or in one batch when it has finished. */
  stream: boolean
  /** The token data to capture beyond ids and logprobs; absent: none. */
  record?: CaptureOptions | undefined
  /**
   * The number of leading prompt tokens whose routed experts are already stored and need not be sent again; absent:
   * none.
   */
  expertsStart?: number
  /** The id of the request of which this is one of several choices with the same prompt. Absent: it is the only one. */
  choiceOf?: string | undefined
  /**
   * Whether only an engine that lists the body's model may serve the request: any other engine would sample with other
   * weights.
   */
  mustServe?: boolean | undefined
  /**
   * The weights that sampled the first part of this response: an engine with older ones must not serve the rest. Absent:
   * any may serve it.
   */
  minWeightVersion?: string | undefined
  /**
   * The errors after which the rest of the response is requested: a backend delivers all tokens that arrived before one
   * of them. Absent: none.
   */
  continuesAfter?: ReadonlySet<ErrorCode> | undefined
  /** The last of the body's messages; set for recorded requests. */
  lastMessage?: Message | undefined
  /**
   * The JSON of the body's messages, if already available: in UTF-8, separated by commas, without brackets, in chunks.
   */
  messagesJson?: readonly Buffer[] | undefined
  /** The JSON of the body's tools, if available: in UTF-8, separated by commas, without brackets. */
  toolsJson?: Buffer
  /**
   * Token mode, of kind `chat` only: the engine samples after exactly these ids; messages and tools are for the store.
   * The proxy decodes and parses: events carry `tokenIds` and `logprobs`, and `content`, if an engine sends it, is raw
   * text.
   */
  promptTokenIds?: PromptIds
  /**
   * With `promptTokenIds`: the model's tool-call format, by the name of its parser. An engine that supports constrained
   * decoding in this markup (`tools`, `tool_choice`, `parallel_tool_calls` of the body) applies it; for any other one a
   * forced tool call has a JSON schema as its `response_format`.
   */
  callFormat?: string
  /** With `promptTokenIds`: whether the model may reason first: the template has not closed the reasoning. */
  mayReason?: boolean
  /** With `promptTokenIds`: the tokens that represent the images of the body's messages. Absent: there are none. */
  images?: PromptImages
  /**
   * Called before the request is dispatched to an engine or worker, once per attempt; not called while it is queued.
   */
  onDispatched?(): void
  /** The session's earlier prompts as engines read and write them. */
  promptLists?: PromptLists
  /** The log of the request's steps; absent: not logged. */
  log?: GenerationLog | undefined
  /** The spans of the request's steps; absent: not traced. */
  spans?: TurnSpans | undefined
  /** The parent span, sent to the engine in the header of this name (W3C Trace Context). */
  traceparent?: string
}
