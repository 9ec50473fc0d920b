/** Compiles and renders chat templates with Jinja2 on CPython, on the calling thread. */
import type { PyProxy } from 'pyodide/ffi'
import type { EncoderEntryPoint } from '../prompt-format.ts'
import type { Specialization } from '../specialization.ts'
import { bootPython } from './boot.ts'

/** The variables of a template besides messages and tools, with Python's names. */
export interface RenderVariables {
  add_generation_prompt: boolean
  /** Whether the text ends with the final message's text. Default: no. */
  continue_final_message?: boolean
  /** Additional variables, as values or as JSON. */
  kwargs?: Readonly<Record<string, unknown>> | string | undefined
  /** The documents, as values or as JSON. */
  documents?: readonly unknown[] | string | null | undefined
  /** The time for `strftime_now`, in seconds since 1970. Absent: the current time. */
  now_s?: number
}

/** The result of rendering a prompt in Python. */
type RenderOutcome =
  | { text: string }
  /** The template's own error message. */
  | { refusal: string }
  /** A content part that is not text, and its path. */
  | { unsupported: { type: string; path: string } }
  /** The reason why this Python must be replaced, for example that the template exceeded the memory limit. */
  | { damaged: string }

/** The reply of `specialize` in `chat_templates.py`. */
type SpecializeReply = { specialization?: Specialization } | { damaged: string }

/** A compiled template, or a renderer in place of one. */
export interface PythonTemplate {
  /** The form in which the template expects messages, as JSON; see `template_messages.py`. */
  readonly needs: string
  /** The words that the template searches for in texts, as JSON; see `template_words.py`. */
  readonly words: string
  /** Renders a prompt. @param messages JSON of the list @param tools JSON of the list, or `null` */
  render(messages: string, tools: string, variables: RenderVariables): RenderOutcome
  /**
   * Specializes the template to the shape of these messages.
   * @param paths JSON of the contents' paths (`TextPath`)
   * @returns undefined if the template cannot be specialized; `damaged` as in `RenderOutcome`
   */
  specialize(
    messages: string,
    tools: string,
    variables: RenderVariables,
    paths: string,
  ): Specialization | { damaged: string } | undefined
}

/** The functions of `chat_templates.py`. */
interface ChatTemplatesModule extends PyProxy {
  open_template(source: string, specialTokens: string): PyProxy
  open_harmony(): PyProxy
  get_needs(template: PyProxy): string
  get_words(template: PyProxy): string
  render(template: PyProxy, messages: PythonText, tools: PythonText, options: string): string
  specialize(template: PyProxy, messages: string, tools: string, options: string, paths: string): string
}

/** The functions of `model_encoder.py`. */
interface ModelEncoderModule extends PyProxy {
  open_encoder(source: string, entryPoint: string): PyProxy
}

/** Python with the renderers of chat templates and prompt encoders. */
export class PythonTemplates {
  readonly #module: ChatTemplatesModule
  readonly #encoders: ModelEncoderModule

  private constructor(module: ChatTemplatesModule, encoders: ModelEncoderModule) {
    this.#module = module
    this.#encoders = encoders
  }

  /**
   * Starts Python, which needs about 100 MB, and takes a third of a second with a snapshot and seconds without.
   * @param folder the folder of Pyodide's files; default: see {@link bootPython}
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
    return shortenError(() =>
      this.#wrapTemplate(this.#module.open_template(source, JSON.stringify(specialTokens))),
    )
  }

  /**
   * Confines this Python, which cannot be undone, and opens a model's encoder in it.
   * @throws Error with Python's message if the source does not define the function
   */
  openEncoder(source: string, entryPoint: EncoderEntryPoint): PythonTemplate {
    return shortenError(() => this.#wrapTemplate(this.#encoders.open_encoder(source, entryPoint)))
  }

  /** Returns a renderer that writes prompts as OpenAI's harmony library does, in place of a template. */
  openHarmony(): PythonTemplate {
    return this.#wrapTemplate(this.#module.open_harmony())
  }

  #wrapTemplate(template: PyProxy): PythonTemplate {
    return {
      needs: this.#module.get_needs(template),
      words: this.#module.get_words(template),
      render: (messages, tools, variables) =>
        JSON.parse(
          this.#module.render(
            template,
            encodeLongText(messages),
            encodeLongText(tools),
            JSON.stringify(variables),
          ),
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

/** Calls a function. @throws Error with the last line of Python's traceback, which contains the error message */
function shortenError<Result>(open: () => Result): Result {
  try {
    return open()
  } catch (error) {
    throw new Error((error as Error).message.trim().split('\n').at(-1), { cause: error })
  }
}

/**
 * JSON, or its UTF-8: Python copies bytes, but converts a string character by character, which takes 3 ms for half a
 * megabyte.
 */
type PythonText = string | Uint8Array

/** The length above which JSON is passed as bytes. */
const LONG_CHARS = 16 * 1024
const utf8 = new TextEncoder()

function encodeLongText(json: string): PythonText {
  // An unpaired surrogate has no UTF-8 encoding.
  return json.length > LONG_CHARS && json.isWellFormed() ? utf8.encode(json) : json
}
