/** A model's `response_template`, by which Python reads answers in the thread that this is called on. */
import type { PyProxy } from 'pyodide/ffi'
import { ProxyError } from '../../../../base/errors.ts'
import { bootPython } from './boot.ts'

/** What the answer follows: the text of its prompt, or of that one's end, and JSON of the request's tools. */
export interface AnswerOpening {
  prefix: string
  tools: string
}

/** What Python has understood of the answers' texts so far. */
export interface ResponseTexts {
  /** One for each text, and one more for the end. */
  deltas: { content?: string; reasoning?: string; calls?: { name: string; arguments: string }[] }[]
  /** How many code points at the end of all texts have not been told yet. */
  undecided: number
}

export interface ResponseTemplate {
  begin(opening: AnswerOpening): PyProxy
  read(answer: PyProxy, texts: readonly string[], isEnd: boolean): ResponseTexts
}

interface ResponseReaderModule extends PyProxy {
  open_template(source: string): PyProxy
  open_answer(template: PyProxy, prefix: string, tools: string): PyProxy
  read(answer: PyProxy, texts: string, isEnd: boolean): string
}

export class PythonResponses {
  readonly #module: ResponseReaderModule

  private constructor(module: ResponseReaderModule) {
    this.#module = module
  }

  static async start(): Promise<PythonResponses> {
    const python = await bootPython()
    return new PythonResponses(python.pyimport('response_reader') as ResponseReaderModule)
  }

  /**
   * @param source JSON of the template
   * @throws ProxyError `config_invalid` in transformers' words if it is not valid
   */
  open(source: string): ResponseTemplate {
    const module = this.#module
    try {
      const template = module.open_template(source)
      return {
        begin: ({ prefix, tools }) => module.open_answer(template, prefix, tools),
        read: (answer, texts, isEnd) =>
          JSON.parse(module.read(answer, JSON.stringify(texts), isEnd)) as ResponseTexts,
      }
    } catch (error) {
      // Python's traceback ends with what went wrong.
      const why = (error as Error).message.trim().split('\n').at(-1)!
      throw new ProxyError('config_invalid', why.replace(/^[\w.]+: /, ''), { cause: error })
    }
  }
}
