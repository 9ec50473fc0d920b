/** Chat templates, compiled and rendered by Jinja2 on CPython, on the calling thread. */
import type { PyProxy } from 'pyodide/ffi'
import type { EncoderEntryPoint } from '../prompt-format.ts'
import type { Specialization } from '../specialization.ts'
import { bootPython } from './boot.ts'

/** The variables of a template besides messages and tools, in Python's names. */
export interface RenderVariables {
  add_generation_prompt: boolean
  /** Whether to cut the text after the final message's. Default: no. */
  continue_final_message?: boolean
  /** Variables, as values or as JSON; so are the documents. */
  kwargs?: Readonly<Record<string, unknown>> | string | undefined
  documents?: readonly unknown[] | string | null | undefined
  /** The time for `strftime_now`, in seconds since 1970. Absent: the current time. */
  now_s?: number
}

type RenderOutcome =
  | { text: string }
  /** The template's own error message. */
  | { refusal: string }
  /** A content part that is not text, and its path. */
  | { unsupported: { type: string; path: string } }
  /** Why this Python must not be used again: the template exceeded the memory limit, for instance. */
  | { damaged: string }

type SpecializeReply = { specialization?: Specialization } | { damaged: string }

export interface PythonTemplate {
  /** The form in which it expects messages, as JSON; see `template_messages.py`. */
  readonly needs: string
  /** The words that it searches for in texts, as JSON; see `template_words.py`. */
  readonly words: string
  /** Renders a prompt. @param messages JSON of the list @param tools JSON of the list, or `null` */
  render(messages: string, tools: string, variables: RenderVariables): RenderOutcome
  /**
   * Specializes the template to the shape of these messages.
   * @param paths JSON of the places of contents
   * @returns undefined if it cannot be specialized; `damaged` as {@link render}
   */
  specialize(
    messages: string,
    tools: string,
    variables: RenderVariables,
    paths: string,
  ): Specialization | { damaged: string } | undefined
}

interface ChatTemplatesModule extends PyProxy {
  open_template(source: string, specialTokens: string): PyProxy
  open_harmony(): PyProxy
  get_needs(template: PyProxy): string
  get_words(template: PyProxy): string
  render(template: PyProxy, messages: TemplateSource, tools: TemplateSource, options: string): string
  specialize(template: PyProxy, messages: string, tools: string, options: string, paths: string): string
}

interface ModelEncoderModule extends PyProxy {
  open_encoder(source: string, entryPoint: string): PyProxy
}

export class PythonTemplates {
  readonly #module: ChatTemplatesModule
  readonly #encoders: ModelEncoderModule

  private constructor(module: ChatTemplatesModule, encoders: ModelEncoderModule) {
    this.#module = module
    this.#encoders = encoders
  }

  /**
   * Starts Python, which takes a third of a second, or seconds without a snapshot, and about 100 MB.
   * @param folder the folder of Pyodide's files; default: as {@link bootPython} finds it
   */
  static async start(folder?: string): Promise<PythonTemplates> {
    const python = await bootPython(undefined, folder)
    return new PythonTemplates(
      python.pyimport('chat_templates') as ChatTemplatesModule,
      python.pyimport('model_encoder') as ModelEncoderModule,
    )
  }

  /**
   * Compiles a template.
   * @param specialTokens variables such as `bos_token`
   * @throws Error with Jinja2's message if the source is not a valid template
   */
  open(source: string, specialTokens: Readonly<Record<string, string>>): PythonTemplate {
    return orLastLine(() => this.#opened(this.#module.open_template(source, JSON.stringify(specialTokens))))
  }

  /**
   * Confines this Python for good, and opens a model's encoder in it.
   * @throws Error with Python's message if the source does not define the function
   */
  openEncoder(source: string, entryPoint: EncoderEntryPoint): PythonTemplate {
    return orLastLine(() => this.#opened(this.#encoders.open_encoder(source, entryPoint)))
  }

  /** Returns a renderer that writes prompts as OpenAI's harmony library does, in place of a template. */
  openHarmony(): PythonTemplate {
    return this.#opened(this.#module.open_harmony())
  }

  #opened(template: PyProxy): PythonTemplate {
    return {
      needs: this.#module.get_needs(template),
      words: this.#module.get_words(template),
      render: (messages, tools, variables) =>
        JSON.parse(
          this.#module.render(template, parseSource(messages), parseSource(tools), JSON.stringify(variables)),
        ) as RenderOutcome,
      specialize: (messages, tools, variables, paths) => {
        const reply: SpecializeReply = JSON.parse(
          this.#module.specialize(template, messages, tools, JSON.stringify(variables), paths),
        )
        return 'damaged' in reply ? reply : reply.specialization
      },
    }
  }
}

/** @throws Error with the last line of Python's traceback, which is its error message */
function orLastLine<Result>(open: () => Result): Result {
  try {
    return open()
  } catch (error) {
    throw new Error((error as Error).message.trim().split('\n').at(-1), { cause: error })
  }
}

/** Text, or its UTF-8: Python copies bytes, but reads a string character by character, 3 ms for half a megabyte. */
type TemplateSource = string | Uint8Array

const LONG_CHARS = 16 * 1024
const utf8 = new TextEncoder()

function parseSource(json: string): TemplateSource {
  // An unpaired surrogate has no UTF-8 encoding.
  return json.length > LONG_CHARS && json.isWellFormed() ? utf8.encode(json) : json
}
