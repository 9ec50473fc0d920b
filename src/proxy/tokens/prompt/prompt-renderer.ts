/**
 * Turns conversations into prompts of token ids: a whole one once, then only what each call adds to it. A prompt of
 * recorded ids is never tokenized again, so it stays what the engine saw, and the cost of a turn does not grow with
 * the conversation. Where what is added cannot be rendered by itself it is refused, and the caller renders the whole.
 */
import { hash } from 'node:crypto'
import type { Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { TokenIds } from '../../../protocol/token-ids/token-ids.ts'
import type { CutOffState } from '../parsers/unfinished.ts'
import type { MessageOrJson, RenderOptions } from '../templates/chat-template.ts'
import { getMessageText, WordFinder } from '../templates/template-words.ts'
import type { Tokenizer } from '../tokenizer/tokenizer.ts'
import type { Beginnings, NewPart, NewPartAnswer, NewPartRequest, PromptOptions } from './prompt-engine.ts'
import type { PromptService } from './prompt-service.ts'
import type { TemplateRejection } from './template-rejection.ts'
import { createTemplateSignature } from './template-signature.ts'

export type { PromptOptions } from './prompt-engine.ts'

export interface PromptRendererOptions {
  /** The template's text: variables that it does not mention make no difference. */
  source: string
  /** Ids that end a turn for the engine. */
  eosTokenIds?: readonly number[]
  /** Default: on the spot. A `TextEncoder` keeps long texts off the event loop. */
  encode?: (text: string) => TokenIds | Promise<TokenIds>
}

export interface RenderedPrompt {
  text: string
  ids: TokenIds
}

/** A conversation, cut in two behind the assistant's message that echoes a completion. */
export interface ContinuationRequest {
  /** Its last message is the echo. */
  history: readonly ChatMessage[]
  newMessages: readonly ChatMessage[]
  /** JSON of each message, the new ones last, as it came in. */
  texts?: readonly string[] | undefined
  /** All of them in their session's conversation, which keeps what is known of each. */
  known?: readonly Message[] | undefined
  /** The last id that was sampled; undefined if none was. */
  lastCompletionId: number | undefined
  /** What the completion left open, where it was cut off. */
  unfinished?: CutOffState | undefined
}

/** Prompt and completion of the earlier turn, then `glueIds`, then `newIds`: the prompt of this one. */
export interface Continuation extends JoinPoint {
  /** The text behind the completion's end of turn. */
  text: string
}

/** A client that sends ever new variables must not fill the memory. */
const MAX_KNOWN_VARIABLES = 64

export class PromptRenderer {
  readonly #service: PromptService
  readonly #tokenizer: Tokenizer
  readonly #source: string
  readonly #eosTokenIds: ReadonlySet<number>
  readonly #encode: (text: string) => TokenIds | Promise<TokenIds>
  readonly #beginnings = new Map<string, Promise<Beginnings>>()
  #words: Promise<WordFinder> | undefined

  constructor(service: PromptService, tokenizer: Tokenizer, options: PromptRendererOptions) {
    this.#service = service
    this.#tokenizer = tokenizer
    this.#source = options.source
    this.#encode = options.encode ?? ((text) => tokenizer.encode(text))
    const eosTokenIds = [tokenizer.eosTokenId, ...(options.eosTokenIds ?? [])]
    this.#eosTokenIds = new Set(eosTokenIds.filter((id) => id !== undefined))
  }

  /**
   * @param texts JSON of each message as it came in, where it is there
   * @throws ProxyError `invalid_request` if the template refuses these messages, `unsupported` for what is no text
   */
  async renderFull(
    messages: readonly ChatMessage[],
    options: RenderOptions = {},
    texts?: readonly string[],
  ): Promise<RenderedPrompt> {
    const text = await this.#service.render(texts ?? messages, options)
    return { text, ids: await this.#encode(text) }
  }

  /**
   * Takes time by the new messages; by the whole conversation where its situation is not proved, or where it says what
   * the template looks for.
   */
  async renderContinuation(
    request: ContinuationRequest,
    options: PromptOptions = {},
  ): Promise<Continuation | TemplateRejection> {
    const { history, newMessages, texts, known } = request
    const all: readonly MessageOrJson[] = texts ?? [...history, ...newMessages]
    const words = await this.#wordFinder()
    const hasWords = history.some((message, at) => words.isIn(message, known?.[at]))
    const asked: NewPartRequest = {
      situation: {
        ...createTemplateSignature(history, newMessages, Boolean(options.tools)),
        ...(hasWords && { hasWords }),
      },
      newMessages: all.slice(history.length),
    }
    const short = this.#selectVariables(options)
    let part: NewPartAnswer = 'needs_history'
    if (!hasWords) part = await this.#service.newPart(asked, { ...short, tools: options.tools ? [] : null })
    if (part === 'needs_history') {
      const echo = history.at(-1)!
      const echoText = words.isIn(echo) ? getMessageText(echo) : undefined
      const whole = { ...asked, history: all.slice(0, history.length - 1), echoText }
      part = await this.#service.newPart(whole, { ...short, tools: options.tools })
    }
    if (part === 'needs_history') return { refused: 'template_refuses' }
    if ('refused' in part) return part
    const endText = part.endId === undefined ? '' : this.#tokenizer.idToToken(part.endId)!
    const joined = joinIds(
      await this.#encode(endText + part.text),
      part,
      this.#getCompletionEnd(request.lastCompletionId),
      this.#tokenizer,
    )
    if ('refused' in joined) return joined
    const finished = await this.#finish(request.unfinished, short)
    return { ...joined, glueIds: [...finished, ...joined.glueIds], text: part.text }
  }

  /** The tokens that end what a completion was cut off in, as the template ends it. */
  async #finish(unfinished: CutOffState | undefined, variables: PromptOptions): Promise<TokenIds> {
    if (unfinished === undefined) return []
    const { header, reasoningClose, endsLine } = unfinished
    if (reasoningClose === undefined) return header === '' ? [] : await this.#encode(header)
    const { endOfReasoning = reasoningClose } = await this.#getBeginnings(getKey(variables), variables)
    // Of a template that ends reasoning in another way than the parser reads it, the parser's way is the safe one.
    const end = endOfReasoning.includes(reasoningClose) ? endOfReasoning : reasoningClose
    return await this.#encode(header + (endsLine ? end.replace(/^\n+/, '') : end))
  }

  /**
   * Differs between calls whose variables give the same messages another beginning: such a call does not extend the
   * other. Of the tools it shows only whether there are any; those the caller compares itself. The date is left out:
   * a conversation goes on over midnight, under the date that the engine saw.
   */
  async variablesKey(options: PromptOptions = {}): Promise<string> {
    const variables = this.#selectVariables(options)
    const { withTools, withoutTools } = await this.#getBeginnings(getKey(variables), variables)
    return options.tools ? withTools : withoutTools
  }

  #wordFinder(): Promise<WordFinder> {
    if (this.#words === undefined) {
      this.#words = this.#service.words().then((words) => new WordFinder(words))
      // A thread that was replaced is asked again.
      this.#words.catch(() => {
        this.#words = undefined
      })
    }
    return this.#words
  }

  #getBeginnings(key: string, variables: PromptOptions): Promise<Beginnings> {
    const known = this.#beginnings.get(key)
    if (known !== undefined) return known
    const found = this.#service.beginnings(variables)
    if (this.#beginnings.size >= MAX_KNOWN_VARIABLES) this.#beginnings.clear()
    this.#beginnings.set(key, found)
    found.catch(() => this.#beginnings.delete(key))
    return found
  }

  /** Whether this id ends a turn for the engine. */
  endsTurn(id: number | undefined): boolean {
    return this.#getCompletionEnd(id).endedItself
  }

  /** Those that can make a difference: a client may send what it likes. */
  #selectVariables({ kwargs, documents, now }: PromptOptions): PromptOptions {
    const given = typeof kwargs === 'string' ? (JSON.parse(kwargs) as object) : (kwargs ?? {})
    const mentioned = Object.entries(given).filter(([name]) => this.#source.includes(name))
    return {
      ...(mentioned.length > 0 && { kwargs: Object.fromEntries(mentioned) }),
      ...(documents && this.#source.includes('documents') && { documents }),
      ...(now && { now }),
    }
  }

  #getCompletionEnd(lastId: number | undefined): CompletionEnd {
    return { lastId, endedItself: lastId !== undefined && this.#eosTokenIds.has(lastId) }
  }
}

function getKey(variables: PromptOptions): string {
  return hash('sha256', JSON.stringify(variables), 'base64')
}

/** Where recorded ids end and new ones begin. */
interface JoinPoint {
  /** What the completion lacks: the end of what it was cut off in, and the end of turn. */
  glueIds: number[]
  /** The template's separator, the new messages and the generation prompt. */
  newIds: TokenIds
}

interface CompletionEnd {
  /** undefined if nothing was sampled. */
  lastId: number | undefined
  /** Whether that is an id that ends a turn for the engine, be it the template's or another one. */
  endedItself: boolean
}

/**
 * @param ids the token that ends a turn, where there is one, and the new part, tokenized as one text: they are what
 *   they are behind any past if they begin with a special token
 */
export function joinIds(
  ids: TokenIds,
  { endId, closingIds }: Omit<NewPart, 'text'>,
  completion: CompletionEnd,
  tokenizer: Tokenizer,
): JoinPoint | TemplateRejection {
  const first = ids[0]
  if (first === undefined || !tokenizer.isAdded(first)) return { refused: 'no_token_boundary' }
  if (endId === undefined) return joinAtOpening(ids, completion)
  const glueIds = findMissingIds(closingIds, completion)
  return first === endId ? { glueIds, newIds: ids.slice(1) } : { refused: 'no_token_boundary' }
}

/** A completion that ended itself is not ended again, whatever it ended with (Llama's `<|eom_id|>`). */
function findMissingIds(closingIds: readonly number[], { lastId, endedItself }: CompletionEnd): number[] {
  if (endedItself) return []
  const written = lastId === undefined ? -1 : closingIds.indexOf(lastId)
  return closingIds.slice(written + 1)
}

/** The completion may have opened the next message; one that opened another message cannot be gone on from. */
function joinAtOpening(ids: TokenIds, { lastId, endedItself }: CompletionEnd): JoinPoint | TemplateRejection {
  if (lastId === ids[0]) return { glueIds: [], newIds: ids.slice(1) }
  return endedItself ? { refused: 'other_message_opened' } : { glueIds: [], newIds: ids }
}
