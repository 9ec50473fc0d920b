/**
 * Renders a model's chat template, which converts messages to prompt text, as transformers' `apply_chat_template` does.
 * It is rendered on the calling thread; see `prompt/` for the proxy's rendering thread.
 */
import { join } from 'node:path'
import { ProxyError } from '../../../base/errors.ts'
import type { ChatMessage, Tool } from '../../../protocol/canonical/messages.ts'
import { readModelFile, readModelJson } from '../tokenizer/model-file.ts'
import {
  getSpecialTokenText,
  type SpecialTokenConfig,
  type TokenizerConfig,
} from '../tokenizer/tokenizer-files.ts'
import { findEntryPoint, type PromptFormat, type PromptRoles } from './prompt-format.ts'
import type { PythonTemplate, PythonTemplates, RenderVariables } from './python/python-templates.ts'
import { PythonDamage } from './python/thread-jobs.ts'
import { isVerified, type Specialization, type TextPath, writesDate } from './specialization.ts'
import type { TemplateWords } from './template-words.ts'

/** A message, or its original JSON, which preserves numbers and the order of keys. */
export type MessageOrJson = ChatMessage | string

/** The variables of a template besides the messages. */
export interface RenderOptions {
  /** The tools, as a list or as its original JSON. */
  tools?: readonly Tool[] | string | null | undefined
  /** Whether the prompt ends with the template's beginning of an assistant message. Default: true. */
  addGenerationPrompt?: boolean
  /** Whether the prompt ends with the final message's text, so that the model continues it. Default: no. */
  continueFinalMessage?: boolean
  /** The request's `chat_template_kwargs`: additional variables for the template, such as `enable_thinking`. */
  kwargs?: Readonly<Record<string, unknown>> | string | undefined
  /** The documents, as values or as JSON. */
  documents?: readonly unknown[] | string | null | undefined
  /** The time for `strftime_now`. Default: the current time. */
  now?: Date
}

/** A template's text, or named templates: `default`, and `tool_use` for requests with tools. */
export type ChatTemplateSource = string | { name: string; template: string }[]

/** The contents of the model's files that define its template. */
export interface ChatTemplateFiles {
  /** The template for requests without tools. */
  plain: string
  /** The template for requests with tools. */
  withTools: string
  /** Variables for the template: `bos_token`, `eos_token` … */
  specialTokens: Readonly<Record<string, string>>
  /** The prompt format. Default: `template`. For `encoder`, both texts are the code of the model's prompt encoder. */
  format?: PromptFormat | undefined
}

/**
 * Reads a model's template as transformers does: `chat_template.jinja`, else `chat_template.json`, else the
 * `chat_template` of `tokenizer_config.json`.
 * @returns undefined if the model has none
 * @throws ProxyError `config_invalid` if a file is broken
 */
export function readChatTemplate(directory: string, config: TokenizerConfig): ChatTemplateFiles | undefined {
  const source = readTemplateFile(directory) ?? config.chat_template
  return source === undefined ? undefined : getChatTemplateFiles(source, config)
}

/**
 * Returns the templates and special tokens that a model's config declares.
 * @throws ProxyError `config_invalid` if the declared templates include neither `default` nor `tool_use`
 */
export function getChatTemplateFiles(
  source: ChatTemplateSource,
  config: TokenizerConfig = {},
): ChatTemplateFiles {
  const specialTokens = getSpecialTokenVariables(config)
  if (typeof source === 'string') return { plain: source, withTools: source, specialTokens }
  const named = new Map(source.map(({ name, template }) => [name, template]))
  const plain = named.get('default') ?? named.get('tool_use')
  if (plain === undefined)
    throw new ProxyError('config_invalid', 'the chat template has no entry named default')
  return { plain, withTools: named.get('tool_use') ?? plain, specialTokens }
}

/** Returns the code of a prompt encoder in place of a template. */
export function getEncoderFiles(source: string): ChatTemplateFiles {
  return { plain: source, withTools: source, specialTokens: {}, format: 'encoder' }
}

/** A model's compiled chat template, or a renderer in place of it. */
export class ChatTemplate {
  readonly #plain: PythonTemplate
  readonly #withTools: PythonTemplate
  /** The name of the template or encoder in error messages. */
  readonly #source: string
  /** Whether rendered texts consist of marked segments (`segments.ts`), as those of some prompt encoders do. */
  readonly hasSegments: boolean

  /** @throws ProxyError `config_invalid` if the template is not valid Jinja or the encoder is not valid Python */
  constructor(python: PythonTemplates, { plain, withTools, specialTokens, format }: ChatTemplateFiles) {
    this.hasSegments = format === 'encoder' && findEntryPoint(plain) === 'build_chat_segments'
    this.#source = format === 'encoder' ? "the model's prompt encoder" : 'the chat template'
    const open = (source: string) => {
      try {
        return format === 'encoder'
          ? python.openEncoder(source, findEntryPoint(source))
          : python.open(source, specialTokens)
      } catch (error) {
        const message = `${this.#source} is not valid: ${(error as Error).message}`
        throw new ProxyError('config_invalid', message, { cause: error })
      }
    }
    this.#plain = format === 'harmony' ? python.openHarmony() : open(plain)
    this.#withTools = plain === withTools || format === 'harmony' ? this.#plain : open(withTools)
  }

  /** Returns the form in which the template expects messages, as JSON; see `python/template_messages.py`. */
  getNeeds(withTools: boolean): string {
    return (withTools ? this.#withTools : this.#plain).needs
  }

  /** Returns the roles in which the template renders messages, as trial renderings have determined. */
  getRoles(): PromptRoles {
    const { takes_developer: takesDeveloper, takes_late_systems: takesLateSystems } = JSON.parse(
      this.getNeeds(false),
    ) as { takes_developer: boolean; takes_late_systems: boolean }
    return {
      developer: takesDeveloper ? 'developer' : 'system',
      later_system: takesLateSystems ? 'system' : 'user',
    }
  }

  /**
   * Returns the words that the templates with and without tools search for in messages; see
   * `python/template_words.py`.
   */
  getWords(): TemplateWords {
    const found = [this.#plain, this.#withTools].map(({ words }) => JSON.parse(words) as TemplateWords)
    return {
      inside: found.flatMap(({ inside }) => inside),
      whole: found.flatMap(({ whole }) => whole),
    }
  }

  /**
   * Renders a prompt.
   * @throws ProxyError `invalid_request` with the template's error message if it rejects these messages, `unsupported`
   *   for content that is not text; {@link PythonDamage}
   */
  render(messages: readonly MessageOrJson[], options: RenderOptions = {}): string {
    const outcome = this.#selectTemplate(options).render(
      toJsonList(messages),
      serializeTools(options),
      toVariables(options),
    )
    if ('text' in outcome) return outcome.text
    if ('damaged' in outcome) throw new PythonDamage(outcome.damaged)
    if ('refusal' in outcome) {
      const message = `${this.#source} rejects these messages: ${outcome.refusal}`
      const logMessage = `${this.#source} rejects these messages`
      throw new ProxyError('invalid_request', message, { param: 'messages', logMessage })
    }
    const { type, path } = outcome.unsupported
    const message =
      `content of type ${type} cannot be turned into tokens by the proxy; ` +
      'use chat mode with an engine that reads it, or send its text'
    throw new ProxyError('unsupported', message, { param: path })
  }

  /**
   * Specializes the template to the shape of these messages, and verifies the result on variants of them.
   * @param paths the paths of the contents
   * @returns undefined if the template cannot be specialized, or writes the date
   * @throws PythonDamage
   */
  specialize(
    messages: readonly MessageOrJson[],
    options: RenderOptions,
    paths: readonly TextPath[],
  ): Specialization | undefined {
    const found = this.#selectTemplate(options).specialize(
      toJsonList(messages),
      serializeTools(options),
      toVariables(options),
      JSON.stringify(paths),
    )
    if (found === undefined) return undefined
    if ('damaged' in found) throw new PythonDamage(found.damaged)
    if (writesDate(found)) return undefined
    const values = JSON.parse(toJsonList(messages)) as ChatMessage[]
    const sample = paths.map((path) => Reflect.get(getContainer(values, path), path.at(-1)!) as string)
    const render = (contents: readonly string[]) => {
      for (const [index, path] of paths.entries())
        Reflect.set(getContainer(values, path), path.at(-1)!, contents[index])
      return this.tryRender(values, options)
    }
    return isVerified(found, sample, render) ? found : undefined
  }

  /** Renders a prompt. Returns undefined if the template rejects the messages. @throws PythonDamage */
  tryRender(messages: readonly MessageOrJson[], options: RenderOptions): string | undefined {
    try {
      return this.render(messages, options)
    } catch (error) {
      if (error instanceof ProxyError) return undefined
      throw error
    }
  }

  #selectTemplate({ tools }: RenderOptions): PythonTemplate {
    return tools ? this.#withTools : this.#plain
  }
}

/** Returns the object or list that contains the text at a path. */
function getContainer(messages: readonly ChatMessage[], path: TextPath): object {
  return path.slice(0, -1).reduce<object>((value, step) => Reflect.get(value, step) as object, messages)
}

function serializeTools({ tools }: RenderOptions): string {
  return typeof tools === 'string' ? tools : JSON.stringify(tools ?? null)
}

function toVariables(options: RenderOptions): RenderVariables {
  const { kwargs, documents, now, addGenerationPrompt = true, continueFinalMessage } = options
  return {
    add_generation_prompt: addGenerationPrompt,
    ...(continueFinalMessage && { continue_final_message: true }),
    kwargs,
    documents,
    ...(now && { now_s: now.getTime() / 1000 }),
  }
}

function toJsonList(messages: readonly MessageOrJson[]): string {
  return `[${messages.map(toJson).join(',')}]`
}

export function toJson(message: MessageOrJson): string {
  return typeof message === 'string' ? message : JSON.stringify(message)
}

function readTemplateFile(directory: string): ChatTemplateSource | undefined {
  return (
    readModelFile(join(directory, 'chat_template.jinja')) ??
    readModelJson<{ chat_template?: ChatTemplateSource }>(join(directory, 'chat_template.json'))
      ?.chat_template
  )
}

/** Returns transformers' `special_tokens_map`: every `…_token` of the config that is set. */
function getSpecialTokenVariables(config: TokenizerConfig): Record<string, string> {
  const variables: Record<string, string> = {}
  for (const [name, value] of Object.entries(config)) {
    if (!/^(bos|eos|unk|sep|pad|cls|mask)_token$/.test(name)) continue
    const text = getSpecialTokenText(value as SpecialTokenConfig)
    if (text !== undefined) variables[name] = text
  }
  return variables
}
