/**
 * The prompts of token mode. Chat requests arrive as messages and are sent to the engine as token ids; the engine's
 * tokens are sent to the agent as text, reasoning and tool calls. Sampled tokens are never changed: the prompt of a
 * request that continues a turn begins with that turn's recorded ids.
 */
import { ProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { Message } from '../../../protocol/canonical/conversation.ts'
import type { GenerationEvent, GenerationStart } from '../../../protocol/canonical/events.ts'
import type { PromptImages } from '../../../protocol/canonical/images.ts'
import { adaptEffort } from '../../../protocol/canonical/reasoning-effort.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import type { TokenIds } from '../../../protocol/token-ids/token-ids.ts'
import type { TurnStep, TurnStore } from '../../store/port/turn-store.ts'
import { type ImagePosition, locateImages } from '../../tokens/images/prompt-images.ts'
import type { TokenModel } from '../../tokens/model/token-model.ts'
import { mayBeginWithReasoning } from '../../tokens/parsers/choose-parser.ts'
import type { PromptOptions } from '../../tokens/prompt/prompt-renderer.ts'
import { createConversationReader } from '../matching/rebuild-index.ts'
import { getDeclaredParent, getParentPart } from '../matching/recorded-parent.ts'
import { readSessionTurns, type SessionTurns } from '../matching/session-turns.ts'
import type { ToolCallIds } from '../matching/tool-call-ids.ts'
import { type RequestBudget, UNLIMITED } from '../state/limits.ts'
import type { PromptPlan } from '../state/prompt-plan.ts'
import type { SessionMemory } from '../state/session-memory.ts'
import { findAdaptedRoles } from './adapted-roles.ts'
import {
  type CompletionDecoder,
  createChatDecoder,
  createChatText,
  getEndTokenIds,
} from './completion-decoder.ts'
import { TokenContinuationPlanner } from './continuation.ts'
import { createEchoAnnotation, findUnknownIds } from './echo-annotation.ts'
import { findInexactReason } from './exactness.ts'
import { constrainBody, findForcedToolCallSchema } from './forced-tool-call.ts'
import {
  type ChatGenerationRequest,
  planPrompt,
  renderFullPrompt,
  toPromptOptions,
  withVariables,
} from './prompt-planner.ts'
import {
  createEmptyResponse,
  type MaybePromise,
  PromptCounts,
  type PromptSession,
  type Prompts,
  type PromptTokens,
  type RequestPrompt,
} from './prompts.ts'
import { readText } from './restore-sampled.ts'
import { rejectSpecialTokens, SpecialTokenFinder } from './special-tokens.ts'
import { TextPrompt } from './text-prompt.ts'
import { createTooLongError } from './too-long.ts'

/** The options of {@link TokenPrompts}. */
export interface TokenPromptsOptions {
  /** How to handle a request whose messages contain the text of a special token. Default: `allow`. */
  specialTokensInText?: 'allow' | 'reject'
}

/** The implementation of {@link Prompts} for token mode, with the template and the tokenizer of a model. */
export class TokenPrompts implements Prompts {
  readonly #model: TokenModel
  readonly #store: Pick<TurnStore, 'readSteps'>
  readonly #counts = new PromptCounts()
  readonly #specialTokens: SpecialTokenFinder | undefined
  readonly #rejectsSpecialTokens: boolean

  /** @param model the caller closes it */
  constructor(
    model: TokenModel,
    store: Pick<TurnStore, 'readSteps'>,
    { specialTokensInText = 'allow' }: TokenPromptsOptions = {},
  ) {
    this.#model = model
    this.#store = store
    this.#rejectsSpecialTokens = specialTokensInText === 'reject'
    // If prompts are encoded in segments, a special token in a message is encoded as text.
    this.#specialTokens = model.renderer.hasSegments
      ? undefined
      : new SpecialTokenFinder(model.tokenizer, model.renderer.source)
  }

  async begin(
    incoming: GenerationRequest,
    memory: SessionMemory,
    budget: RequestBudget = UNLIMITED,
  ): Promise<RequestPrompt> {
    if (incoming.kind !== 'chat') return new TextPrompt(this.#model, incoming)
    const { body, change } = adaptEffort(incoming.body, this.#model.efforts)
    const request = body === incoming.body ? incoming : { ...incoming, body }
    const forcedToolCall = this.#getForcedToolCall(request.body)
    const turns = await this.#getTurns(request.sessionId, memory)
    const unknownIds = findUnknownIds(request.lastMessage, memory.callIds)
    const prompt = await this.#planOnce(request, memory, turns)
    this.#counts.add(prompt.origin.reason)
    logMatch(request, prompt)
    const reported = prompt.origin.from === undefined ? 0 : prompt.match.sharedMessages
    const specialTokens = this.#specialTokens?.find(request.lastMessage, reported) ?? []
    if (this.#rejectsSpecialTokens) rejectSpecialTokens(specialTokens)
    const { roles } = this.#model
    const adaptedRoles = roles ? findAdaptedRoles(roles, request.lastMessage, reported) : []
    const annotations = {
      ...createEchoAnnotation(prompt.match, request.lastMessage, unknownIds),
      ...(change && { reasoning_effort: change }),
      ...(this.#model.promptEncoder && { prompt_encoder: this.#model.promptEncoder }),
      ...(specialTokens.length > 0 && { special_tokens_in_text: specialTokens }),
      ...(adaptedRoles.length > 0 && { adapted_roles: adaptedRoles }),
    }
    return this.#createPrompt(
      { request, turns, prompt, annotations, forcedToolCall, counts: this.#counts },
      budget,
    )
  }

  /** Plans the prompt. The choices of one request begin at the same time and share one plan. */
  async #planOnce(
    request: ChatGenerationRequest,
    memory: SessionMemory,
    turns: SessionTurns,
  ): Promise<PromptPlan> {
    const plan = () => planPrompt(this.#model, { memory, turns }, request)
    const { choiceOf: requestId } = request
    if (requestId === undefined) return plan()
    const cached = memory.choicesPrompt
    if (cached?.requestId !== requestId) {
      const planned = plan()
      memory.choicesPrompt = { requestId, planned }
      return planned
    }
    const planned = await cached.planned
    return { ...planned, ids: planned.ids.createCopy() }
  }

  /**
   * Returns the ids of a body's prompt, which may extend recorded ids if there is a session. Does not cache the prompt.
   */
  async #getIds(incoming: ChatBody, session?: PromptSession): Promise<TokenIds | PromptIds> {
    const { body } = adaptEffort(incoming, this.#model.efforts)
    if (session === undefined) return (await renderFullPrompt(this.#model, body)).ids
    const { sessionId, memory } = session
    const turns = await this.#getTurns(sessionId, memory)
    const lastMessage = memory.messages.addMessages(body.messages)
    return (await planPrompt(this.#model, { memory, turns }, { body, lastMessage })).ids
  }

  async countTokens(body: ChatBody, _signal: AbortSignal, session?: PromptSession): Promise<number> {
    return (await this.#getIds(body, session)).length
  }

  get tokens(): PromptTokens {
    const { tokenizer, contextLength, encodeText } = this.#model
    const getIds: PromptTokens['getIds'] = async (...args) => {
      const ids = await this.#getIds(...args)
      return ids instanceof PromptIds ? ids.toArray() : ids
    }
    return { tokenizer, contextLength, getIds, encodeText }
  }

  getCounts(): Readonly<Record<string, number>> {
    return this.#counts.toJSON()
  }

  /**
   * Returns the session's turns, which are read from the store if they are not cached.
   * @throws ProxyError `store_failed`
   */
  async #getTurns(sessionId: string, memory: SessionMemory): Promise<SessionTurns> {
    if (memory.turns !== undefined) return memory.turns
    memory.readingTurns ??= this.#readTurns(sessionId, memory).finally(() => {
      memory.readingTurns = undefined
    })
    memory.turns = await memory.readingTurns
    return memory.turns
  }

  async #readTurns(
    sessionId: string,
    { messages, requests, callIds, editedCalls }: SessionMemory,
  ): Promise<SessionTurns> {
    // Templates read all messages for each request.
    messages.keepJson()
    const read = createConversationReader(requests)
    const store = { readSteps: (id: string) => joinCompletions(this.#store.readSteps(id, messages), callIds) }
    const getConversation = (turn: TurnStep) =>
      withVariables(this.#model.renderer, this.#getRecordedOptions(turn), read(turn))
    const turns = await readSessionTurns(store, sessionId, getConversation, editedCalls)
    callIds.isComplete = true
    return turns
  }

  /** Returns the template's inputs for a recorded turn, with the reasoning effort adapted as it was then. */
  #getRecordedOptions({ tools, params }: TurnStep): PromptOptions {
    const { body } = adaptEffort(JSON.parse(params) as ChatBody, this.#model.efforts)
    return { ...toPromptOptions(body), tools: tools === '[]' ? null : tools }
  }

  /** Returns the schema of a forced tool call, if any. @throws ProxyError `unsupported`, `invalid_request` */
  #getForcedToolCall(body: ChatBody): object | undefined {
    const schema = findForcedToolCallSchema(body)
    if (schema === undefined || this.#model.parser.grammar !== undefined) return schema
    throw new ProxyError(
      'unsupported',
      `the format ${this.#model.parser.name} does not support a forced tool call in token mode: a session whose ` +
        'sampling_params contain {"tool_choice": "auto"} offers the tools instead',
      { param: 'tool_choice' },
    )
  }

  #createPrompt(
    parts: PromptParts,
    { tokensLeft, contextTokens, rejectsOverlong }: RequestBudget,
  ): RequestPrompt {
    const { request, prompt } = parts
    const contextLength = Math.min(this.#model.contextLength ?? Number.POSITIVE_INFINITY, contextTokens)
    const room = contextLength - prompt.ids.length
    // If the context length is unknown, the number of tokens that the session has left is not sent as a limit: an
    // engine would reject a limit that exceeds its context.
    const budget = Number.isFinite(room) ? Math.min(room, tokensLeft) : room
    if (room > 0) return new TokenIdsPrompt(parts, this.#model, budget)
    if (request.rejectOverlong || rejectsOverlong) throw createTooLongError(contextLength, prompt.ids.length)
    return new FullContextPrompt(parts)
  }
}

/** A planned prompt with its request and annotations. */
interface PromptParts {
  readonly request: ChatGenerationRequest
  readonly turns: SessionTurns
  readonly prompt: PromptPlan
  /**
   * The annotations of the turn that are known before its response, such as changes of tool calls and special tokens in
   * texts.
   */
  readonly annotations: object
  /** The schema that constrains decoding, if the agent forces a tool call. */
  readonly forcedToolCall: object | undefined
  readonly counts: PromptCounts
}

/** The prompt of a chat request in token mode. */
abstract class TokenRequestPrompt implements RequestPrompt {
  protected readonly parts: PromptParts
  abstract readonly request: GenerationRequest

  constructor(parts: PromptParts) {
    this.parts = parts
  }

  prepareToRead(): void {}

  abstract read(events: readonly GenerationEvent[]): MaybePromise<readonly GenerationEvent[]>

  onCommitted(completion: Completion): void {
    // A later prompt that extends wrong or missing ids would be wrong, too.
    if (findInexactReason(completion) !== null) return
    const { request, turns, prompt } = this.parts
    const { content, reasoning, toolCalls, start, tokenIds } = completion
    const seen = start?.promptTokenIds ?? prompt.ids
    seen.completion = Int32Array.from(tokenIds)
    const hasExperts = completion.details?.hasExperts ?? false
    const turn = { turnId: request.requestId, prompt: seen, hasExperts }
    const text = joinTexts(prompt.textBefore, content)
    turns.add(prompt.match, { content: text, reasoning, toolCalls }, turn)
  }
}

/** A prompt that is sent to the engine as ids. The sampled tokens are decoded here. */
class TokenIdsPrompt extends TokenRequestPrompt {
  readonly request: GenerationRequest
  readonly continuation: TokenContinuationPlanner
  readonly #decoder: CompletionDecoder
  readonly #vocabularySize: number

  constructor(parts: PromptParts, model: TokenModel, room: number) {
    super(parts)
    const { request, prompt, forcedToolCall } = parts
    const body = withBudget(request.body, room)
    const sent = forcedToolCall ? constrainBody(body, forcedToolCall) : body
    const tokenIds = { promptTokenIds: prompt.ids, ...getImagesPart(prompt, model) }
    const format = body.tools?.length ? { callFormat: model.parser.name } : {}
    const mayReason = mayBeginWithReasoning(model.parser, prompt.text) && { mayReason: true }
    const planned = { ...request, ...getExpertsPart(parts), ...tokenIds, ...format, ...mayReason, body: sent }
    this.request = planned
    this.continuation = new TokenContinuationPlanner({
      request: planned,
      body: request.body,
      endTokenIds: getEndTokenIds(model, request.body),
      createText: () => createChatText(model, request.body, forcedToolCall !== undefined),
      extend: (sampled, limit) => ({
        ...planned,
        promptTokenIds: new PromptIds(Int32Array.from(sampled), prompt.ids, prompt.ids.length),
        body: limit === undefined ? sent : { ...sent, max_tokens: limit },
      }),
    })
    this.#vocabularySize = model.vocabularySize
    this.#decoder = createChatDecoder(model, request.body, {
      promptText: prompt.text,
      prefix: prompt.prefix,
      textBefore: prompt.textBefore,
      forcesCall: forcedToolCall !== undefined,
    })
  }

  async read(events: readonly GenerationEvent[]): Promise<readonly GenerationEvent[]> {
    const starts = events.filter((event) => event.type === 'start').map((start) => this.#getStart(start))
    return [...starts, ...(await this.#decoder.read(events.filter((event) => event.type !== 'start')))]
  }

  close(): void {
    this.#decoder.close()
  }

  /**
   * Returns the start with the ids of the prompt that the engine reports. If they differ from those that were sent, the
   * turn is annotated as mismatched.
   */
  #getStart(start: GenerationStart): GenerationStart {
    const { prompt, annotations, counts } = this.parts
    const { promptTokenIds: reported = prompt.ids } = start
    const mismatched = !reported.equals(prompt.ids)
    if (mismatched) counts.add('mismatched')
    const images = mismatched ? this.#imagesIn(reported, start.engine) : prompt.images
    return {
      ...start,
      // Use the list that is already cached, so that the memory of an equal one is released.
      promptTokenIds: mismatched ? reported : prompt.ids,
      vocabularySize: this.#vocabularySize,
      annotations: {
        ...start.annotations,
        ...annotations,
        prompt: toPromptAnnotation({ ...prompt, images }, mismatched),
      },
    }
  }

  /**
   * Returns the positions of the images in the prompt that the engine reports.
   * @throws ProxyError `engine_failed` if the engine used other image tokens: the turn could not be trained on
   */
  #imagesIn(prompt: PromptIds, engine: string): readonly ImagePosition[] {
    const { images } = this.parts.prompt
    if (images.length === 0) return images
    const positions = locateImages(prompt.toArray(), images, this.request.images!.tokenId)
    if (positions !== undefined) return positions
    throw new ProxyError(
      'engine_failed',
      `the engine at ${engine} used other image tokens than the model's files specify: it must run with the ` +
        'image processor of these files',
    )
  }
}

/**
 * Returns the first position whose routed experts are requested. Those of the shared tokens are recorded with an
 * earlier turn, except for the last shared token.
 */
function getExpertsPart({ request, prompt }: PromptParts): { expertsStart?: number } {
  const { parent, origin } = prompt
  if (!request.record?.routedExperts || !parent?.hasExperts || origin.reusedTokens === 0) return {}
  return { expertsStart: origin.reusedTokens - 1 }
}

/** A prompt that fills the context. The completion is empty, and no engine is used. */
class FullContextPrompt extends TokenRequestPrompt {
  readonly request: GenerationRequest
  readonly response: readonly GenerationEvent[]

  constructor(parts: PromptParts) {
    super(parts)
    this.request = parts.request
    const { prompt, annotations: note } = parts
    const annotations = { ...note, prompt: toPromptAnnotation(prompt, false) }
    this.response = createEmptyResponse({ promptTokenIds: prompt.ids, annotations }, 'length')
  }

  read(events: readonly GenerationEvent[]): readonly GenerationEvent[] {
    return events
  }
}

/**
 * Yields turns whose completion includes the message that it continued. Adds the tool-call ids of all turns to `ids`.
 */
async function* joinCompletions(turns: AsyncIterable<TurnStep>, ids: ToolCallIds): AsyncGenerator<TurnStep> {
  for await (const turn of turns) {
    // Ids of inexact turns are needed, too: agents send back what they received.
    ids.learnFrom(turn)
    const isJoined = turn.lastMessage !== undefined && turn.params.includes('"continue_final_message":true')
    yield isJoined ? join(turn, turn.lastMessage!) : turn
  }
}

function join(turn: TurnStep, final: Message): TurnStep {
  const completionText = joinTexts(readText(final.value), turn.completionText)
  // Older records name only the turn whose message was continued, and not the parent of that turn.
  const annotations = getDeclaredParent(turn) === undefined ? '{}' : turn.annotations
  return { ...turn, lastMessage: final.parent, completionText, annotations }
}

function joinTexts(before: string | undefined, content: string | null): string | null {
  return before === undefined ? content : before + (content ?? '')
}

function logMatch({ log }: ChatGenerationRequest, { origin, match }: PromptPlan): void {
  const { reason, reusedTokens } = origin
  const parent = origin.from ?? match.parent?.turn.turnId
  log?.logMatch({ reason, parent, reusedTokens, knownMessages: match.knownMessages })
}

/** Returns the body with the requested number of tokens, limited to `room`, as `max_tokens`. */
function withBudget(body: ChatBody, room: number): ChatBody {
  const { max_completion_tokens: newer, max_tokens: older, ...rest } = body
  const requested = newer ?? older
  if (!Number.isFinite(room)) return requested === undefined ? rest : { ...rest, max_tokens: requested }
  return { ...rest, max_tokens: Math.min(requested ?? room, room) }
}

function getImagesPart({ images }: PromptPlan, { imageRule }: TokenModel): { images?: PromptImages } {
  if (imageRule === undefined || images.length === 0) return {}
  const { tokenId, edges } = imageRule
  return { images: { tokenId, edges, tokens: images.map(({ tokens }) => tokens) } }
}

/**
 * Returns the prompt annotation. It contains only new images: the others are recorded with the turns that the prompt
 * extends.
 */
function toPromptAnnotation(
  { origin, images, match }: Pick<PromptPlan, 'origin' | 'images' | 'match'>,
  mismatched: boolean,
): object {
  const { reason, from, reusedTokens, replacedTokens } = origin
  const added = images.filter(({ at: index }) => index >= reusedTokens).map(imageToWire)
  return {
    reason,
    from,
    ...getParentPart(match.parent?.turn.turnId, from),
    reused_tokens: reusedTokens,
    ...(replacedTokens && { replaced_tokens: replacedTokens }),
    mismatched,
    images: added.length > 0 ? added : undefined,
  }
}

function imageToWire({ sha256, mediaType, width, height, at: index, tokens }: ImagePosition): object {
  return { sha256, media_type: mediaType, width, height, at: index, tokens }
}
