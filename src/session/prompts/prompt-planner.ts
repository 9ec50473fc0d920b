/** How the prompt of a chat call comes about in token mode. */
import { messagesBetween } from '../../canonical/conversation.ts'
import { PromptIds } from '../../canonical/prompt-ids.ts'
import type { ChatBody, GenerationRequest } from '../../canonical/request.ts'
import { NO_REPEATS, type Repeats } from '../../canonical/request-reader.ts'
import { toolsText } from '../../canonical/written-numbers.ts'
import { ProxyError } from '../../errors.ts'
import type { PromptOptions, PromptRenderer } from '../../tokens/prompt/prompt-renderer.ts'
import type { Refusal } from '../../tokens/prompt/refusal.ts'
import { type Conversation, readConversation } from '../matching/conversation.ts'
import type { MatchedCall } from '../matching/match-index.ts'
import type { SessionMemory } from '../session-memory.ts'
import type { KnownTurn, SessionTurns } from './session-turns.ts'

export type ChatRequest = Extract<GenerationRequest, { kind: 'chat' }>

/**
 * `extended`: the recorded ids of an earlier turn, and then only what is new. `forked`: the same, where another call has
 * continued that turn before. Everything else is rendered whole:
 * `first`, nothing is recorded yet; `branched`, no recorded turn begins like this call; `nothing_new`, the call ends with
 * the answer that it continues; and the reasons why the template's new part cannot be rendered by itself.
 */
export type PromptReason = 'extended' | 'forked' | 'first' | 'branched' | 'nothing_new' | Refusal

export interface PromptOrigin {
  reason: PromptReason
  /** The turn whose prompt and completion the prompt begins with. */
  from?: string
  /** How many tokens are that turn's. */
  reusedTokens: number
}

export interface PlanningSession {
  readonly memory: SessionMemory
  readonly turns: SessionTurns
}

export interface PlannedPrompt {
  ids: PromptIds
  origin: PromptOrigin
  /** The text that the completion follows; of an extended prompt only its new part. */
  text: string
  call: MatchedCall<KnownTurn>
  parent: KnownTurn | undefined
}

/**
 * @throws ProxyError `invalid_request` when the template refuses the messages, `unsupported` for what token mode
 *   cannot do
 */
export async function planPrompt(
  renderer: PromptRenderer,
  session: PlanningSession,
  request: Pick<ChatRequest, 'body' | 'lastMessage'>,
): Promise<PlannedPrompt> {
  const { body } = request
  refuseWhatTokenModeCannotDo(body)
  const options = promptOptionsOf(body, session.memory.requests)
  const conversation = readConversation(request.lastMessage, body.tools, session.memory.requests)
  const call = session.turns.match(await withVariables(renderer, options, conversation))
  const parent = call.parent?.turn
  const extended = parent && (await extend(renderer, request, call, parent, options))
  if (parent && extended && 'ids' in extended) {
    const reason = call.isFork ? 'forked' : 'extended'
    const origin = { reason, from: parent.turnId, reusedTokens: parent.prompt.tokenCount } as const
    return { ...extended, origin, call, parent }
  }
  const { text, ids } = await renderer.renderFull(body.messages, options, textsOf(request))
  const refused = extended && 'refused' in extended ? extended.refused : undefined
  const reason = refused ?? (session.turns.bytes === 0 ? 'first' : 'branched')
  return { ids: PromptIds.from(ids), text, origin: { reason, reusedTokens: 0 }, call, parent: undefined }
}

/** What is not a message and changes how the prompt begins, the tools' key stands for. */
export async function withVariables(
  renderer: PromptRenderer,
  options: PromptOptions,
  conversation: Conversation,
): Promise<Conversation> {
  const variablesKey = await renderer.variablesKey(options)
  return { ...conversation, toolsKey: `${conversation.toolsKey} ${variablesKey}` }
}

/** The JSON of each message. */
function textsOf({ lastMessage }: Pick<ChatRequest, 'lastMessage'>): string[] | undefined {
  return lastMessage && messagesBetween(undefined, lastMessage).map(({ json }) => json)
}

async function extend(
  renderer: PromptRenderer,
  request: Pick<ChatRequest, 'body' | 'lastMessage'>,
  { sharedMessages }: MatchedCall<KnownTurn>,
  parent: KnownTurn,
  options: PromptOptions,
): Promise<{ ids: PromptIds; text: string } | { refused: PromptReason }> {
  const { messages } = request.body
  const newMessages = messages.slice(sharedMessages)
  if (newMessages.length === 0) return { refused: 'nothing_new' }
  const history = messages.slice(0, sharedMessages)
  const lastCompletionId = parent.prompt.completion.at(-1)
  const asked = { history, newMessages, texts: textsOf(request), lastCompletionId }
  const continuation = await renderer.renderContinuation(asked, options)
  if ('refused' in continuation) return continuation
  return {
    ids: parent.prompt.continuedBy(continuation.glueIds, continuation.newIds),
    text: continuation.text,
  }
}

/**
 * What of a chat's body a template reads besides the messages.
 * @param repeats knows tools that came before
 */
export function promptOptionsOf(body: ChatBody, repeats: Repeats = NO_REPEATS): PromptOptions {
  const { tools, documents } = body
  const kwargs = templateVariables(body)
  return {
    // As text: a number as it was written is lost on the way to another thread.
    tools: tools && tools.length > 0 ? repeats.once(toolsText, tools) : null,
    ...(kwargs && { kwargs }),
    ...(Array.isArray(documents) && { documents }),
  }
}

/**
 * As vLLM gives them to the template: the effort under its own name, whatever the variables say, and as the switch that
 * some templates have instead, unless they say (`build_chat_params` of `vllm/entrypoints/openai/chat_completion/protocol.py`).
 */
function templateVariables({
  chat_template_kwargs: kwargs,
  reasoning_effort: effort,
}: ChatBody): Record<string, unknown> | undefined {
  const given = isRecord(kwargs) ? kwargs : undefined
  if (effort === undefined || effort === null) return given
  return { enable_thinking: effort !== 'none', ...given, reasoning_effort: effort }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function isSet(value: unknown): boolean {
  return value !== undefined && value !== null
}

function refuseWhatTokenModeCannotDo(body: ChatBody): void {
  const refuse = (param: string, why: string) => {
    throw new ProxyError('unsupported', `'${param}' is not supported in token mode: ${why}`, { param })
  }
  if (body.continue_final_message === true)
    refuse('continue_final_message', 'every completion begins a new message')
  if (body.add_generation_prompt === false)
    refuse('add_generation_prompt', 'every completion begins a new message')
  if (body.chat_template) refuse('chat_template', "prompts are rendered with the model's own template")
  if (body.echo === true) refuse('echo', 'a turn records what was sampled, not its prompt')
  // Cut by the engine, the prompt would be another than the one on record.
  if (isSet(body.truncate_prompt_tokens)) refuse('truncate_prompt_tokens', 'prompts are never cut')
  for (const field of ['functions', 'function_call'])
    if (isSet(body[field])) refuse(field, 'offer tools instead')
}
