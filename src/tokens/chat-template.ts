/**
 * A model's chat template: messages in, prompt text out, equal to `apply_chat_template` of transformers
 * (`transformers/utils/chat_template_utils.py`): the same variables, the same globals, the same white-space rules.
 */
import { join } from 'node:path'
import type { ChatMessage, Tool } from '../canonical/messages.ts'
import { ProxyError } from '../errors.ts'
import { JinjaTemplate } from './jinja.ts'
import { readModelFile, readModelJson } from './model-file.ts'
import { toTemplateMessages } from './template-messages.ts'
import { findTemplateNeeds, type TemplateNeeds } from './template-needs.ts'
import { type SpecialTokenConfig, specialTokenText, type TokenizerConfig } from './tokenizer.ts'

export interface RenderOptions {
  tools?: readonly Tool[] | null | undefined
  /** Ends the text where the assistant's turn begins. Default: true. */
  addGenerationPrompt?: boolean
  /** The request's `chat_template_kwargs`: more variables for the template, such as `enable_thinking`. */
  kwargs?: Readonly<Record<string, unknown>> | undefined
  documents?: readonly unknown[] | null | undefined
  /** What `strftime_now` sees. Default: the present. */
  now?: Date
}

/** A template's text, or several under names; `default` and, for requests with tools, `tool_use` are the ones used. */
export type ChatTemplateSource = string | { name: string; template: string }[]

interface KnownTemplate {
  jinja: JinjaTemplate
  needs: TemplateNeeds
}

export class ChatTemplate {
  readonly #plain: KnownTemplate
  readonly #withTools: KnownTemplate
  readonly #specialTokens: Readonly<Record<string, unknown>>

  /**
   * @param config its special tokens become variables: `bos_token`, `eos_token` …
   * @throws ProxyError `config_invalid` if the template is not valid Jinja
   */
  constructor(source: ChatTemplateSource, config: TokenizerConfig = {}) {
    const named = typeof source === 'string' ? [{ name: 'default', template: source }] : source
    this.#specialTokens = specialTokenVariables(config)
    const templates = new Map(named.map(({ name, template }) => [name, this.#read(template)]))
    const plain = templates.get('default') ?? templates.get('tool_use')
    if (plain === undefined)
      throw new ProxyError('config_invalid', 'the chat template has no entry named default')
    this.#plain = plain
    this.#withTools = templates.get('tool_use') ?? plain
  }

  /** The template's own text, the one for requests with tools where there are two. */
  get source(): string {
    return this.#withTools.jinja.source
  }

  /** False if a variable of this name cannot change what is rendered, because no template mentions it. */
  mentions(variable: string): boolean {
    return [this.#plain, this.#withTools].some(({ jinja }) => jinja.source.includes(variable))
  }

  /** @throws ProxyError `invalid_request` with the template's own words if it refuses these messages */
  render(messages: readonly ChatMessage[], options: RenderOptions = {}): string {
    const { jinja, needs } = options.tools ? this.#withTools : this.#plain
    const variables = {
      ...this.#specialTokens,
      ...options.kwargs,
      messages: toTemplateMessages(messages, needs),
      tools: options.tools ?? null,
      documents: options.documents ?? null,
      add_generation_prompt: options.addGenerationPrompt ?? true,
    }
    try {
      return jinja.render(variables, options.now ?? new Date())
    } catch (error) {
      const message = `the chat template refuses these messages: ${messageOf(error)}`
      const logMessage = 'the chat template refuses these messages'
      throw new ProxyError('invalid_request', message, { param: 'messages', logMessage })
    }
  }

  #read(source: string): KnownTemplate {
    try {
      const jinja = new JinjaTemplate(source)
      return { jinja, needs: findTemplateNeeds(jinja, this.#specialTokens) }
    } catch (error) {
      const message = `the chat template is not valid: ${messageOf(error)}`
      throw new ProxyError('config_invalid', message, { cause: error })
    }
  }
}

/**
 * Reads a model's template as transformers does: `chat_template.jinja`, else `chat_template.json`, else the
 * `chat_template` of `tokenizer_config.json`.
 * @returns undefined if the model has none
 * @throws ProxyError `config_invalid` if a file is broken
 */
export function loadChatTemplate(directory: string, config: TokenizerConfig): ChatTemplate | undefined {
  const source = readTemplateFile(directory) ?? config.chat_template
  return source === undefined ? undefined : new ChatTemplate(source, config)
}

function readTemplateFile(directory: string): ChatTemplateSource | undefined {
  return (
    readModelFile(join(directory, 'chat_template.jinja')) ??
    readModelJson<{ chat_template?: ChatTemplateSource }>(join(directory, 'chat_template.json'))
      ?.chat_template
  )
}

/** transformers' `special_tokens_map`: every `…_token` of the config that is set. */
function specialTokenVariables(config: TokenizerConfig): Record<string, unknown> {
  const variables: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(config)) {
    if (!/^(bos|eos|unk|sep|pad|cls|mask)_token$/.test(name)) continue
    const text = specialTokenText(value as SpecialTokenConfig)
    if (text !== undefined) variables[name] = text
  }
  return variables
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
