/**
 * Converts conversations to prompts of token ids: a complete one once, then only the part that each request adds.
 * Recorded ids of a prompt are never tokenized again, so they stay those that the engine received, and the cost of a
 * turn does not grow with the conversation. If the new part cannot be rendered alone, the renderer rejects it, and the
 * caller renders the complete prompt.
 */
import { hash } from 'node:crypto'
import type { Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { TokenIds } from '../../../protocol/token-ids/token-ids.ts'
import type { CutOffState } from '../parsers/unfinished.ts'
import type { MessageOrJson, RenderOptions } from '../templates/chat-template.ts'
import { getMessageText, WordFinder } from '../templates/template-words.ts'
import { removeMarks } from '../tokenizer/segments.ts'
import type { Tokenizer } from '../tokenizer/tokenizer.ts'
import type { NewPart, NewPartReply, NewPartRequest } from './prompt-engine.ts'
import type { PromptService } from './prompt-service.ts'
import type { Beginnings, PromptOptions } from './template-boundaries.ts'
import type { TemplateRejection } from './template-rejection.ts'
import { createTemplateSignature } from './template-signature.ts'

export type { PromptOptions } from './template-boundaries.ts'

export interface PromptRendererOptions {
  /** The template's text: variables that it does not mention have no effect. */
  source: string
  /** The ids that end a turn for the engine. */
  eosTokenIds?: readonly number[]
  /** Encodes a text. Default: synchronously. A `TextEncoder` keeps long texts off the event loop. */
  encode?: (text: string) => TokenIds | Promise<TokenIds>
  /** Whether rendered texts are marked segments, which `encode` reads; see `segments.ts`. Default: no. */
  hasSegments?: boolean
}

export interface RenderedPrompt {
  text: string
  ids: TokenIds
}

/** A conversation, split after the assistant message that echoes a completion. */
export interface ContinuationRequest {
  /** The messages up to the echo, which is the last one. */
  history: readonly ChatMessage[]
  newMessages: readonly ChatMessage[]
  /** The original JSON of each message, the new ones last. */
  texts?: readonly string[] | undefined
  /** All messages in their session's conversation, to which cached data is attached. */
  known?: readonly Message[] | undefined
  /** The last sampled id; undefined if none was sampled. */
  lastCompletionId: number | undefined
  /** The open block of a truncated completion. */
  unfinished?: CutOffState | undefined
}

/**
 * The continuation of a turn: its prompt and completion without the replaced end, then `bridgeIds`, then `newIds`, form
 * the new prompt.
 */
export interface Continuation extends JoinPoint {
  /** The text after the completion's end of turn. */
  text: string
}

/** The cache size: a client that keeps changing its variables must not fill the memory. */
const MAX_KNOWN_VARIABLES = 64

export class PromptRenderer {
  readonly #service: PromptService
  readonly #tokenizer: Tokenizer
  /** The template's text. */
  readonly source: string
  readonly #eosTokenIds: ReadonlySet<number>
  readonly #encode: (text: string) => TokenIds | Promise<TokenIds>
  /** Whether special tokens in messages stay text. */
  readonly hasSegments: boolean
  readonly #beginnings = new Map<string, Promise<Beginnings>>()
  #words: Promise<WordFinder> | undefined

  constructor(service: PromptService, tokenizer: Tokenizer, options: PromptRendererOptions) {
    this.#service = service
    this.#tokenizer = tokenizer
    this.source = options.source
    this.#encode = options.encode ?? ((text) => tokenizer.encode(text))
    this.hasSegments = options.hasSegments ?? false
    const eosTokenIds = [tokenizer.eosTokenId, ...(options.eosTokenIds ?? [])]
    this.#eosTokenIds = new Set(eosTokenIds.filter((id) => id !== undefined))
  }

  /**
   * Renders and tokenizes a complete prompt.
   * @param texts the original JSON of each message, if available
   * @throws ProxyError `invalid_request` if the template rejects these messages, `unsupported` for content that is not
   *   text
   */
  async renderFull(
    messages: readonly ChatMessage[],
    options: RenderOptions = {},
    texts?: readonly string[],
  ): Promise<RenderedPrompt> {
    const text = await this.#service.render(texts ?? messages, options)
    return { text: this.#toText(text), ids: await this.#encode(text) }
  }

  /**
   * Renders the part that new messages add. The cost depends on the new messages, or on the complete conversation if
   * its signature must be verified or it contains a word that the template searches for.
   */
  async renderContinuation(
    request: ContinuationRequest,
    options: PromptOptions = {},
  ): Promise<Continuation | TemplateRejection> {
    const { history, newMessages, texts, known } = request
    const all: readonly MessageOrJson[] = texts ?? [...history, ...newMessages]
    const words = await this.#wordFinder()
    const hasWords = history.some((message, index) => words.isIn(message, known?.[index]))
    const partRequest: NewPartRequest = {
      situation: {
        ...createTemplateSignature(history, newMessages, Boolean(options.tools)),
        ...(hasWords && { hasWords }),
      },
      newMessages: all.slice(history.length),
    }
    const short = this.#selectVariables(options)
    let part: NewPartReply = 'needs_history'
    if (!hasWords)
      part = await this.#service.newPart(partRequest, { ...short, tools: options.tools ? [] : null })
    if (part === 'needs_history') {
      const echo = history.at(-1)!
      const echoText = words.isIn(echo) ? getMessageText(echo) : undefined
      const full = { ...partRequest, history: all.slice(0, history.length - 1), echoText }
      part = await this.#service.newPart(full, { ...short, tools: options.tools })
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
    return { ...joined, bridgeIds: [...finished, ...joined.bridgeIds], text: this.#toText(part.text) }
  }

  #toText(rendered: string): string {
    return this.hasSegments ? removeMarks(rendered) : rendered
  }

  /** Returns the tokens that end a truncated completion's open block, as the template ends it. */
  async #finish(unfinished: CutOffState | undefined, variables: PromptOptions): Promise<TokenIds> {
    if (unfinished === undefined) return []
    const { header, reasoningClose, endsLine } = unfinished
    if (reasoningClose === undefined) return header === '' ? [] : await this.#encode(header)
    const { endOfReasoning = reasoningClose } = await this.#getBeginnings(getKey(variables), variables)
    // If the template ends reasoning differently than the parser expects, the parser's marker is used.
    const end = this.#toText(endOfReasoning).includes(reasoningClose) ? endOfReasoning : reasoningClose
    return await this.#encode(header + (endsLine ? end.replace(/^\n+/, '') : end))
  }

  /**
   * Returns a key of the variables that change the beginning of a prompt: a request with another key does not extend
   * the conversation. The key shows only whether there are tools, which the caller compares itself. It excludes the
   * date: a conversation continues over midnight, with the date that the engine received.
   */
  async getVariablesKey(options: PromptOptions = {}): Promise<string> {
    const variables = this.#selectVariables(options)
    const { withTools, withoutTools } = await this.#getBeginnings(getKey(variables), variables)
    return options.tools ? withTools : withoutTools
  }

  #wordFinder(): Promise<WordFinder> {
    if (this.#words === undefined) {
      this.#words = this.#service.words().then((words) => new WordFinder(words))
      // After a failure, the next request queries the thread's replacement.
      this.#words.catch(() => {
        this.#words = undefined
      })
    }
    return this.#words
  }

  #getBeginnings(key: string, variables: PromptOptions): Promise<Beginnings> {
    const existing = this.#beginnings.get(key)
    if (existing !== undefined) return existing
    const found = this.#service.beginnings(variables)
    if (this.#beginnings.size >= MAX_KNOWN_VARIABLES) this.#beginnings.clear()
    this.#beginnings.set(key, found)
    found.catch(() => this.#beginnings.delete(key))
    return found
  }

  /** Returns whether this id ends a turn for the engine. */
  endsTurn(id: number | undefined): boolean {
    return this.#getCompletionEnd(id).endedItself
  }

  /** Returns the variables that the template may use, because clients may send any others. */
  #selectVariables({ kwargs, documents, now }: PromptOptions): PromptOptions {
    const templateKwargs = typeof kwargs === 'string' ? (JSON.parse(kwargs) as object) : (kwargs ?? {})
    const mentioned = Object.entries(templateKwargs).filter(([name]) => this.source.includes(name))
    return {
      ...(mentioned.length > 0 && { kwargs: Object.fromEntries(mentioned) }),
      ...(documents && this.source.includes('documents') && { documents }),
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

/** The ids between recorded ids and the completion to come. */
interface JoinPoint {
  /** The number of sampled tokens at the completion's end that the new part replaces. */
  replacedTokens: number
  /** The ids that the completion lacks: the end of a truncated block, and the end of turn. */
  bridgeIds: number[]
  /** The ids of the template's separator, the new messages and the generation prompt. */
  newIds: TokenIds
}

interface CompletionEnd {
  /** The last sampled id; undefined if nothing was sampled. */
  lastId: number | undefined
  /** Whether that id ends a turn for the engine, even if the template uses another one. */
  endedItself: boolean
}

/**
 * Splits new ids into those that the completion lacks and the new part.
 * @param ids the token that ends a turn, if there is one, and the new part, tokenized as one text: the ids do not
 *   depend on the history if the first is a special token
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
  const bridgeIds = findMissingIds(closingIds, completion)
  if (first !== endId) return { refused: 'no_token_boundary' }
  return { replacedTokens: 0, bridgeIds, newIds: ids.slice(1) }
}

/**
 * Returns the missing end of turn. A completion that the model ended is not ended again, even if it ended with another
 * token (Llama's `<|eom_id|>`).
 */
function findMissingIds(closingIds: readonly number[], { lastId, endedItself }: CompletionEnd): number[] {
  if (endedItself) return []
  const written = lastId === undefined ? -1 : closingIds.indexOf(lastId)
  return closingIds.slice(written + 1)
}

/**
 * Joins a completion that may have opened the next message. If it ended with another token (GLM: `<|user|>` before the
 * result of a tool call), the one that opens the next message replaces that token, as the template renders it.
 */
function joinAtOpening(ids: TokenIds, { lastId, endedItself }: CompletionEnd): JoinPoint {
  if (lastId === ids[0]) return { replacedTokens: 0, bridgeIds: [], newIds: ids.slice(1) }
  return { replacedTokens: Number(endedItself), bridgeIds: [], newIds: ids }
}
