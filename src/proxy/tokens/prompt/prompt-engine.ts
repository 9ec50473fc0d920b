/**
 * Renders prompts, and the part that new messages add to one: the text after the completion's echo in the complete
 * conversation. The engine renders it after a dummy history with the same template signature, so that the cost depends
 * only on the new messages. It verifies on the complete conversation that both texts are equal when a signature first
 * occurs, and again each time its count has doubled. If they differ, conversations with that signature are rendered in
 * full from then on, and so is each conversation that contains a word which the template searches for
 * (`template-words.ts`).
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
import { hasSentinel, isSameHistory, losesAtMost, splitAfterSentinels } from './sentinels.ts'
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

export interface NewPartRequest {
  situation: TemplateSignature
  /** The complete history without the echo, which is required only after the result `needs_history`. */
  history?: readonly MessageOrJson[] | undefined
  /** The text of the echo, if it contains a word that the template searches for. */
  echoText?: string | undefined
  newMessages: readonly MessageOrJson[]
  /** Whether to verify the dummy history on the complete one. Default: if the signature's count is a power of two. */
  verifies?: true
}

export interface NewPart {
  /** The text after the end of the completion's turn, including the generation prompt. */
  text: string
  /** The ids that a truncated completion lacks. */
  closingIds: readonly number[]
  /** The token before the text; undefined: the model ends its turn by sampling the text's first token. */
  endId: number | undefined
  /** Set if no dummy history represents this one: the text is that of the complete conversation. */
  needsHistory?: true
}

export type NewPartReply = NewPart | TemplateRejection | 'needs_history'

/** The text of a {@link NewPart} for new messages of one shape. */
export interface PartSpecialization extends Omit<NewPart, 'text' | 'needsHistory'> {
  specialization: Specialization
}

interface SignatureEntry {
  /** The number of occurrences. */
  count: number
  /** Whether the dummy history is equivalent to the complete one; else the complete one is rendered. */
  shortHolds: boolean
  closing: Bridge | undefined
  /** The id of the tool call that the bridge closes: Apriel's template writes it after the arguments. */
  closedId?: string | undefined
}

/**
 * The cache size: forgotten entries are computed again, and an agent that keeps changing its variables must not fill
 * the memory.
 */
const MAX_KNOWN = 4096
/** The maximum number of cached dummy histories. */
const MAX_KNOWN_PASTS = 512
const MAX_PAST_CHARS = 32 * 1024

export class PromptEngine {
  readonly words: TemplateWords
  readonly roles: PromptRoles
  readonly #template: ChatTemplate
  readonly #boundaries: TemplateBoundaries
  readonly #situations = new Map<string, SignatureEntry>()
  /** The rendered texts of dummy histories and an echo without following messages. */
  readonly #pasts = new Map<string, string>()

  constructor(template: ChatTemplate, tokens: BoundaryTokens) {
    this.words = template.words()
    this.roles = template.roles()
    this.#template = template
    this.#boundaries = new TemplateBoundaries(template, tokens)
  }

  /** @throws see {@link ChatTemplate.render} */
  render(messages: readonly MessageOrJson[], options: RenderOptions): string {
    return this.#template.render(messages, options)
  }

  /** See {@link TemplateBoundaries.beginnings}. */
  beginnings(options: PromptOptions): Beginnings {
    return this.#boundaries.beginnings(options)
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
   * Specializes the text of {@link newPart} to the shape of the new messages. The contents are those of the messages,
   * then the ids of the echo's tool calls.
   *
   * The template is specialized to a dummy history with and without the new messages. No content or id may be written
   * in the history, so that it is known for all contents whether the new messages change it.
   * @returns undefined if it cannot be specialized, or is not known to be that after a dummy history
   */
  specializePart(
    { situation, newMessages }: NewPartRequest,
    options: PromptOptions,
  ): PartSpecialization | undefined {
    const { closing, shortHolds } = this.#situations.get(getSituationKey({ situation }, options)) ?? {}
    if (closing === undefined || !shortHolds) return undefined
    const [past] = createDummyHistories(situation)
    const [form] = listEchoForms(situation.echo)
    const { message, sentinels } = createSentinelEcho(form!)
    const split = splitContents(newMessages, past!.length + 1)
    if (split === undefined) return undefined
    const dressed = { ...options, tools: situation.withTools ? SENTINEL_TOOLS_JSON : null }
    const idPaths = form!.toolCalls.map((_, index) => [past!.length, 'tool_calls', index, 'id'])
    const alone = this.#template.specialize(
      [...past!, message],
      { ...dressed, addGenerationPrompt: false },
      idPaths,
    )
    const followed = this.#template.specialize([...past!, message, ...newMessages], dressed, [
      ...split.paths,
      ...idPaths,
    ])
    const before = alone && splitTextsAfterSentinels(alone.pieces, sentinels)
    const after = followed && splitTextsAfterSentinels(followed.pieces, sentinels)
    if (before === undefined || after === undefined || !isSameHistory(before.past, after.past))
      return undefined
    const [first, ...rest] = after.behind
    if (!first!.startsWith(closing.text) || after.behind.some(isSentinelPiece)) return undefined
    const conditions = [...followed!.conditions, ...shiftConditions(alone!.conditions, split.contents.length)]
    const pieces = [first!.slice(closing.text.length), ...rest]
    return { specialization: { pieces, conditions }, closingIds: closing.ids, endId: closing.endId }
  }

  newPart(request: NewPartRequest, options: PromptOptions): NewPartReply {
    const answer = this.#newPart(request, options)
    const { situation } = request
    const { echo } = situation
    const changes = typeof answer === 'object' && 'refused' in answer && answer.refused === PAST_CHANGES
    if (!changes) return answer
    if (echo.calls === 0) return this.#newPartOfRepeated(request, options) ?? answer
    if (!echo.says) return answer
    // Gemma 4's template moves an assistant's content behind the results of its tool calls, but the model sampled it
    // before them: the text after the echo is that after tool calls alone.
    const silent = { ...situation, echo: { ...echo, says: false } }
    return this.#newPart({ ...request, situation: silent, echoText: undefined }, options)
  }

  /**
   * Renders the new part if a new message equals an earlier one. Mistral's templates write tools before each message
   * that equals the last user message. The messages of a dummy history all differ, so the complete history must show
   * that nothing changes.
   */
  #newPartOfRepeated(request: NewPartRequest, options: PromptOptions): NewPartReply | undefined {
    const { history, newMessages } = request
    if (history === undefined) return 'needs_history'
    const historyTexts = new Set(history.map(toJson))
    return newMessages.some((message) => historyTexts.has(toJson(message)))
      ? this.#newPart(request, options, true)
      : undefined
  }

  #newPart(request: NewPartRequest, options: PromptOptions, isRepeated = false): NewPartReply {
    const end = this.#boundaries.endOfTurn(options)
    if (end === undefined) return { refused: 'no_end_of_turn' }
    const key = getSituationKey(request, options) + (isRepeated ? ' repeated' : '')
    const existing = this.#situations.get(key) ?? {
      count: 0,
      shortHolds: !request.situation.hasWords,
      closing: undefined,
    }
    // The date may change: all texts that are compared use the same one.
    const dated = { now: new Date(), ...options }
    const ofShort = isRepeated ? undefined : this.#behindShort(request, dated, key)
    if (ofShort === PAST_CHANGES) return { refused: PAST_CHANGES }
    const short = existing.shortHolds ? ofShort : undefined
    const isProof = request.verifies ?? isPowerOfTwo(existing.count + 1)
    if ((isProof || short === undefined) && request.history === undefined) return 'needs_history'
    // The sentinels of a dummy history show which part was removed; without a dummy history, only the texts can be
    // compared.
    const ofWhole = isRepeated ? isSame : isSameHistory
    const staysTheSame = ofShort === undefined ? ofWhole : losesAtMost
    const full =
      isProof || short === undefined
        ? this.#behindWhole(request, dated, short === undefined ? staysTheSame : undefined)
        : short
    if (full === PAST_CHANGES) return { refused: PAST_CHANGES }
    // The template may reject the complete history although it was sampled: Llama's accepts one tool call per message.
    const behind = full ?? short
    if (behind === undefined) return { refused: 'template_refuses' }
    const callId = request.situation.echo.toolCalls.at(-1)?.id
    if (existing.closing === undefined) {
      existing.closing = this.#boundaries.bridge(request.situation, end, dated)
      existing.closedId = callId
    }
    existing.count += 1
    existing.shortHolds &&= behind === short
    if (this.#situations.size >= MAX_KNOWN) this.#situations.clear()
    this.#situations.set(key, existing)
    const { closing, closedId } = existing
    if (closing === undefined) return { refused: 'no_end_of_turn' }
    const { ids: closingIds, endId, text } = closing
    const written = closedId && callId ? text.replace(closedId, () => callId) : text
    if (!behind.startsWith(written)) return { refused: 'no_end_of_turn' }
    const part = { text: behind.slice(written.length), closingIds, endId }
    return existing.shortHolds ? part : { ...part, needsHistory: true }
  }

  /**
   * Returns the text after the echo of a dummy history; undefined if that cannot represent the complete history.
   * @param key key of the signature
   */
  #behindShort(
    { situation, newMessages }: NewPartRequest,
    options: PromptOptions,
    key: string,
  ): TextAfterEcho {
    const dressed = { ...options, tools: situation.withTools ? SENTINEL_TOOLS_JSON : null }
    const behind = createDummyHistories(situation)
      .map((past, index) =>
        this.#behind(past, situation.echo, newMessages, dressed, (form, after) =>
          this.#staysShort(past, form, dressed, after, `${index} ${key}`),
        ),
      )
      .find(isFound)
    // A sentinel in it represents a tool or an earlier message, whose real text is required.
    return behind !== undefined && hasSentinel(behind) ? undefined : behind
  }

  #behindWhole(
    { situation, history, echoText, newMessages }: NewPartRequest,
    options: PromptOptions,
    staysTheSame: typeof isSameHistory | undefined,
  ): TextAfterEcho {
    const stays: HistoryCheck = (form, after) => {
      const before = staysTheSame && this.#pastAlone(history!, form, options)
      return before === undefined || staysTheSame!(before, withoutIds(after, form))
    }
    const echo = { ...situation.echo, text: echoText }
    return this.#behind(history!, echo, newMessages, options, stays)
  }

  #behind(
    past: readonly MessageOrJson[],
    echo: EchoShape,
    newMessages: readonly MessageOrJson[],
    options: PromptOptions,
    stays: HistoryCheck,
  ): TextAfterEcho {
    for (const form of listEchoForms(echo)) {
      const { message, sentinels } = createSentinelEcho(form)
      const after = splitAfterSentinels(
        this.#template.tryRender([...past, message, ...newMessages], options),
        sentinels,
      )
      if (after !== undefined) return stays(form, after.past) ? after.behind : PAST_CHANGES
    }
    return undefined
  }

  /**
   * Returns whether new messages leave a dummy history unchanged. It is rendered alone once for all requests with a
   * signature, unless the template prints the ids of the echo's tool calls, which always differ.
   */
  #staysShort(
    past: readonly MessageOrJson[],
    form: EchoShape,
    options: PromptOptions,
    after: string,
    situation: string,
  ): boolean {
    const key = JSON.stringify([situation, form.says, form.reasons, listToolNames(form)])
    const idless = withoutIds(after, form)
    const existing = this.#pasts.get(key)
    if (existing !== undefined && isSameHistory(existing, idless)) return true
    const before = this.#pastAlone(past, form, options)
    if (before === undefined) return true
    if (before.length <= MAX_PAST_CHARS && !form.toolCalls.some(({ id }) => before.includes(id))) {
      if (this.#pasts.size >= MAX_KNOWN_PASTS) this.#pasts.clear()
      this.#pasts.set(key, before)
    }
    return isSameHistory(before, idless)
  }

  /** Returns a rendered history and the echo, up to its sentinels; undefined if the template does not render them. */
  #pastAlone(past: readonly MessageOrJson[], form: EchoShape, options: PromptOptions): string | undefined {
    const { message, sentinels } = createSentinelEcho(form)
    const text = this.#template.tryRender([...past, message], { ...options, addGenerationPrompt: false })
    return splitAfterSentinels(text, sentinels)?.past
  }
}

const PAST_CHANGES = 'past_changes'

const isSame = (before: string, after: string) => before === after

/** Returns whether a history is unchanged when messages follow this form of the echo. */
type HistoryCheck = (form: EchoShape, after: string) => boolean

/** The text after the echo; undefined: the template rejects the conversation, or does not render the echo's content. */
type TextAfterEcho = string | undefined

/**
 * Splits a specialization after the echo with these sentinels. Returns undefined if the texts before its first content
 * do not contain the echo.
 */
function splitTextsAfterSentinels(
  pieces: Specialization['pieces'],
  sentinels: readonly string[],
): { past: string; behind: readonly [string, ...Specialization['pieces']] } | undefined {
  const first = pieces.findIndex((piece) => typeof piece !== 'string')
  const texts = first === -1 ? pieces : pieces.slice(0, first)
  const cut = splitAfterSentinels(texts.join(''), sentinels)
  return cut && { past: cut.past, behind: [cut.behind, ...pieces.slice(texts.length)] }
}

function isSentinelPiece(piece: Specialization['pieces'][number]): boolean {
  return typeof piece === 'string' && hasSentinel(piece)
}

/** Removes the ids of the echo's tool calls: Apriel's template prints them only if a message follows. */
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

function getSituationKey({ situation }: Pick<NewPartRequest, 'situation'>, options: PromptOptions): string {
  return getSignatureKey(situation) + getVariablesKey(options)
}

function isPowerOfTwo(count: number): boolean {
  return (count & (count - 1)) === 0
}
