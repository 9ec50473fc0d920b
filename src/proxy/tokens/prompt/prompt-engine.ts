/**
 * Renders prompts, and what new messages add to one. What they add is the text behind the completion's echo in the
 * whole conversation. It is rendered behind a short conversation of the same shape instead, so that it costs what is
 * new; that this gives the same text is proved on the conversation itself when a situation first comes up, and again
 * each time that it has come up twice as often. Where the two differ, that situation is rendered in full from then on,
 * and so is each conversation that says one of the words that the template looks for (`template-words.ts`).
 */
import { hash } from 'node:crypto'
import { ProxyError } from '../../../base/errors.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import {
  type ChatTemplate,
  type MessageOrJson,
  type RenderOptions,
  toJson,
} from '../templates/chat-template.ts'
import type { TemplateWords } from '../templates/template-words.ts'
import { AddedTokenFinder } from '../tokenizer/added-tokens.ts'
import { type BoundaryTokens, type Bridge, type EndOfTurn, findBridge, findEndOfTurn } from './bridge.ts'
import {
  createSentinel,
  findSentinelsEnd,
  getTextBeforeSentinel,
  hasSentinel,
  isSameHistory,
  losesAtMost,
} from './sentinels.ts'
import type { TemplateRejection } from './template-rejection.ts'
import {
  ANSWER,
  createDummyHistories,
  createFollowingMessages,
  createSentinelEcho,
  type EchoShape,
  FIRST_SENTINEL,
  getSignatureKey,
  listEchoForms,
  SENTINEL_TOOLS,
  type TemplateSignature,
} from './template-signature.ts'

/** How a prompt begins and what is in it; its end is another matter. */
export type PromptOptions = Omit<RenderOptions, 'addGenerationPrompt' | 'continueFinalMessage'>

export interface NewPartRequest {
  situation: TemplateSignature
  /** All of the past but the echo, in case that it is needed; see {@link NewPartAnswer}. */
  history?: readonly MessageOrJson[] | undefined
  /** What the echo says, where that has such a word. */
  echoText?: string | undefined
  newMessages: readonly MessageOrJson[]
}

export interface NewPart {
  /** What follows the end of the completion's turn, the generation prompt included. */
  text: string
  /** What a completion that was cut off lacks. */
  closingIds: readonly number[]
  /** The token that the text follows; undefined: the model gives up the floor by sampling the text's first token. */
  endId: number | undefined
}

export type NewPartAnswer = NewPart | TemplateRejection | 'needs_history'

/** Digests of what prompts begin with, date and tools left out, for calls without and with tools; and what ends reasoning. */
export interface Beginnings {
  withoutTools: string
  withTools: string
  /** What the template writes between reasoning and what is said after it; undefined if it does not show both. */
  endOfReasoning: string | undefined
}

interface SignatureEntry {
  /** How often it has come up. */
  count: number
  /** Whether the short past stands for the whole; else the whole is rendered. */
  shortHolds: boolean
  closing: Bridge | undefined
  /** The id of the call that it closes: Apriel's writes it behind the arguments. */
  closedId?: string | undefined
}

/** What is known is found again when it was forgotten; an agent that sends ever new variables must not fill the memory. */
const MAX_KNOWN = 4096
/** Longer variables are told apart by their digest. */
const MAX_KEY_CHARS = 256
/** Of the texts of short pasts. */
const MAX_KNOWN_PASTS = 512
const MAX_PAST_CHARS = 32 * 1024

export class PromptEngine {
  readonly words: TemplateWords
  readonly #template: ChatTemplate
  readonly #finder: AddedTokenFinder
  readonly #eosIds: ReadonlySet<number>
  readonly #ends = new Map<string, EndOfTurn | undefined>()
  readonly #situations = new Map<string, SignatureEntry>()
  /** What the template writes of a short past and an echo when nothing follows. */
  readonly #pasts = new Map<string, string>()

  constructor(template: ChatTemplate, tokens: BoundaryTokens) {
    this.words = template.words()
    this.#template = template
    this.#finder = new AddedTokenFinder(tokens.ids)
    this.#eosIds = tokens.eosIds
  }

  /** @throws what {@link ChatTemplate.render} throws */
  render(messages: readonly MessageOrJson[], options: RenderOptions): string {
    return this.#template.render(messages, options)
  }

  /** @param options tools and date are left out */
  beginnings(options: PromptOptions): Beginnings {
    const fixed = { ...options, now: new Date(0), addGenerationPrompt: false }
    const user: ChatMessage = { role: 'user', content: 'next' }
    const digest = (tools: PromptOptions['tools']) => {
      const texts = [[user], [{ role: 'system' as const, content: 'rule' }, user]].map((messages) =>
        this.#tryRender(messages, { ...fixed, tools }),
      )
      return hash('sha256', JSON.stringify(texts), 'base64')
    }
    const endOfReasoning = this.#endOfReasoning(fixed)
    return { withoutTools: digest(null), withTools: digest(BEGINNING_TOOLS), endOfReasoning }
  }

  /** Of an answer that is the last message: many templates leave reasoning out of those before. */
  #endOfReasoning(options: RenderOptions): string | undefined {
    const { message, marks } = createSentinelEcho({ ...ANSWER, reasons: true })
    const [said, , reasoning] = marks
    const user: ChatMessage = { role: 'user', content: createSentinel('message', FIRST_SENTINEL) }
    const text = this.#tryRender([user, message], options) ?? ''
    const from = text.indexOf(reasoning!)
    const to = text.indexOf(said!, from)
    return from === -1 || to === -1 ? undefined : text.slice(from + reasoning!.length, to)
  }

  newPart(request: NewPartRequest, options: PromptOptions): NewPartAnswer {
    const answer = this.#newPart(request, options)
    const { situation } = request
    const { echo } = situation
    const changes = typeof answer === 'object' && 'refused' in answer && answer.refused === PAST_CHANGES
    if (!changes) return answer
    if (echo.calls === 0) return this.#newPartOfRepeated(request, options) ?? answer
    if (!echo.says) return answer
    // Gemma 4's template moves what an answer says behind the results of its calls. It was sampled before them: what
    // follows is what follows calls alone.
    const silent = { ...situation, echo: { ...echo, says: false } }
    return this.#newPart({ ...request, situation: silent, echoText: undefined }, options)
  }

  /**
   * Mistral's templates write tools before each message that equals the last one of the user. In a short past no two are
   * equal, so the whole has to show that all stays.
   */
  #newPartOfRepeated(request: NewPartRequest, options: PromptOptions): NewPartAnswer | undefined {
    const { history, newMessages } = request
    if (history === undefined) return 'needs_history'
    const said = new Set(history.map(toJson))
    return newMessages.some((message) => said.has(toJson(message)))
      ? this.#newPart(request, options, true)
      : undefined
  }

  #newPart(request: NewPartRequest, options: PromptOptions, isRepeated = false): NewPartAnswer {
    const end = this.#endOfTurn(options)
    if (end === undefined) return { refused: 'no_end_of_turn' }
    const key = `${getSignatureKey(request.situation)}${getVariablesKey(options)}${isRepeated ? ' repeated' : ''}`
    const known = this.#situations.get(key) ?? {
      count: 0,
      shortHolds: !request.situation.hasWords,
      closing: undefined,
    }
    // The date passes: all that is compared is rendered under one.
    const dated = { now: new Date(), ...options }
    const ofShort = isRepeated ? undefined : this.#behindShort(request, dated, key)
    if (ofShort === PAST_CHANGES) return { refused: PAST_CHANGES }
    const short = known.shortHolds ? ofShort : undefined
    const isProof = isPowerOfTwo(known.count + 1)
    if ((isProof || short === undefined) && request.history === undefined) return 'needs_history'
    // A past of marks tells what it was that went; where there is none, the texts alone have to.
    const ofWhole = isRepeated ? isSame : isSameHistory
    const staysTheSame = ofShort === undefined ? ofWhole : losesAtMost
    const whole =
      isProof || short === undefined
        ? this.#behindWhole(request, dated, short === undefined ? staysTheSame : undefined)
        : short
    if (whole === PAST_CHANGES) return { refused: PAST_CHANGES }
    // A past that the template refuses as a whole was sampled all the same: Llama's takes one call a message.
    const behind = whole ?? short
    if (behind === undefined) return { refused: 'template_refuses' }
    const callId = request.situation.echo.toolCalls.at(-1)?.id
    if (known.closing === undefined) {
      known.closing = this.#closing(request, end, dated)
      known.closedId = callId
    }
    known.count += 1
    known.shortHolds &&= behind === short
    if (this.#situations.size >= MAX_KNOWN) this.#situations.clear()
    this.#situations.set(key, known)
    const { closing, closedId } = known
    if (closing === undefined) return { refused: 'no_end_of_turn' }
    const { ids: closingIds, endId, text } = closing
    const written = closedId && callId ? text.replace(closedId, () => callId) : text
    if (!behind.startsWith(written)) return { refused: 'no_end_of_turn' }
    return { text: behind.slice(written.length), closingIds, endId }
  }

  /**
   * The text behind the echo, its past being a short one; undefined if that cannot stand for the whole.
   * @param key of the situation
   */
  #behindShort({ situation, newMessages }: NewPartRequest, options: PromptOptions, key: string): Behind {
    const dressed = { ...options, tools: situation.withTools ? MARKED_TOOLS_JSON : null }
    const behind = createDummyHistories(situation)
      .map((past, index) =>
        this.#behind(past, situation.echo, newMessages, dressed, (form, after) =>
          this.#staysShort(past, form, dressed, after, `${index} ${key}`),
        ),
      )
      .find(isFound)
    // A mark in it is a tool's or a past message's: it has to be the real one.
    return behind !== undefined && hasSentinel(behind) ? undefined : behind
  }

  #behindWhole(
    { situation, history, echoText, newMessages }: NewPartRequest,
    options: PromptOptions,
    staysTheSame: typeof isSameHistory | undefined,
  ): Behind {
    const stays: StaysAsItWas = (form, after) => {
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
    stays: StaysAsItWas,
  ): Behind {
    for (const form of listEchoForms(echo)) {
      const { message, marks } = createSentinelEcho(form)
      const after = cutBehind(this.#tryRender([...past, message, ...newMessages], options), marks)
      if (after !== undefined) return stays(form, after.past) ? after.behind : PAST_CHANGES
    }
    return undefined
  }

  /**
   * Whether new messages leave a short past as it was. It is rendered by itself once for all calls of a situation, unless
   * the template shows the ids of the echo's calls, which no two calls have in common.
   */
  #staysShort(
    past: readonly MessageOrJson[],
    form: EchoShape,
    options: PromptOptions,
    after: string,
    situation: string,
  ): boolean {
    const key = JSON.stringify([situation, form.says, form.reasons, namesIn(form)])
    const idless = withoutIds(after, form)
    const known = this.#pasts.get(key)
    if (known !== undefined && isSameHistory(known, idless)) return true
    const before = this.#pastAlone(past, form, options)
    if (before === undefined) return true
    if (before.length <= MAX_PAST_CHARS && !form.toolCalls.some(({ id }) => before.includes(id))) {
      if (this.#pasts.size >= MAX_KNOWN_PASTS) this.#pasts.clear()
      this.#pasts.set(key, before)
    }
    return isSameHistory(before, idless)
  }

  /** A past and the echo, up to its marks; undefined if the template does not show them. */
  #pastAlone(past: readonly MessageOrJson[], form: EchoShape, options: PromptOptions): string | undefined {
    const { message, marks } = createSentinelEcho(form)
    const text = this.#tryRender([...past, message], { ...options, addGenerationPrompt: false })
    return cutBehind(text, marks)?.past
  }

  /** What ends an answer in text. */
  #endOfTurn(options: PromptOptions): EndOfTurn | undefined {
    const key = getVariablesKey(options)
    if (this.#ends.has(key)) return this.#ends.get(key)
    const user: ChatMessage = { role: 'user', content: createSentinel('message', FIRST_SENTINEL) }
    const { message, marks } = createSentinelEcho(ANSWER)
    const followers: ChatMessage[][] = [[user], []]
    const endWith = (tools: PromptOptions['tools']) => {
      const dressed = { ...options, tools }
      const behinds = followers.flatMap((follower) => {
        const cut = cutBehind(this.#tryRender([user, message, ...follower], dressed), marks)
        // Hunyuan's writes nothing behind an answer that is the last message.
        return cut === undefined || cut.behind === '' ? [] : [getTextBeforeSentinel(cut.behind)]
      })
      return findEndOfTurn(behinds, this.#generationPrompt(user, dressed), this.#finder, this.#eosIds)
    }
    // Some templates render nothing without tools.
    const end = endWith(null) ?? endWith(SENTINEL_TOOLS)
    if (this.#ends.size >= MAX_KNOWN) this.#ends.clear()
    this.#ends.set(key, end)
    return end
  }

  #generationPrompt(user: ChatMessage, options: PromptOptions): string {
    const without = this.#tryRender([user], { ...options, addGenerationPrompt: false })
    const whole = this.#tryRender([user], options)
    return without !== undefined && whole?.startsWith(without) ? whole.slice(without.length) : ''
  }

  /** Found with marks for what the new messages say, so that none of it is taken for the template's. */
  #closing({ situation }: NewPartRequest, end: EndOfTurn, options: PromptOptions): Bridge | undefined {
    const dressed = { ...options, tools: situation.withTools ? SENTINEL_TOOLS : null }
    return createDummyHistories(situation)
      .map((past) => this.#closingBehind(past, situation, end, dressed))
      .find(isFound)
  }

  #closingBehind(
    past: readonly ChatMessage[],
    situation: TemplateSignature,
    end: EndOfTurn,
    options: PromptOptions,
  ): Bridge | undefined {
    const following = createFollowingMessages(situation)
    for (const echo of listEchoForms(situation.echo)) {
      const { message, marks } = createSentinelEcho(echo)
      const followed = cutBehind(this.#tryRender([...past, message, ...following], options), marks)
      if (followed === undefined) continue
      const alone = this.#tryRender([...past, message], { ...options, addGenerationPrompt: false })
      const tail = cutBehind(alone, marks)?.behind ?? ''
      return findBridge(getTextBeforeSentinel(followed.behind), tail, end, this.#finder, this.#eosIds)
    }
    return undefined
  }

  /** undefined if the template refuses these messages. */
  #tryRender(messages: readonly MessageOrJson[], options: RenderOptions): string | undefined {
    try {
      return this.#template.render(messages, options)
    } catch (error) {
      if (error instanceof ProxyError) return undefined
      throw error
    }
  }
}

const PAST_CHANGES = 'past_changes'

const isSame = (before: string, after: string) => before === after

/** Whether a past still says what it said before messages followed on this form of the echo. */
type StaysAsItWas = (form: EchoShape, after: string) => boolean

/** undefined: the template refuses the conversation, or does not show what the echo says. */
type Behind = string | undefined

/** Cuts a text behind the echo that bears these marks. */
function cutBehind(
  text: string | undefined,
  marks: readonly string[],
): { past: string; behind: string } | undefined {
  // Reasoning alone does not show where the message ends.
  const isShown = text !== undefined && marks.slice(0, 2).some((mark) => text.includes(mark))
  const end = isShown ? findSentinelsEnd(text, marks) : undefined
  return end === undefined ? undefined : { past: text!.slice(0, end), behind: text!.slice(end) }
}

/** Apriel's shows the ids of an answer's calls once something follows on it. */
function withoutIds(past: string, { toolCalls }: EchoShape): string {
  return toolCalls.reduce((text, { id }) => text.replace(`, "id": ${JSON.stringify(id)}`, ''), past)
}

function namesIn({ toolCalls }: EchoShape): string[] {
  return toolCalls.map(({ function: { name } }) => name)
}

const MARKED_TOOLS_JSON = JSON.stringify(SENTINEL_TOOLS)

const BEGINNING_TOOLS = [
  {
    type: 'function' as const,
    function: { name: 'first_tool', parameters: { type: 'object', properties: {} } },
  },
]

function isFound<Found>(found: Found | undefined): found is Found {
  return found !== undefined
}

function getVariablesKey({ kwargs, documents, tools }: PromptOptions): string {
  const json = JSON.stringify([kwargs, documents, tools ? true : null])
  return json.length <= MAX_KEY_CHARS ? json : hash('sha256', json, 'base64')
}

function isPowerOfTwo(count: number): boolean {
  return (count & (count - 1)) === 0
}
