/**
 * Finds the boundaries that a template writes: the token that ends a turn, the bridge between a completion and the next
 * message, the end of reasoning, and the beginning of prompts. It renders conversations of sentinels, so that no
 * content is mistaken for the template's text.
 */
import { hash } from 'node:crypto'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { ChatTemplate, RenderOptions } from '../templates/chat-template.ts'
import { PromptAddedTokenFinder } from '../tokenizer/segments.ts'
import { type BoundaryTokens, type Bridge, type EndOfTurn, findBridge, findEndOfTurn } from './bridge.ts'
import { createSentinel, getTextBeforeSentinel, splitAfterSentinels } from './sentinels.ts'
import {
  CONTENT_ECHO,
  createDummyHistories,
  createFollowingMessages,
  createSentinelEcho,
  FIRST_SENTINEL,
  listEchoForms,
  SENTINEL_TOOLS,
  type TemplateSignature,
} from './template-signature.ts'

/** The options of a prompt, except those that determine how it ends. */
export type PromptOptions = Omit<RenderOptions, 'addGenerationPrompt' | 'continueFinalMessage'>

/**
 * Digests of the beginnings of prompts without and with tools, which do not depend on the date or tool definitions, and
 * the end of reasoning.
 */
export interface Beginnings {
  withoutTools: string
  withTools: string
  /** The text that the template writes between reasoning and content; undefined if it does not render both. */
  endOfReasoning: string | undefined
}

/**
 * The maximum number of cached ends of turns. Evicted ones are computed again; the limit protects the memory from a
 * client that sends other variables with each request.
 */
const MAX_KNOWN_ENDS = 4096
/** Longer variables are replaced by their digest. */
const MAX_KEY_CHARS = 256

/** The boundaries of a template, which are found by rendering sentinels, with a cache of the ends of turns. */
export class TemplateBoundaries {
  readonly #template: ChatTemplate
  readonly #finder: PromptAddedTokenFinder
  readonly #eosIds: ReadonlySet<number>
  readonly #ends = new Map<string, EndOfTurn | undefined>()

  constructor(template: ChatTemplate, { ids, eosIds }: BoundaryTokens) {
    this.#template = template
    this.#finder = new PromptAddedTokenFinder(ids, template.hasSegments)
    this.#eosIds = eosIds
  }

  /**
   * Returns digests of the beginnings of prompts, and the end of reasoning.
   * @param options tools and date are ignored
   */
  getBeginnings(options: PromptOptions): Beginnings {
    const fixed = { ...options, now: new Date(0), addGenerationPrompt: false }
    const user: ChatMessage = { role: 'user', content: 'next' }
    const digest = (tools: PromptOptions['tools']) => {
      const texts = [[user], [{ role: 'system' as const, content: 'rule' }, user]].map((messages) =>
        this.#template.tryRender(messages, { ...fixed, tools }),
      )
      return hash('sha256', JSON.stringify(texts), 'base64')
    }
    const endOfReasoning = this.#findEndOfReasoning(fixed)
    return { withoutTools: digest(null), withTools: digest(BEGINNING_TOOLS), endOfReasoning }
  }

  /** Renders reasoning in the last message, because many templates omit the reasoning of earlier ones. */
  #findEndOfReasoning(options: RenderOptions): string | undefined {
    const { message, sentinels } = createSentinelEcho({ ...CONTENT_ECHO, reasons: true })
    const [contentSentinel, , reasoning] = sentinels
    const user: ChatMessage = { role: 'user', content: createSentinel('message', FIRST_SENTINEL) }
    const text = this.#template.tryRender([user, message], options) ?? ''
    const from = text.indexOf(reasoning!)
    const to = text.indexOf(contentSentinel!, from)
    return from === -1 || to === -1 ? undefined : text.slice(from + reasoning!.length, to)
  }

  /** Returns the token that ends an assistant message with content; undefined if the template writes none. */
  getEndOfTurn(options: PromptOptions): EndOfTurn | undefined {
    const key = getVariablesKey(options)
    if (this.#ends.has(key)) return this.#ends.get(key)
    const user: ChatMessage = { role: 'user', content: createSentinel('message', FIRST_SENTINEL) }
    const { message, sentinels } = createSentinelEcho(CONTENT_ECHO)
    const followers: ChatMessage[][] = [[user], []]
    const endWith = (tools: PromptOptions['tools']) => {
      const toolOptions = { ...options, tools }
      const texts = followers.flatMap((follower) => {
        const text = this.#template.tryRender([user, message, ...follower], toolOptions)
        const cut = splitAfterSentinels(text, sentinels)
        // Hunyuan's template writes nothing after an assistant message that is the last one.
        return cut === undefined || cut.rest === '' ? [] : [getTextBeforeSentinel(cut.rest)]
      })
      return findEndOfTurn(texts, this.#renderGenerationPrompt(user, toolOptions), this.#finder, this.#eosIds)
    }
    // Some templates reject or omit messages if there are no tools.
    const end = endWith(null) ?? endWith(SENTINEL_TOOLS)
    if (this.#ends.size >= MAX_KNOWN_ENDS) this.#ends.clear()
    this.#ends.set(key, end)
    return end
  }

  #renderGenerationPrompt(user: ChatMessage, options: PromptOptions): string {
    const without = this.#template.tryRender([user], { ...options, addGenerationPrompt: false })
    const full = this.#template.tryRender([user], options)
    return without !== undefined && full?.startsWith(without) ? full.slice(without.length) : ''
  }

  /**
   * Returns the bridge after the echo of conversations with this signature; undefined if no dummy history shows one.
   */
  getBridge(signature: TemplateSignature, end: EndOfTurn, options: PromptOptions): Bridge | undefined {
    const toolOptions = { ...options, tools: signature.withTools ? SENTINEL_TOOLS : null }
    return createDummyHistories(signature)
      .map((past) => this.#findBridgeAfter(past, signature, end, toolOptions))
      .find((bridge) => bridge !== undefined)
  }

  #findBridgeAfter(
    past: readonly ChatMessage[],
    signature: TemplateSignature,
    end: EndOfTurn,
    options: PromptOptions,
  ): Bridge | undefined {
    const following = createFollowingMessages(signature)
    for (const echo of listEchoForms(signature.echo)) {
      const { message, sentinels } = createSentinelEcho(echo)
      const text = this.#template.tryRender([...past, message, ...following], options)
      const followed = splitAfterSentinels(text, sentinels)
      if (followed === undefined) continue
      const alone = this.#template.tryRender([...past, message], { ...options, addGenerationPrompt: false })
      const tail = splitAfterSentinels(alone, sentinels)?.rest ?? ''
      return findBridge(getTextBeforeSentinel(followed.rest), tail, end, this.#finder, this.#eosIds)
    }
    return undefined
  }
}

const BEGINNING_TOOLS = [
  {
    type: 'function' as const,
    function: { name: 'first_tool', parameters: { type: 'object', properties: {} } },
  },
]

/** Returns a key of the options that change a template's markup. */
export function getVariablesKey({ kwargs, documents, tools }: PromptOptions): string {
  const json = JSON.stringify([kwargs, documents, tools ? true : null])
  return json.length <= MAX_KEY_CHARS ? json : hash('sha256', json, 'base64')
}
