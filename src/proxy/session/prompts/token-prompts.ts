/**
 * Token mode: chat calls go in as messages and reach the engine as token ids, tokens come out of the engine and reach the
 * agent as text, reasoning and tool calls. What is sampled stays what it is: the prompt of a call that continues a turn
 * begins with that turn's recorded ids.
 */
import { ProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { Message } from '../../../protocol/canonical/conversation.ts'
import type {
  GenerationEvent,
  GenerationStart,
  GenerationStream,
} from '../../../protocol/canonical/events.ts'
import type { PromptImages } from '../../../protocol/canonical/images.ts'
import { adaptEffort } from '../../../protocol/canonical/reasoning-effort.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import type { TokenIds } from '../../../protocol/token-ids/token-ids.ts'
import type { TurnStep, TurnStore } from '../../store/port/turn-store.ts'
import { type ImagePosition, locateImages } from '../../tokens/images/prompt-images.ts'
import type { TokenModel } from '../../tokens/model/token-model.ts'
import { leavesRoomToReason } from '../../tokens/parsers/choose-parser.ts'
import type { PromptOptions } from '../../tokens/prompt/prompt-renderer.ts'
import { createConversationReader } from '../matching/rebuild-index.ts'
import { getDeclaredParent, parentPart } from '../matching/recorded-parent.ts'
import { readSessionTurns, type SessionTurns } from '../matching/session-turns.ts'
import type { ToolCallIds } from '../matching/tool-call-ids.ts'
import { type CallBudget, UNLIMITED } from '../state/limits.ts'
import type { PlannedPrompt } from '../state/planned-prompt.ts'
import type { SessionMemory } from '../state/session-memory.ts'
import { type AnswerDecoder, decoderFor } from './answer-decoder.ts'
import { textOf } from './as-sampled.ts'
import { echoNote, unknownIdsIn } from './echo-note.ts'
import { inexactReason } from './exactness.ts'
import { constrainedBody, forcedCallSchema } from './forced-call.ts'
import {
  type ChatGeneration,
  planPrompt,
  promptOptionsOf,
  wholePrompt,
  withVariables,
} from './prompt-planner.ts'
import {
  type CallPrompt,
  emptyAnswer,
  type MaybePromised,
  PromptCounts,
  type PromptSession,
  type Prompts,
  type PromptTokens,
  plainPrompt,
} from './prompts.ts'
import { tooLong } from './too-long.ts'

export class TokenPrompts implements Prompts {
  readonly #model: TokenModel
  readonly #store: Pick<TurnStore, 'readSteps'>
  readonly #counts = new PromptCounts()

  /** The model stays its owner's to close. */
  constructor(model: TokenModel, store: Pick<TurnStore, 'readSteps'>) {
    this.#model = model
    this.#store = store
  }

  async begin(
    incoming: GenerationRequest,
    memory: SessionMemory,
    budget: CallBudget = UNLIMITED,
  ): Promise<CallPrompt> {
    if (incoming.kind !== 'chat') return plainPrompt(incoming)
    const { body, change } = adaptEffort(incoming.body, this.#model.efforts)
    const request = body === incoming.body ? incoming : { ...incoming, body }
    const forcedCall = this.#forcedCallOf(request.body)
    const turns = await this.#turnsOf(request.sessionId, memory)
    const unknownIds = unknownIdsIn(request.lastMessage, memory.callIds)
    const prompt = await this.#planOnce(request, memory, turns)
    this.#counts.add(prompt.origin.reason)
    const note = {
      ...echoNote(prompt.call, request.lastMessage, unknownIds),
      ...(change && { reasoning_effort: change }),
    }
    return this.#callWith({ request, turns, prompt, note, forcedCall, counts: this.#counts }, budget)
  }

  /** The answers of one call begin in the same moment, with the same prompt: it is rendered for the first of them. */
  async #planOnce(
    request: ChatGeneration,
    memory: SessionMemory,
    turns: SessionTurns,
  ): Promise<PlannedPrompt> {
    const plan = () => planPrompt(this.#model, { memory, turns }, request)
    const { choiceOf: call } = request
    if (call === undefined) return plan()
    const known = memory.choicesPrompt
    if (known?.call !== call) {
      const planned = plan()
      memory.choicesPrompt = { call, planned }
      return planned
    }
    const planned = await known.planned
    return { ...planned, ids: planned.ids.again() }
  }

  /** Of a session: the prompt that a call would have, which may go on from recorded ids. Remembers nothing of it. */
  async #idsOf(incoming: ChatBody, session?: PromptSession): Promise<TokenIds | PromptIds> {
    const { body } = adaptEffort(incoming, this.#model.efforts)
    if (session === undefined) return (await wholePrompt(this.#model, body)).ids
    const { sessionId, memory } = session
    const turns = await this.#turnsOf(sessionId, memory)
    const lastMessage = memory.messages.addMessages(body.messages)
    return (await planPrompt(this.#model, { memory, turns }, { body, lastMessage })).ids
  }

  async countTokens(body: ChatBody, _signal: AbortSignal, session?: PromptSession): Promise<number> {
    return (await this.#idsOf(body, session)).length
  }

  get tokens(): PromptTokens {
    const { tokenizer, contextLength } = this.#model
    const idsOf: PromptTokens['idsOf'] = async (...asked) => [...(await this.#idsOf(...asked))]
    return { tokenizer, contextLength, idsOf }
  }

  counts(): Readonly<Record<string, number>> {
    return this.#counts.toJSON()
  }

  /** What is not in memory is read again from the record. @throws ProxyError `store_failed` */
  async #turnsOf(sessionId: string, memory: SessionMemory): Promise<SessionTurns> {
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
    // Templates are shown all of them, with each call.
    messages.keepJson()
    const read = createConversationReader(requests)
    const store = { readSteps: (id: string) => asCalled(this.#store.readSteps(id, messages), callIds) }
    const conversationOf = (turn: TurnStep) =>
      withVariables(this.#model.renderer, this.#optionsOnRecord(turn), read(turn))
    const turns = await readSessionTurns(store, sessionId, conversationOf, editedCalls)
    callIds.isWhole = true
    return turns
  }

  /** Returns the prompt options of a recorded turn, with the effort adapted as it was for the turn. */
  #optionsOnRecord({ tools, params }: TurnStep): PromptOptions {
    const { body } = adaptEffort(JSON.parse(params) as ChatBody, this.#model.efforts)
    return { ...promptOptionsOf(body), tools: tools === '[]' ? null : tools }
  }

  /** @throws ProxyError `unsupported`, `invalid_request` */
  #forcedCallOf(body: ChatBody): object | undefined {
    const schema = forcedCallSchema(body)
    if (schema === undefined || this.#model.parser.grammar !== undefined) return schema
    throw new ProxyError(
      'unsupported',
      `the format ${this.#model.parser.name} leaves no place for a forced call in token mode: a session whose ` +
        'sampling_params say {"tool_choice": "auto"} offers the tools instead',
      { param: 'tool_choice' },
    )
  }

  #callWith(parts: CallParts, { tokensLeft, contextTokens, rejectsOverlong }: CallBudget): CallPrompt {
    const { request, prompt } = parts
    const contextLength = Math.min(this.#model.contextLength ?? Number.POSITIVE_INFINITY, contextTokens)
    const room = contextLength - prompt.ids.length
    // Of a room that is not known an engine would refuse any number that is too large.
    const budget = Number.isFinite(room) ? Math.min(room, tokensLeft) : room
    if (room > 0) return new TokenCall(parts, this.#model, budget)
    if (request.refuseOverlong || rejectsOverlong) throw tooLong(contextLength, prompt.ids.length)
    return new FullCall(parts)
  }
}

interface CallParts {
  readonly request: ChatGeneration
  readonly turns: SessionTurns
  readonly prompt: PlannedPrompt
  /** Annotations of the turn: what the agent changed in its calls, and how its reasoning effort was adapted. */
  readonly note: object
  /** What the engine is held to, where the agent forces a call. */
  readonly forcedCall: object | undefined
  readonly counts: PromptCounts
}

abstract class PlannedCall implements CallPrompt {
  protected readonly parts: CallParts
  abstract readonly request: GenerationRequest

  constructor(parts: CallParts) {
    this.parts = parts
  }

  async whileAsked(): Promise<void> {}

  abstract read(events: readonly GenerationEvent[]): MaybePromised<readonly GenerationEvent[]>

  answered(completion: Completion): void {
    // A prompt that is built on ids which may be wrong or missing would be wrong with them.
    if (inexactReason(completion) !== null) return
    const { request, turns, prompt } = this.parts
    const { content, reasoning, toolCalls, start, tokenIds } = completion
    const seen = start?.promptTokenIds ?? prompt.ids
    seen.completion = Int32Array.from(tokenIds)
    const hasExperts = completion.details?.hasExperts ?? false
    const turn = { turnId: request.requestId, prompt: seen, hasExperts }
    const said = joinedText(prompt.saidBefore, content)
    turns.add(prompt.call, { content: said, reasoning, toolCalls }, turn)
  }
}

/** The engine is asked with ids, and what it samples is decoded. */
class TokenCall extends PlannedCall {
  readonly request: GenerationRequest
  readonly #decoder: AnswerDecoder
  readonly #vocabularySize: number

  constructor(parts: CallParts, model: TokenModel, room: number) {
    super(parts)
    const { request, prompt, forcedCall } = parts
    const body = withBudget(request.body, room)
    const sent = forcedCall ? constrainedBody(body, forcedCall) : body
    const tokenIds = { promptTokenIds: prompt.ids, ...imagesPart(prompt, model) }
    const format = body.tools?.length ? { callFormat: model.parser.name } : {}
    const mayReason = leavesRoomToReason(model.parser, prompt.text) && { mayReason: true }
    this.request = { ...request, ...expertsPart(parts), ...tokenIds, ...format, ...mayReason, body: sent }
    this.#vocabularySize = model.vocabularySize
    this.#decoder = decoderFor(model, request.body, {
      promptText: prompt.text,
      prefix: prompt.prefix,
      forcesCall: forcedCall !== undefined,
    })
  }

  async read(events: readonly GenerationEvent[]): Promise<readonly GenerationEvent[]> {
    const starts = events.filter((event) => event.type === 'start').map((start) => this.#startOf(start))
    return [...starts, ...(await this.#decoder.read(events.filter((event) => event.type !== 'start')))]
  }

  close(): void {
    this.#decoder.close()
  }

  /** The prompt's ids as the engine reports them; where it reports others than it was sent, the record says so. */
  #startOf(start: GenerationStart): GenerationStart {
    const { prompt, note, counts } = this.parts
    const { promptTokenIds: reported = prompt.ids } = start
    const mismatched = !reported.equals(prompt.ids)
    if (mismatched) counts.add('mismatched')
    const images = mismatched ? this.#imagesIn(reported, start.engine) : prompt.images
    return {
      ...start,
      // Of two that are equal, the one that is in use: the other one's memory is free.
      promptTokenIds: mismatched ? reported : prompt.ids,
      vocabularySize: this.#vocabularySize,
      annotations: { ...start.annotations, ...note, prompt: originToWire({ ...prompt, images }, mismatched) },
    }
  }

  /** Where the images are in another prompt. Other images than those that were sent cannot be trained on. */
  #imagesIn(prompt: PromptIds, engine: string): readonly ImagePosition[] {
    const { images } = this.parts.prompt
    if (images.length === 0) return images
    const placed = locateImages(prompt.whole(), images, this.request.images!.tokenId)
    if (placed !== undefined) return placed
    throw new ProxyError(
      'engine_failed',
      `the engine at ${engine} saw the images in other tokens than the model's files say: it must run with the ` +
        'image processor of these files',
    )
  }
}

/** The experts of what the prompt shares with an earlier turn are on record with that turn, but for its last token's. */
function expertsPart({ request, prompt }: CallParts): { expertsStart?: number } {
  const { parent, origin } = prompt
  if (!request.record?.routedExperts || !parent?.hasExperts || origin.reusedTokens === 0) return {}
  return { expertsStart: origin.reusedTokens - 1 }
}

/** The prompt fills the context: the answer is empty, and no engine is asked. */
class FullCall extends PlannedCall {
  readonly request: GenerationRequest
  readonly answer: GenerationStream

  constructor(parts: CallParts) {
    super(parts)
    this.request = parts.request
    const { prompt, note } = parts
    const annotations = { ...note, prompt: originToWire(prompt, false) }
    this.answer = emptyAnswer({ promptTokenIds: prompt.ids, annotations }, 'length')
  }

  read(events: readonly GenerationEvent[]): readonly GenerationEvent[] {
    return events
  }
}

/** A message that the completion continued is one message with it. */
async function* asCalled(turns: AsyncIterable<TurnStep>, ids: ToolCallIds): AsyncGenerator<TurnStep> {
  for await (const turn of turns) {
    // Of any turn, exact or not: agents send back what they were given.
    ids.learnFrom(turn)
    const isJoined = turn.lastMessage !== undefined && turn.params.includes('"continue_final_message":true')
    yield isJoined ? joined(turn, turn.lastMessage!) : turn
  }
}

function joined(turn: TurnStep, final: Message): TurnStep {
  const completionText = joinedText(textOf(final.value), turn.completionText)
  // An older record tells the turn whose message it continues alone, and not its parent.
  const annotations = getDeclaredParent(turn) === undefined ? '{}' : turn.annotations
  return { ...turn, lastMessage: final.parent, completionText, annotations }
}

function joinedText(before: string | undefined, content: string | null): string | null {
  return before === undefined ? content : before + (content ?? '')
}

/** At most as many tokens as there is room for; where the room is not known, what the agent asks for. */
function withBudget(body: ChatBody, room: number): ChatBody {
  const { max_completion_tokens: newer, max_tokens: older, ...rest } = body
  const asked = newer ?? older
  if (!Number.isFinite(room)) return asked === undefined ? rest : { ...rest, max_tokens: asked }
  return { ...rest, max_tokens: Math.min(asked ?? room, room) }
}

function imagesPart({ images }: PlannedPrompt, { imageRule }: TokenModel): { images?: PromptImages } {
  if (imageRule === undefined || images.length === 0) return {}
  const { tokenId, edges } = imageRule
  return { images: { tokenId, edges, tokens: images.map(({ tokens }) => tokens) } }
}

/** Of the images only those that are new: the others are on record with the turns that it goes on from. */
function originToWire(
  { origin, images, call }: Pick<PlannedPrompt, 'origin' | 'images' | 'call'>,
  mismatched: boolean,
): object {
  const { reason, from, reusedTokens } = origin
  const added = images.filter(({ at }) => at >= reusedTokens).map(imageToWire)
  return {
    reason,
    from,
    ...parentPart(call.parent?.turn.turnId, from),
    reused_tokens: reusedTokens,
    mismatched,
    images: added.length > 0 ? added : undefined,
  }
}

function imageToWire({ sha256, mediaType, width, height, at, tokens }: ImagePosition): object {
  return { sha256, media_type: mediaType, width, height, at, tokens }
}
