/**
 * Simulates the agent and the model of a conversation on recorded ids, and compares each prompt with the full
 * render.
 */
import assert from 'node:assert/strict'
import { ProxyError } from '../../../../src/base/errors.ts'
import type { ChatMessage } from '../../../../src/protocol/canonical/messages.ts'
import type { PromptOptions, PromptRenderer } from '../../../../src/proxy/tokens/prompt/prompt-renderer.ts'
import type { ChatTemplate, RenderOptions } from '../../../../src/proxy/tokens/templates/chat-template.ts'
import { loadTokenizer, type Tokenizer } from '../../../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { createRenderer, loadTemplate } from '../../../helpers/templates.ts'
import type { Conversation, Step } from './prompt-conversations.ts'
import { modelDirectory } from './real-models.ts'

export interface Model {
  template: ChatTemplate
  /** The template's text. */
  source: string
  tokenizer: Tokenizer
  renderer: PromptRenderer
  /** The tokens that end a turn. */
  end: { text: string; id: number }
}

/** The end of a turn, for models whose EOS token is another one. */
const ENDS: Record<string, string> = { gemma3: '<end_of_turn>' }

const EMBEDDED = new URL('../../../../src/embedded/model', import.meta.url).pathname

/** @param name one of the real models, or `embedded` */
export function loadModel(name: string): Model {
  const directory = name === 'embedded' ? EMBEDDED : modelDirectory(name)
  const { template, source } = loadTemplate(directory)
  const tokenizer = loadTokenizer(directory)
  const text = ENDS[name] ?? tokenizer.idToToken(tokenizer.eosTokenId!)!
  const id = tokenizer.tokenToId(text)!
  const renderer = createRenderer(template, tokenizer, { source, eosTokenIds: [id] })
  return { template, source, tokenizer, renderer, end: { text, id } }
}

export class Rollout {
  /** The number of prompts that were completely equal to the full render. */
  equalPrompts = 0
  readonly #model: Model
  readonly #options: PromptOptions
  readonly #style: Conversation['style']
  #messages: ChatMessage[]
  #ids: number[] = []
  #text = ''
  /** Whether the ids equal those of the tokenizer for the text; a model may sample others. */
  #canonical = true

  constructor(model: Model, { opening, tools, style }: Conversation) {
    this.#model = model
    this.#options = { tools, now: new Date(2026, 2, 7) }
    this.#style = style
    this.#messages = opening
  }

  async play(steps: Step[]): Promise<this> {
    const first = await this.#model.renderer.renderFull(this.#messages, this.#options)
    this.#ids = [...first.ids]
    this.#text = first.text
    for (const step of steps) {
      const lastCompletionId = this.#sample(step)
      const newIds = await this.#appendNewMessages(step, lastCompletionId)
      this.#compareWithFullRender(newIds)
    }
    return this
  }

  get #end() {
    return this.#model.end
  }

  /**
   * Appends a completion to the prompt.
   * @returns its last id
   */
  #sample({ completion, ended }: Step): number | undefined {
    const { tokenizer } = this.#model
    const promptIds = this.#ids
    const text = this.#writeLikeTemplate(completion) ?? writeLikeModel(completion)
    const encodedTogether = tokenizer.encode(this.#text + text + this.#end.text)
    this.#canonical &&= promptIds.every((id, index) => id === encodedTogether[index])
    const ids = this.#canonical ? encodedTogether : [...promptIds, ...tokenizer.encode(text + this.#end.text)]
    this.#ids = ended ? ids : ids.slice(0, -1)
    this.#text += ended ? text + this.#end.text : text
    return this.#ids.slice(promptIds.length).at(-1)
  }

  async #appendNewMessages(
    { completion, ended, next }: Step,
    lastCompletionId: number | undefined,
  ): Promise<number[]> {
    const { renderer } = this.#model
    const request = { history: [...this.#messages, completion], newMessages: next, lastCompletionId }
    const added = await renderer.renderContinuation(request, this.#options)
    if ('refused' in added) throw new Error(added.refused)
    assert.deepEqual(added.bridgeIds, ended ? [] : [this.#end.id])
    this.#messages = [...request.history, ...next]
    this.#ids = [...this.#ids, ...added.bridgeIds, ...added.newIds]
    this.#text += (ended ? '' : this.#end.text) + added.text
    return [...added.newIds]
  }

  #compareWithFullRender(newIds: number[]): void {
    const text = tryRender(this.#model.template, this.#messages, this.#options)
    if (text === undefined) return
    const ids = this.#model.tokenizer.encode(text)
    assert.deepEqual(newIds, ids.slice(ids.length - newIds.length))
    if (text !== this.#text || !this.#canonical) return
    assert.deepEqual(this.#ids, ids)
    this.equalPrompts++
  }

  #writeLikeTemplate(completion: ChatMessage): string | undefined {
    if (this.#style === 'freely') return undefined
    const { template } = this.#model
    const prompt = tryRender(template, this.#messages, this.#options)
    const options = { ...this.#options, addGenerationPrompt: false }
    const rendered = tryRender(template, [...this.#messages, completion], options)
    if (prompt === undefined || !rendered?.startsWith(prompt)) return undefined
    const endIndex = rendered.indexOf(this.#end.text, prompt.length)
    return endIndex === -1 ? undefined : rendered.slice(prompt.length, endIndex)
  }
}

/** Writes a completion with white space that differs from the template's. */
function writeLikeModel({ content, reasoning_content, ...message }: ChatMessage): string {
  const calls = 'tool_calls' in message ? (message.tool_calls ?? []) : []
  return ` ${reasoning_content ?? ''}\n${content ?? ''}${JSON.stringify(calls, null, 1)}  `
}

/** Returns undefined if the template rejects these messages. */
export function tryRender(
  template: ChatTemplate,
  messages: readonly ChatMessage[],
  options: RenderOptions,
): string | undefined {
  try {
    return template.render(messages, options)
  } catch (error) {
    if (error instanceof ProxyError) return undefined
    throw error
  }
}
