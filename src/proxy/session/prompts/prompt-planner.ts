/** Builds the prompts of chat requests in token mode. */
import { ProxyError } from '../../../base/errors.ts'
import { getMessagesBetween, type Message, MessageTree } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import { formatTools } from '../../../protocol/canonical/number-texts.ts'
import { readTemplateVariables } from '../../../protocol/canonical/reasoning-effort.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import { NO_MEMO, type PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import { concatIds } from '../../../protocol/token-ids/token-ids.ts'
import type { ImageRule } from '../../tokens/images/image-rule.ts'
import {
  type ImagePosition,
  locateImages,
  replaceToolImages,
  type TemplateMessage,
  type TokenImage,
  toTemplateMessage,
  toTemplateMessages,
  withImages,
} from '../../tokens/images/prompt-images.ts'
import type { TokenModel } from '../../tokens/model/token-model.ts'
import type { PromptOptions, PromptRenderer, RenderedPrompt } from '../../tokens/prompt/prompt-renderer.ts'
import type { RenderOptions } from '../../tokens/templates/chat-template.ts'
import { type ConversationKeys, readConversationInSlices } from '../matching/conversation.ts'
import type { PrefixMatch } from '../matching/prefix-index.ts'
import type { SessionTurn, SessionTurns } from '../matching/session-turns.ts'
import type { ToolCallIds } from '../matching/tool-call-ids.ts'
import type { PromptPlan, PromptReason } from '../state/prompt-plan.ts'
import type { SessionMemory } from '../state/session-memory.ts'
import { readText, restoreSampled } from './restore-sampled.ts'
import { rejectTooLong } from './too-long.ts'
import { decodeMessage, findTruncation, isTruncated } from './truncated-message.ts'

/** A request to an engine with messages. */
export type ChatGenerationRequest = Extract<GenerationRequest, { kind: 'chat' }>

/** The cached state of a session that planning reads. */
interface PlanningSession {
  readonly memory: SessionMemory
  readonly turns: SessionTurns
}

/** The fields of a model that planning reads. */
type PlanningModel = Pick<
  TokenModel,
  | 'renderer'
  | 'tokenizer'
  | 'parser'
  | 'imageRule'
  | 'seesToolImages'
  | 'contextLength'
  | 'servedLength'
  | 'getLongestTokenChars'
>

/**
 * Builds the prompt of a request.
 * @throws ProxyError `invalid_request` if the template rejects the messages, `unsupported` for features that token mode
 *   lacks
 */
export async function planPrompt(
  model: PlanningModel,
  session: PlanningSession,
  request: Pick<ChatGenerationRequest, 'body' | 'lastMessage'>,
): Promise<PromptPlan> {
  const { renderer } = model
  const { body } = request
  rejectUnsupportedFields(body)
  rejectTooLong(model, request.lastMessage)
  const options = toPromptOptions(body, session.memory.requests)
  const read = await readConversationInSlices(request.lastMessage, body.tools, session.memory.requests)
  const conversation = await withVariables(renderer, options, read)
  const match = session.turns.match(conversation)
  const parent = match.parent?.turn
  const input = toInput(request, match, session.memory.callIds, model)
  const planning = { model, session, conversation, match, input, options, tools: body.tools }
  const ending = getEnding(body)
  if (ending !== undefined) return await planEnding(planning, ending)
  const extended = parent && (await extend(planning, parent))
  if (parent && extended && 'ids' in extended) {
    const reason = match.isFork ? 'forked' : 'extended'
    const { ids, text, replacedTokens } = extended
    const reusedTokens = parent.prompt.tokenCount - replacedTokens
    const origin = { reason, from: parent.turnId, reusedTokens, replacedTokens } as const
    return { ids, text, origin, match, parent, images: getImagePositions(ids, input) }
  }
  const rejection = extended && 'refused' in extended ? extended.refused : undefined
  return await planFullPrompt(planning, rejection)
}

/**
 * Renders the complete prompt.
 * @param rejection the reason why the tokens of the turn that the request continues cannot be reused; absent: there is
 *   no such reason
 */
async function planFullPrompt(
  { model, session, match, input, options }: PlanningContext,
  rejection?: PromptReason,
): Promise<PromptPlan> {
  const { text, ids: rendered } = await renderFull(model.renderer, input, options)
  const ids = new PromptIds(concatIds(rendered))
  const reason = rejection ?? (session.turns.bytes === 0 ? 'first' : 'branched')
  const origin = { reason, reusedTokens: 0 }
  return { ids, text, origin, match, parent: undefined, images: getImagePositions(ids, input) }
}

/**
 * Renders the prompt of a request without a session.
 * @throws ProxyError as {@link planPrompt}
 */
export async function renderFullPrompt(model: PlanningModel, body: ChatBody): Promise<RenderedPrompt> {
  const { renderer, imageRule } = model
  rejectUnsupportedFields(body)
  rejectTooLong(model, new MessageTree().addMessages(body.messages))
  const input = getSentInput(body, imageRule)
  return await renderFull(renderer, input, { ...toPromptOptions(body), ...getEnding(body) })
}

/** The options of a prompt that does not end with the header of an assistant message. */
type PromptEnd = Required<Pick<RenderOptions, 'addGenerationPrompt' | 'continueFinalMessage'>>

/**
 * Returns the options that the body requests, with the semantics of vLLM; undefined: the prompt ends with the header of
 * an assistant message.
 */
function getEnding(body: ChatBody): PromptEnd | undefined {
  const { add_generation_prompt: opens, continue_final_message: continues } = body
  if (continues === true) return { addGenerationPrompt: false, continueFinalMessage: true }
  return opens === false ? { addGenerationPrompt: false, continueFinalMessage: false } : undefined
}

/** The request whose prompt is planned, in the forms that planning reads, with the model and the session. */
interface PlanningContext {
  readonly model: PlanningModel
  readonly session: PlanningSession
  readonly conversation: ConversationKeys
  readonly match: PrefixMatch<SessionTurn>
  readonly input: PromptInput
  readonly options: RenderOptions
  readonly tools: ChatBody['tools']
}

/**
 * Builds a prompt with the given end. A final message that was sampled and truncated continues after its tokens. Any
 * other final message is rendered as part of the prompt, and the turn is recorded with the message that it and the
 * completion form together.
 */
async function planEnding(planning: PlanningContext, ending: PromptEnd): Promise<PromptPlan> {
  const { model, session, conversation, match, input, options } = planning
  const { messages } = input
  const continues = ending.continueFinalMessage
  const recordedMatch = continues
    ? session.turns.match({ ...conversation, last: conversation.last?.parent })
    : match
  const continued = continues ? { textBefore: readText(messages.at(-1)) } : undefined
  const cut = match.parent?.turn
  if (
    continues &&
    cut &&
    match.sharedMessages === messages.length &&
    isTruncated(cut.prompt, model.renderer)
  ) {
    const ids = cut.prompt.createContinuation([])
    const origin = { reason: 'extended', from: cut.turnId, reusedTokens: ids.length } as const
    const { reasoningClose } = findTruncation(cut, model, { echo: messages.at(-1)!, tools: planning.tools })
    const text = reasoningClose !== undefined ? model.parser.reasoning!.open : ''
    const prefix = decodeMessage(cut, model)
    return {
      ids,
      text,
      prefix,
      origin,
      match: recordedMatch,
      parent: cut,
      images: getImagePositions(ids, input),
      ...continued,
    }
  }
  if (continues && isNoText(messages.at(-1)?.content)) {
    const message = 'the final message has no text to continue'
    throw new ProxyError('invalid_request', message, { param: 'continue_final_message' })
  }
  const plan = await planFullPrompt({ ...planning, match: recordedMatch, options: { ...options, ...ending } })
  return { ...plan, ...continued }
}

function isNoText(content: unknown): boolean {
  if (Array.isArray(content)) return !content.some((part) => typeof part?.text === 'string')
  return typeof content !== 'string'
}

/** The messages of a request, and the form in which the template receives them. */
interface PromptInput {
  readonly messages: readonly ChatMessage[]
  readonly shown: readonly TemplateMessage[]
  /** The images of all messages, in order. */
  readonly images: readonly TokenImage[]
  readonly imageRule: ImageRule | undefined
  /** The same messages as {@link Message} objects; undefined: the request has no session. */
  readonly known: readonly Message[] | undefined
}

async function renderFull(
  renderer: PromptRenderer,
  { messages, shown, images, imageRule }: PromptInput,
  options: RenderOptions,
): Promise<RenderedPrompt> {
  const texts = shown.map(({ json }) => json)
  const { text, ids } = await renderer.renderFull(messages, options, texts)
  return { text, ids: withImages(ids, images, imageRule) }
}

/** Converts the messages to the form in which the template receives them, with sampled echoes restored. */
function toInput(
  { body, lastMessage }: Pick<ChatGenerationRequest, 'body' | 'lastMessage'>,
  match: PrefixMatch<SessionTurn>,
  ids: ToolCallIds,
  { imageRule, seesToolImages }: Pick<PlanningModel, 'imageRule' | 'seesToolImages'>,
): PromptInput {
  if (lastMessage === undefined) return getSentInput(body, imageRule)
  const sent = getMessagesBetween(undefined, lastMessage)
  const sampled = restoreSampled(sent, match.parent, ids)
  const restored = seesToolImages ? sampled : replaceToolImages(sampled)
  const messages = restored.map(({ value }) => value)
  return {
    ...createPromptInput(messages, toTemplateMessages(restored, imageRule), imageRule),
    known: restored,
  }
}

/** Converts messages that belong to no session. */
function getSentInput({ messages }: ChatBody, imageRule: ImageRule | undefined): PromptInput {
  const shown = messages.map((message, index) => toTemplateMessage(message, imageRule, index))
  return createPromptInput(messages, shown, imageRule)
}

function createPromptInput(
  messages: readonly ChatMessage[],
  shown: readonly TemplateMessage[],
  imageRule: ImageRule | undefined,
): PromptInput {
  return { messages, shown, images: shown.flatMap((message) => message.images), imageRule, known: undefined }
}

/**
 * Returns the positions of the images in the prompt.
 * @throws ProxyError `unsupported` if there is a placeholder without an image, which the model has sampled
 */
function getImagePositions(ids: PromptIds, { images, imageRule }: PromptInput): ImagePosition[] {
  if (imageRule === undefined || images.length === 0) return []
  const positions = locateImages(ids.toArray(), images, imageRule.tokenId)
  if (positions !== undefined) return positions
  const message = 'the model has sampled an image placeholder, so the positions of the images are ambiguous'
  throw new ProxyError('unsupported', message, { param: 'messages' })
}

/**
 * Returns the keys with the template variables added to the tools' key, because they too affect the beginning of the
 * prompt.
 */
export async function withVariables(
  renderer: PromptRenderer,
  options: PromptOptions,
  conversation: ConversationKeys,
): Promise<ConversationKeys> {
  const variablesKey = await renderer.getVariablesKey(options)
  return { ...conversation, toolsKey: `${conversation.toolsKey} ${variablesKey}` }
}

/**
 * Appends the new messages to the tokens of the parent.
 * @returns `refused`: the reason why the template does not allow it
 */
async function extend(
  { model, match: { sharedMessages }, input, options, tools }: PlanningContext,
  parent: SessionTurn,
): Promise<{ ids: PromptIds; text: string; replacedTokens: number } | { refused: PromptReason }> {
  const { messages, shown, imageRule, known } = input
  const newMessages = messages.slice(sharedMessages)
  const history = messages.slice(0, sharedMessages)
  const lastCompletionId = parent.prompt.completion.at(-1)
  const texts = shown.map(({ json }) => json)
  const truncation = { echo: history.at(-1)!, tools }
  const unfinished = isTruncated(parent.prompt, model.renderer)
    ? findTruncation(parent, model, truncation)
    : undefined
  const continuationInput = { history, newMessages, texts, known, lastCompletionId, unfinished }
  const continuation = await model.renderer.renderContinuation(continuationInput, options)
  if ('refused' in continuation) return continuation
  const newImages = shown.slice(sharedMessages).flatMap((message) => message.images)
  const newIds = withImages(continuation.newIds, newImages, imageRule)
  const { bridgeIds, text, replacedTokens } = continuation
  const shared = parent.prompt.tokenCount - replacedTokens
  const ids = new PromptIds(concatIds(bridgeIds, newIds), parent.prompt, shared)
  return { ids, text, replacedTokens }
}

/**
 * Returns the template's inputs from a chat body, except the messages.
 * @param memo a cache of the tools' text, shared with earlier requests
 */
export function toPromptOptions(body: ChatBody, memo: PartMemo = NO_MEMO): PromptOptions {
  const { tools, documents } = body
  return {
    // The tools are passed as text, because a value that is sent to another thread loses the notation of its numbers.
    tools: tools && tools.length > 0 ? memo.computeOnce(formatTools, tools) : null,
    kwargs: readTemplateVariables(body),
    documents: Array.isArray(documents) ? documents : undefined,
  }
}

function isSet(value: unknown): boolean {
  return value !== undefined && value !== null
}

function rejectUnsupportedFields(body: ChatBody): void {
  const reject = (param: string, reason: string) => {
    throw new ProxyError('unsupported', `'${param}' is not supported in token mode: ${reason}`, { param })
  }
  if (body.continue_final_message === true && body.add_generation_prompt === true) {
    const message = "'continue_final_message' and 'add_generation_prompt' cannot both be true"
    throw new ProxyError('invalid_request', message, { param: 'continue_final_message' })
  }
  rejectLongStops(body.stop)
  if (body.chat_template) reject('chat_template', "prompts are rendered with the model's own template")
  if (body.echo === true) reject('echo', 'a turn records what was sampled, not its prompt')
  // An engine that truncates the prompt would sample after another prompt than the recorded one.
  if (isSet(body.truncate_prompt_tokens)) reject('truncate_prompt_tokens', 'prompts are never cut')
  for (const field of ['functions', 'function_call'])
    if (isSet(body[field])) reject(field, 'use tools instead')
}

/**
 * Limits on stop strings. All of them are searched for simultaneously with a table that grows with their total length.
 */
const MAX_STOPS = 64
const MAX_STOP_CHARS = 4_096

function rejectLongStops(stop: ChatBody['stop']): void {
  if (stop === undefined || stop === null) return
  const stops = typeof stop === 'string' ? [stop] : stop
  const chars = stops.reduce((sum, { length }) => sum + length, 0)
  if (stops.length <= MAX_STOPS && chars <= MAX_STOP_CHARS) return
  const most = `${MAX_STOPS} stop strings of ${MAX_STOP_CHARS} characters together`
  throw new ProxyError('invalid_request', `'stop' can have at most ${most} in token mode`, { param: 'stop' })
}
