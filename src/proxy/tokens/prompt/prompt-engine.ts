/**
 * Renders prompts, and the part that new messages add to a prompt: the text after the completion's echo. The engine
 * renders the new part after a dummy history with the same template signature, so that the cost depends only on the new
 * messages. When a signature first occurs, and again each time its count has doubled, the engine renders the new part
 * also after the real history. If the texts differ, conversations with that signature are rendered with their real
 * history from then on. Conversations that contain a word which the template searches for (`template-words.ts`) are
 * always rendered with their real history.
 */
import {
  type ChatTemplate,
  type MessageOrJson,
  type RenderOptions,
  toJson,
} from '../templates/chat-template.ts'
import type { PromptRoles } from '../templates/prompt-format.ts'
import {
  type Specialization,
  shiftConditions,
  splitContents,
  type TextPath,
} from '../templates/specialization.ts'
import type { TemplateWords } from '../templates/template-words.ts'
import type { BoundaryTokens, Bridge } from './bridge.ts'
import { hasOnlyRemovals, hasSentinel, isSameHistory, splitAfterSentinels } from './sentinels.ts'
import {
  type Beginnings,
  getVariablesKey,
  type PromptOptions,
  TemplateBoundaries,
} from './template-boundaries.ts'
import type { TemplateRejection } from './template-rejection.ts'
import {
  createDummyHistories,
  createSentinelEcho,
  type EchoShape,
  getSignatureKey,
  listEchoForms,
  SENTINEL_TOOLS,
  type TemplateSignature,
} from './template-signature.ts'

/** A request for the part that new messages add to a prompt. */
export interface NewPartRequest {
  /** The template signature of the conversation. */
  situation: TemplateSignature
  /** The complete history without the echo. It is required only if a request without it returned `needs_history`. */
  history?: readonly MessageOrJson[] | undefined
  /** The text of the echo, if it contains a word that the template searches for. */
  echoText?: string | undefined
  newMessages: readonly MessageOrJson[]
  /**
   * Whether to compare the text with that after the complete history. Default: if the signature's count is a power of
   * 2.
   */
  verifies?: true
}

/** The part that new messages add to a prompt. */
export interface NewPart {
  /** The text after the end of the completion's turn, including the generation prompt. */
  text: string
  /** The ids that are appended to a truncated completion. */
  closingIds: readonly number[]
  /** The id of the token before the text; undefined if the model ends its turn by sampling the text's first token. */
  endId: number | undefined
  /** Set if no dummy history represents the real one: the text is that after the complete history. */
  needsHistory?: true
}

/** The result of a {@link NewPartRequest}. `needs_history`: the request must be repeated with the complete history. */
export type NewPartReply = NewPart | TemplateRejection | 'needs_history'

/** A {@link NewPart} for all new messages of one shape: the text has slots for their contents. */
export interface PartSpecialization extends Omit<NewPart, 'text' | 'needsHistory'> {
  specialization: Specialization
}

/** The cached knowledge about a template signature. */
interface SignatureEntry {
  /** The number of requests with this signature. */
  count: number
  /** Whether the dummy history has represented all real histories so far. If not, the real history is rendered. */
  isDummyEquivalent: boolean
  bridge: Bridge | undefined
  /** The id of the last tool call when the bridge was rendered, because Apriel's template writes it into the bridge. */
  bridgeCallId?: string | undefined
}

/**
 * The maximum number of cached signatures. Evicted ones are verified again; the limit protects the memory from a client
 * that sends other variables with each request.
 */
const MAX_SIGNATURES = 4096
/** The maximum number of cached texts of dummy histories. */
const MAX_DUMMY_TEXTS = 512
/** The maximum length of a cached text. */
const MAX_DUMMY_CHARS = 32 * 1024

/**
 * A renderer of prompts and new parts on the calling thread, with a cache of the template signatures that have
 * occurred.
 */
export class PromptEngine {
  readonly words: TemplateWords
  readonly roles: PromptRoles
  readonly #template: ChatTemplate
  readonly #boundaries: TemplateBoundaries
  readonly #signatures = new Map<string, SignatureEntry>()
  /** The texts of dummy histories with an echo, rendered without following messages. */
  readonly #dummyTexts = new Map<string, string>()

  constructor(template: ChatTemplate, tokens: BoundaryTokens) {
    this.words = template.getWords()
    this.roles = template.getRoles()
    this.#template = template
    this.#boundaries = new TemplateBoundaries(template, tokens)
  }

  /** @throws see {@link ChatTemplate.render} */
  render(messages: readonly MessageOrJson[], options: RenderOptions): string {
    return this.#template.render(messages, options)
  }

  /** See {@link TemplateBoundaries.getBeginnings}. */
  getBeginnings(options: PromptOptions): Beginnings {
    return this.#boundaries.getBeginnings(options)
  }

  /** See {@link ChatTemplate.specialize}. */
  specialize(
    messages: readonly MessageOrJson[],
    options: RenderOptions,
    paths: readonly TextPath[],
  ): Specialization | undefined {
    return this.#template.specialize(messages, options, paths)
  }

  /**
   * Specializes the text of {@link renderNewPart} to the shape of the new messages. The contents are those of the new
   * messages, followed by the ids of the echo's tool calls.
   *
   * The template is specialized to a dummy history with and without the new messages. The template must not write any
   * of the contents in the history: then the check that the new messages do not change the history holds for all
   * contents.
   * @returns undefined if the template cannot be specialized, or the dummy history was not found equivalent
   */
  specializePart(
    { situation, newMessages }: NewPartRequest,
    options: PromptOptions,
  ): PartSpecialization | undefined {
    const { bridge, isDummyEquivalent } = this.#signatures.get(getEntryKey({ situation }, options)) ?? {}
    if (bridge === undefined || !isDummyEquivalent) return undefined
    const [past] = createDummyHistories(situation)
    const [form] = listEchoForms(situation.echo)
    const { message, sentinels } = createSentinelEcho(form!)
    const split = splitContents(newMessages, past!.length + 1)
    if (split === undefined) return undefined
    const toolOptions = { ...options, tools: situation.withTools ? SENTINEL_TOOLS_JSON : null }
    const idPaths = form!.toolCalls.map((_, index) => [past!.length, 'tool_calls', index, 'id'])
    const alone = this.#template.specialize(
      [...past!, message],
      { ...toolOptions, addGenerationPrompt: false },
      idPaths,
    )
    const followed = this.#template.specialize([...past!, message, ...newMessages], toolOptions, [
      ...split.paths,
      ...idPaths,
    ])
    const before = alone && splitTextsAfterSentinels(alone.pieces, sentinels)
    const after = followed && splitTextsAfterSentinels(followed.pieces, sentinels)
    if (before === undefined || after === undefined || !isSameHistory(before.past, after.past))
      return undefined
    const [first, ...rest] = after.rest
    if (!first!.startsWith(bridge.text) || after.rest.some(isSentinelPiece)) return undefined
    const conditions = [...followed!.conditions, ...shiftConditions(alone!.conditions, split.contents.length)]
    const pieces = [first!.slice(bridge.text.length), ...rest]
    return { specialization: { pieces, conditions }, closingIds: bridge.ids, endId: bridge.endId }
  }

  /**
   * Renders the part that new messages add to a prompt. It is rejected if the messages change the text of the history.
   */
  renderNewPart(request: NewPartRequest, options: PromptOptions): NewPartReply {
    const reply = this.#renderPart(request, options)
    const { situation } = request
    const { echo } = situation
    const changes = typeof reply === 'object' && 'refused' in reply && reply.refused === PAST_CHANGES
    if (!changes) return reply
    if (echo.calls === 0) return this.#renderRepeatedPart(request, options) ?? reply
    if (!echo.says) return reply
    // Gemma 4's template moves an assistant's content after the results of its tool calls, but the model sampled it
    // before them. The new part is therefore rendered after an echo that has only tool calls.
    const withoutText = { ...situation, echo: { ...echo, says: false } }
    return this.#renderPart({ ...request, situation: withoutText, echoText: undefined }, options)
  }

  /**
   * Renders the new part if a new message equals an earlier one; returns undefined otherwise. Mistral's templates write
   * the tools before each message that equals the last user message. All messages of a dummy history differ, so only
   * the complete history shows whether its text changes.
   */
  #renderRepeatedPart(request: NewPartRequest, options: PromptOptions): NewPartReply | undefined {
    const { history, newMessages } = request
    if (history === undefined) return 'needs_history'
    const historyTexts = new Set(history.map(toJson))
    return newMessages.some((message) => historyTexts.has(toJson(message)))
      ? this.#renderPart(request, options, true)
      : undefined
  }

  #renderPart(request: NewPartRequest, options: PromptOptions, isRepeated = false): NewPartReply {
    const end = this.#boundaries.getEndOfTurn(options)
    if (end === undefined) return { refused: 'no_end_of_turn' }
    const key = getEntryKey(request, options) + (isRepeated ? ' repeated' : '')
    const existing = this.#signatures.get(key) ?? {
      count: 0,
      isDummyEquivalent: !request.situation.hasWords,
      bridge: undefined,
    }
    // A template may write the date, which must not change between the texts that are compared.
    const dated = { now: new Date(), ...options }
    const afterDummy = isRepeated ? undefined : this.#renderAfterDummyHistory(request, dated, key)
    if (afterDummy === PAST_CHANGES) return { refused: PAST_CHANGES }
    const short = existing.isDummyEquivalent ? afterDummy : undefined
    const verifies = request.verifies ?? isPowerOfTwo(existing.count + 1)
    if ((verifies || short === undefined) && request.history === undefined) return 'needs_history'
    // The sentinels of a dummy history have already shown that nothing but reasoning is removed. Without a dummy
    // history, the texts of the complete one must be compared strictly.
    const isHistoryUnchanged = isRepeated ? isSame : isSameHistory
    const isUnchanged = afterDummy === undefined ? isHistoryUnchanged : hasOnlyRemovals
    const full =
      verifies || short === undefined
        ? this.#renderAfterHistory(request, dated, short === undefined ? isUnchanged : undefined)
        : short
    if (full === PAST_CHANGES) return { refused: PAST_CHANGES }
    // The template may reject a history that the model has sampled: Llama's accepts only one tool call per message.
    const rest = full ?? short
    if (rest === undefined) return { refused: 'template_refuses' }
    const callId = request.situation.echo.toolCalls.at(-1)?.id
    if (existing.bridge === undefined) {
      existing.bridge = this.#boundaries.getBridge(request.situation, end, dated)
      existing.bridgeCallId = callId
    }
    existing.count += 1
    existing.isDummyEquivalent &&= rest === short
    if (this.#signatures.size >= MAX_SIGNATURES) this.#signatures.clear()
    this.#signatures.set(key, existing)
    const { bridge, bridgeCallId } = existing
    if (bridge === undefined) return { refused: 'no_end_of_turn' }
    const { ids: closingIds, endId, text } = bridge
    const written = bridgeCallId && callId ? text.replace(bridgeCallId, () => callId) : text
    if (!rest.startsWith(written)) return { refused: 'no_end_of_turn' }
    const part = { text: rest.slice(written.length), closingIds, endId }
    return existing.isDummyEquivalent ? part : { ...part, needsHistory: true }
  }

  /**
   * Renders the new messages after a dummy history. Returns undefined if no dummy history can represent the complete
   * one.
   * @param key the key of the signature
   */
  #renderAfterDummyHistory(
    { situation, newMessages }: NewPartRequest,
    options: PromptOptions,
    key: string,
  ): TextAfterEcho {
    const toolOptions = { ...options, tools: situation.withTools ? SENTINEL_TOOLS_JSON : null }
    const rest = createDummyHistories(situation)
      .map((past, index) =>
        this.#renderAfterEcho(past, situation.echo, newMessages, toolOptions, (form, after) =>
          this.#isDummyHistoryUnchanged(past, form, toolOptions, after, `${index} ${key}`),
        ),
      )
      .find(isFound)
    // A sentinel in the text represents a tool or an earlier message, whose real text is required.
    return rest !== undefined && hasSentinel(rest) ? undefined : rest
  }

  /**
   * Renders the new messages after the complete history.
   * @param isUnchanged verifies the history's text; undefined: it is not verified
   */
  #renderAfterHistory(
    { situation, history, echoText, newMessages }: NewPartRequest,
    options: PromptOptions,
    isUnchanged: typeof isSameHistory | undefined,
  ): TextAfterEcho {
    const check: HistoryCheck = (form, after) => {
      const before = isUnchanged && this.#renderHistory(history!, form, options)
      return before === undefined || isUnchanged!(before, withoutIds(after, form))
    }
    const echo = { ...situation.echo, text: echoText }
    return this.#renderAfterEcho(history!, echo, newMessages, options, check)
  }

  /** Renders the new messages after a history and the first form of the echo that the template renders. */
  #renderAfterEcho(
    past: readonly MessageOrJson[],
    echo: EchoShape,
    newMessages: readonly MessageOrJson[],
    options: PromptOptions,
    check: HistoryCheck,
  ): TextAfterEcho {
    for (const form of listEchoForms(echo)) {
      const { message, sentinels } = createSentinelEcho(form)
      const after = splitAfterSentinels(
        this.#template.tryRender([...past, message, ...newMessages], options),
        sentinels,
      )
      if (after !== undefined) return check(form, after.past) ? after.rest : PAST_CHANGES
    }
    return undefined
  }

  /**
   * Returns whether new messages leave the text of a dummy history unchanged. That text is cached for all requests with
   * the same signature, unless it contains ids of the echo's tool calls, which differ between requests.
   * @param after the text of the dummy history when new messages follow it
   */
  #isDummyHistoryUnchanged(
    past: readonly MessageOrJson[],
    form: EchoShape,
    options: PromptOptions,
    after: string,
    historyKey: string,
  ): boolean {
    const key = JSON.stringify([historyKey, form.says, form.reasons, listToolNames(form)])
    const idless = withoutIds(after, form)
    const existing = this.#dummyTexts.get(key)
    if (existing !== undefined && isSameHistory(existing, idless)) return true
    const before = this.#renderHistory(past, form, options)
    if (before === undefined) return true
    if (before.length <= MAX_DUMMY_CHARS && !form.toolCalls.some(({ id }) => before.includes(id))) {
      if (this.#dummyTexts.size >= MAX_DUMMY_TEXTS) this.#dummyTexts.clear()
      this.#dummyTexts.set(key, before)
    }
    return isSameHistory(before, idless)
  }

  /**
   * Renders a history and the echo up to its sentinels. Returns undefined if the template does not render the
   * sentinels.
   */
  #renderHistory(
    past: readonly MessageOrJson[],
    form: EchoShape,
    options: PromptOptions,
  ): string | undefined {
    const { message, sentinels } = createSentinelEcho(form)
    const text = this.#template.tryRender([...past, message], { ...options, addGenerationPrompt: false })
    return splitAfterSentinels(text, sentinels)?.past
  }
}

const PAST_CHANGES = 'past_changes'

const isSame = (before: string, after: string) => before === after

/** Returns whether a history is unchanged. @param after its text when messages follow it and this form of the echo */
type HistoryCheck = (form: EchoShape, after: string) => boolean

/**
 * The text after the echo; `past_changes` if the new messages change the history; undefined if the template rejects the
 * conversation, or does not render the echo's sentinels.
 */
type TextAfterEcho = string | undefined

/**
 * Splits the pieces of a specialization after the echo with these sentinels. Returns undefined if the echo is not part
 * of the text before the first slot.
 */
function splitTextsAfterSentinels(
  pieces: Specialization['pieces'],
  sentinels: readonly string[],
): { past: string; rest: readonly [string, ...Specialization['pieces']] } | undefined {
  const first = pieces.findIndex((piece) => typeof piece !== 'string')
  const texts = first === -1 ? pieces : pieces.slice(0, first)
  const cut = splitAfterSentinels(texts.join(''), sentinels)
  return cut && { past: cut.past, rest: [cut.rest, ...pieces.slice(texts.length)] }
}

function isSentinelPiece(piece: Specialization['pieces'][number]): boolean {
  return typeof piece === 'string' && hasSentinel(piece)
}

/** Removes the ids of the echo's tool calls, because Apriel's template writes them only if a message follows. */
function withoutIds(past: string, { toolCalls }: EchoShape): string {
  return toolCalls.reduce((text, { id }) => text.replace(`, "id": ${JSON.stringify(id)}`, ''), past)
}

function listToolNames({ toolCalls }: EchoShape): string[] {
  return toolCalls.map(({ function: { name } }) => name)
}

const SENTINEL_TOOLS_JSON = JSON.stringify(SENTINEL_TOOLS)

function isFound<Found>(found: Found | undefined): found is Found {
  return found !== undefined
}

function getEntryKey({ situation }: Pick<NewPartRequest, 'situation'>, options: PromptOptions): string {
  return getSignatureKey(situation) + getVariablesKey(options)
}

function isPowerOfTwo(count: number): boolean {
  return (count & (count - 1)) === 0
}
