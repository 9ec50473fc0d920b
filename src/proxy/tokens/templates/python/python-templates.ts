/** Chat templates, compiled and rendered by Jinja2 on CPython, in the thread that this is called on. */
import type { PyProxy } from 'pyodide/ffi'
import { bootPython } from './boot.ts'

/** What the template is given besides messages and tools, as Python reads it. */
interface RenderVariables {
  add_generation_prompt: boolean
  /** Cuts the text behind the final message's. Default: no. */
  continue_final_message?: boolean
  /** As values or as JSON; so are the documents. */
  kwargs?: Readonly<Record<string, unknown>> | string | undefined
  documents?: readonly unknown[] | string | null | undefined
  /** What `strftime_now` sees, in seconds since 1970. Absent: the present. */
  now_s?: number
}

type RenderOutcome =
  | { text: string }
  /** In the template's own words. */
  | { refusal: string }
  /** A part of a message's content that is no text, and where it is. */
  | { unsupported: { type: string; path: string } }
  /** The template needed more memory than there may be; this Python should not be used any more. */
  | { exhausted: true }

export interface PythonTemplate {
  /** What it was found to take, as JSON; see `template_messages.py`. */
  readonly needs: string
  /** What it looks for in texts, as JSON; see `template_words.py`. */
  readonly words: string
  /** @param messages JSON of the list @param tools JSON of the list, or `null` */
  render(messages: string, tools: string, variables: RenderVariables): RenderOutcome
}

interface ChatTemplatesModule extends PyProxy {
  open_template(source: string, specialTokens: string): PyProxy
  open_harmony(): PyProxy
  needs_of(template: PyProxy): string
  words_of(template: PyProxy): string
  render(template: PyProxy, messages: TemplateSource, tools: TemplateSource, options: string): string
}

export class PythonTemplates {
  readonly #module: ChatTemplatesModule

  private constructor(module: ChatTemplatesModule) {
    this.#module = module
  }

  /** Takes a third of a second, or seconds where no snapshot was made; about 100 MB. */
  static async start(): Promise<PythonTemplates> {
    const python = await bootPython()
    return new PythonTemplates(python.pyimport('chat_templates') as ChatTemplatesModule)
  }

  /**
   * @param specialTokens variables such as `bos_token`
   * @throws Error in Jinja2's words if the source is no valid template
   */
  open(source: string, specialTokens: Readonly<Record<string, string>>): PythonTemplate {
    try {
      return this.#opened(this.#module.open_template(source, JSON.stringify(specialTokens)))
    } catch (error) {
      // Python's traceback ends with what went wrong.
      throw new Error((error as Error).message.trim().split('\n').at(-1), { cause: error })
    }
  }

  /** What writes prompts as OpenAI's harmony library does, in the place of a template. */
  openHarmony(): PythonTemplate {
    return this.#opened(this.#module.open_harmony())
  }

  #opened(template: PyProxy): PythonTemplate {
    return {
      needs: this.#module.needs_of(template),
      words: this.#module.words_of(template),
      render: (messages, tools, variables) =>
        readOutcome(this.#module.render(template, given(messages), given(tools), JSON.stringify(variables))),
    }
  }
}

/** Text, or its UTF-8: Python copies bytes, and reads a string character by character, 3 ms for half a megabyte. */
type TemplateSource = string | Uint8Array

const LONG_CHARS = 16 * 1024
const utf8 = new TextEncoder()

function given(json: string): TemplateSource {
  // Half a surrogate pair has no UTF-8.
  return json.length > LONG_CHARS && json.isWellFormed() ? utf8.encode(json) : json
}

function readOutcome(answer: string): RenderOutcome {
  const rest = answer.slice(1)
  switch (answer[0]) {
    case '=':
      return { text: rest }
    case '!':
      return { refusal: rest }
    case '?': {
      const [type, path] = JSON.parse(rest) as [string, string]
      return { unsupported: { type, path } }
    }
    default:
      return { exhausted: true }
  }
}
