/** Parses completions by a model's `response_template`, in Python on the calling thread. */
import type { PyProxy } from 'pyodide/ffi'
import { ProxyError } from '../../../../base/errors.ts'
import { bootPython } from './boot.ts'

/** The context of a completion: the prompt's text, or the end of it, and the request's tools as JSON. */
export interface CompletionContext {
  prefix: string
  tools: string
}

/** The output that Python returns for some texts of a completion. */
export interface ResponseDeltas {
  /** One delta for each text, and one more at the end of the completion. */
  deltas: { content?: string; reasoning?: string; calls?: { name: string; arguments: string }[] }[]
  /** The number of code points at the end of the completion so far that are not yet part of a delta. */
  undecided: number
}

/** A response template, and the functions that parse completions by it. */
export interface ResponseTemplate {
  /** Returns the parser state of a new completion, which the caller must destroy. */
  begin(opening: CompletionContext): PyProxy
  read(answer: PyProxy, texts: readonly string[], isEnd: boolean): ResponseDeltas
}

/** The functions of `response_reader.py`. */
interface ResponseReaderModule extends PyProxy {
  open_template(source: string): PyProxy
  open_completion(template: PyProxy, prefix: string, tools: string): PyProxy
  read(answer: PyProxy, texts: string, isEnd: boolean): string
}

/** Python with transformers' parser of completions. */
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
   * Opens a response template.
   * @param source JSON of the template
   * @throws ProxyError `config_invalid` with transformers' error message if it is not valid
   */
  open(source: string): ResponseTemplate {
    const module = this.#module
    try {
      const template = module.open_template(source)
      return {
        begin: ({ prefix, tools }) => module.open_completion(template, prefix, tools),
        read: (answer, texts, isEnd) =>
          JSON.parse(module.read(answer, JSON.stringify(texts), isEnd)) as ResponseDeltas,
      }
    } catch (error) {
      // The error message is the last line of Python's traceback.
      const reason = (error as Error).message.trim().split('\n').at(-1)!
      throw new ProxyError('config_invalid', reason.replace(/^[\w.]+: /, ''), { cause: error })
    }
  }
}
