/**
 * Converts conversations to prompts of token ids: a complete prompt for the first turn, then only the part that each
 * request adds. Recorded ids are never tokenized again, so they stay those that the engine received, and the cost of a
 * turn does not grow with the conversation. If the new part cannot be rendered alone, the renderer rejects it, and the
 * caller renders the complete prompt.
 */
import { hash } from 'node:crypto'
import type { Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { TokenIds } from '../../../protocol/token-ids/token-ids.ts'
import type { TruncationState } from '../parsers/unfinished.ts'
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

/** The properties of a model on which its renderer depends. */
export interface PromptRendererOptions {
  /** A text that mentions all variables of the template. Others have no effect and are ignored. */
  source: string
  /** The ids that end a turn for the engine. */
  eosTokenIds?: readonly number[]
  /** Encodes a text. Default: the tokenizer, which blocks the event loop. */
  encode?: (text: string) => TokenIds | Promise<TokenIds>
  /** Whether rendered texts consist of marked segments, which `encode` must support; see `segments.ts`. Default: no. */
  hasSegments?: boolean
}

/** A complete prompt as text and ids. */
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
  /** The same messages in their session's conversation, to which cached data is attached. */
  known?: readonly Message[] | undefined
  /** The last sampled id; undefined if none was sampled. */
  lastCompletionId: number | undefined
  /** The open block of a truncated completion. */
  unfinished?: TruncationState | undefined
}

/**
 * The continuation of a turn. The new prompt consists of the turn's prompt and completion without the replaced tokens,
 * `bridgeIds`, and `newIds`.
 */
export interface Continuation extends ContinuationIds {
  /** The text after the completion's end of turn. */
  text: string
}

/**
 * The maximum number of cached beginnings of prompts. It protects the memory from a client that sends other variables
 * with each request.
 */
const MAX_KNOWN_VARIABLES = 64

/** A renderer and tokenizer of a model's prompts. */
export class PromptRenderer {
  readonly #service: PromptService
  readonly #tokenizer: Tokenizer
  /** See {@link PromptRendererOptions.source}. */
  readonly source: string
  readonly #eosTokenIds: ReadonlySet<number>
  readonly #encode: (text: string) => TokenIds | Promise<TokenIds>
  /** Whether prompts consist of segments, so that special tokens in messages are text. */
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
   * Renders and tokenizes the part that new messages add. The cost depends only on the new messages, unless the
   * signature of the conversation must be verified, or the conversation contains a word that the template searches for.
   */
  async renderContinuation(
    request: ContinuationRequest,
    options: PromptOptions = {},
  ): Promise<Continuation | TemplateRejection> {
    const { history, newMessages, texts, known } = request
    const all: readonly MessageOrJson[] = texts ?? [...history, ...newMessages]
    const words = await this.#getWordFinder()
    const hasWords = history.some((message, index) => words.isIn(message, known?.[index]))
    const partRequest: NewPartRequest = {
      situation: {
        ...createTemplateSignature(history, newMessages, Boolean(options.tools)),
        ...(hasWords && { hasWords }),
      },
      newMessages: all.slice(history.length),
    }
    const variables = this.#selectVariables(options)
    let part: NewPartReply = 'needs_history'
    if (!hasWords)
      part = await this.#service.renderNewPart(partRequest, {
        ...variables,
        tools: options.tools ? [] : null,
      })
    if (part === 'needs_history') {
      const echo = history.at(-1)!
      const echoText = words.isIn(echo) ? getMessageText(echo) : undefined
      const full = { ...partRequest, history: all.slice(0, history.length - 1), echoText }
      part = await this.#service.renderNewPart(full, { ...variables, tools: options.tools })
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
    const finished = await this.#completeBlock(request.unfinished, variables)
    return { ...joined, bridgeIds: [...finished, ...joined.bridgeIds], text: this.#toText(part.text) }
  }

  #toText(rendered: string): string {
    return this.hasSegments ? removeMarks(rendered) : rendered
  }

  /** Returns the ids that end the open block of a truncated completion, with the template's own text if possible. */
  async #completeBlock(unfinished: TruncationState | undefined, variables: PromptOptions): Promise<TokenIds> {
    if (unfinished === undefined) return []
    const { header, reasoningClose, endsLine } = unfinished
    if (reasoningClose === undefined) return header === '' ? [] : await this.#encode(header)
    const { endOfReasoning = reasoningClose } = await this.#getBeginnings(getKey(variables), variables)
    // The parser's marker is used if the template ends reasoning with other markup.
    const end = this.#toText(endOfReasoning).includes(reasoningClose) ? endOfReasoning : reasoningClose
    return await this.#encode(header + (endsLine ? end.replace(/^\n+/, '') : end))
  }

  /**
   * Returns a key of the variables that change the beginning of a prompt. A request with another key does not extend
   * the conversation. The key depends on whether there are tools, but not on their definitions, which the caller
   * compares. It does not depend on the date, so that a conversation can continue after midnight with the date that the
   * engine received.
   */
  async getVariablesKey(options: PromptOptions = {}): Promise<string> {
    const variables = this.#selectVariables(options)
    const { withTools, withoutTools } = await this.#getBeginnings(getKey(variables), variables)
    return options.tools ? withTools : withoutTools
  }

  #getWordFinder(): Promise<WordFinder> {
    if (this.#words === undefined) {
      this.#words = this.#service.getWords().then((words) => new WordFinder(words))
      // After a failure, the next request tries again, because the thread has been replaced.
      this.#words.catch(() => {
        this.#words = undefined
      })
    }
    return this.#words
  }

  #getBeginnings(key: string, variables: PromptOptions): Promise<Beginnings> {
    const existing = this.#beginnings.get(key)
    if (existing !== undefined) return existing
    const found = this.#service.getBeginnings(variables)
    if (this.#beginnings.size >= MAX_KNOWN_VARIABLES) this.#beginnings.clear()
    this.#beginnings.set(key, found)
    found.catch(() => this.#beginnings.delete(key))
    return found
  }

  /** Returns whether the engine ends a completion at this id. */
  endsTurn(id: number | undefined): boolean {
    return this.#getCompletionEnd(id).endedItself
  }

  /** Returns only the variables that the template mentions, because clients may send any number of others. */
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

/** The ids that continue a completion up to the next one, and the number of sampled tokens that they replace. */
interface ContinuationIds {
  /** The number of sampled tokens at the completion's end that the new part replaces. */
  replacedTokens: number
  /** The ids that complete a truncated completion: the end of an open block, and the end of turn. */
  bridgeIds: number[]
  /** The ids of the template's separator, the new messages and the generation prompt. */
  newIds: TokenIds
}

/** How a completion ended. */
interface CompletionEnd {
  /** The last sampled id; undefined if nothing was sampled. */
  lastId: number | undefined
  /** Whether the model ended the completion with this id, even if the template ends turns with another one. */
  endedItself: boolean
}

/**
 * Joins the ids of a new part to a completion.
 * @param ids the token that ends the turn, if there is one, and the new part, tokenized as one text. Its first token
 *   must be an added token: then the ids do not depend on the text before it
 */
export function joinIds(
  ids: TokenIds,
  { endId, closingIds }: Omit<NewPart, 'text'>,
  completion: CompletionEnd,
  tokenizer: Tokenizer,
): ContinuationIds | TemplateRejection {
  const first = ids[0]
  if (first === undefined || !tokenizer.isAdded(first)) return { refused: 'no_token_boundary' }
  if (endId === undefined) return joinAtOpening(ids, completion)
  const bridgeIds = findMissingIds(closingIds, completion)
  if (first !== endId) return { refused: 'no_token_boundary' }
  return { replacedTokens: 0, bridgeIds, newIds: ids.slice(1) }
}

/**
 * Returns the ids of the bridge that are missing at the end of a completion. If the model ended the
 * completion, no ids are missing, even if it used another token than the template (Llama's `<|eom_id|>`).
 */
function findMissingIds(closingIds: readonly number[], { lastId, endedItself }: CompletionEnd): number[] {
  if (endedItself) return []
  const written = lastId === undefined ? -1 : closingIds.indexOf(lastId)
  return closingIds.slice(written + 1)
}

/**
 * Joins the new part if the token that opens the next message ends turns. If the completion ended with another such
 * token (GLM: `<|user|>` before the result of a tool call), the new part replaces it, as in the text that the template
 * renders.
 */
function joinAtOpening(ids: TokenIds, { lastId, endedItself }: CompletionEnd): ContinuationIds {
  if (lastId === ids[0]) return { replacedTokens: 0, bridgeIds: [], newIds: ids.slice(1) }
  return { replacedTokens: Number(endedItself), bridgeIds: [], newIds: ids }
}
