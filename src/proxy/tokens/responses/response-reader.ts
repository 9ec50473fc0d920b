/**
 * Reads completions of a model with a `response_template`, the counterpart of the chat template for completions.
 * transformers' own code parses them in Python on a thread, because the combination of a template's patterns and a
 * model's text may take any amount of time. A completion that exceeds the limit is returned as raw text from its first
 * character that was not yet returned; others that the thread was reading are read again on its replacement.
 */
import { startThread } from '../../../base/assets.ts'
import { ProxyError } from '../../../base/errors.ts'
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { DeltaBuilder, type OutputDelta } from '../parsers/output-delta.ts'
import type { OutputReader } from '../parsers/output-reader.ts'
import type { ResponseDeltas, ResponseOpening } from '../templates/python/python-responses.ts'
import { PythonThread, type PythonThreadLimits } from '../templates/python/python-thread.ts'
import type { ResponseJob, ResponseReply, ResponseThreadConfig } from './response-thread.ts'

const ENTRY_POINT = new URL('./response-thread.ts', import.meta.url)

/** The limits. Each completion has one job at a time, so the requests in flight bound the queue. */
const LIMITS: PythonThreadLimits = { timeLimitMs: 5_000, maxQueued: 100_000 }

/** Longer texts are split: other jobs run in between, and no job exceeds the time limit. */
const MAX_JOB_CHARS = 64 * 1024

type ResponseThread = PythonThread<ResponseJob, ResponseReply>

export class ResponseReader {
  readonly #thread: ResponseThread
  #responseCount = 0

  /** @param template the value of `response_template` in `tokenizer_config.json` */
  constructor(template: object, limits: Partial<PythonThreadLimits> = {}) {
    const data: ResponseThreadConfig = { template: JSON.stringify(template) }
    this.#thread = new PythonThread({
      start: (workerData) => startThread(ENTRY_POINT, { workerData, name: 'responses' }),
      name: 'responses',
      data,
      limits: { ...LIMITS, ...limits },
      task: 'parses completions',
      createLimitError: (reason) => new ProxyError('internal', `the completion cannot be parsed: ${reason}`),
    })
  }

  /**
   * Starts the thread.
   * @throws ProxyError `config_invalid` if the template cannot be used, `start_failed` if Python does not start
   */
  async begin(): Promise<void> {
    await this.#thread.execute({ kind: 'close', id: 0 })
  }

  /** Returns a reader for a completion. @param prefix the text before the completion */
  open(prefix: string, tools: readonly Tool[] | null | undefined): OutputReader {
    this.#responseCount += 1
    return new TemplateOutputReader(this.#thread, this.#responseCount, {
      prefix,
      tools: JSON.stringify(tools ?? []),
    })
  }

  close(): Promise<void> {
    return this.#thread.close()
  }
}

class TemplateOutputReader implements OutputReader {
  readonly #thread: ResponseThread
  readonly #id: number
  readonly #opening: ResponseOpening
  readonly #delta = new DeltaBuilder()
  /** The text that the thread has read, for a replacement of the thread. */
  #past = ''
  #undecided = 0
  #isOpen = false
  #isRaw = false

  constructor(thread: ResponseThread, id: number, opening: ResponseOpening) {
    this.#thread = thread
    this.#id = id
    this.#opening = opening
  }

  async read(texts: readonly string[], isEnd: boolean): Promise<OutputDelta[]> {
    const chars = texts.reduce((sum, { length }) => sum + length, 0)
    if (chars <= MAX_JOB_CHARS) return await this.#readPieces(texts, isEnd)
    const deltas: OutputDelta[] = []
    for (const text of texts) deltas.push(await this.#readLong(text))
    if (isEnd) deltas.push(...(await this.#readPieces([], true)))
    return deltas
  }

  close(): void {
    if (this.#isOpen) this.#thread.execute({ kind: 'close', id: this.#id }).catch(() => {})
    this.#isOpen = false
  }

  async #readLong(text: string): Promise<OutputDelta> {
    const full = new DeltaBuilder()
    for (const piece of splitText(text)) {
      const [delta] = await this.#readPieces([piece], false)
      full.add(delta!)
    }
    return full.take()
  }

  async #readPieces(texts: readonly string[], isEnd: boolean): Promise<OutputDelta[]> {
    if (this.#isRaw) return asWritten(texts, isEnd)
    try {
      const { deltas, undecided } = await this.#sendRequest(texts, isEnd)
      this.#past += texts.join('')
      this.#undecided = undecided
      this.#isOpen = !isEnd
      return deltas.map((delta) => this.#shown(delta))
    } catch (error) {
      if (!(error instanceof ProxyError) || error.code === 'shutting_down') throw error
      this.#isRaw = true
      const [first = '', ...rest] = texts
      return asWritten([getLastCodePoints(this.#past, this.#undecided) + first, ...rest], isEnd)
    }
  }

  async #sendRequest(texts: readonly string[], isEnd: boolean): Promise<ResponseDeltas> {
    const job = { kind: 'read', id: this.#id, texts, isEnd } as const
    const reply = await this.#thread.execute(this.#isOpen ? job : { ...job, opening: this.#opening })
    if (reply !== 'unknown') return reply
    // Output that was already returned is discarded.
    for (const [index, piece] of splitText(this.#past).entries()) {
      const opening = index === 0 && { opening: this.#opening }
      await this.#thread.execute({ kind: 'read', id: this.#id, ...opening, texts: [piece], isEnd: false })
    }
    return (await this.#thread.execute(
      this.#past === '' ? { ...job, opening: this.#opening } : job,
    )) as ResponseDeltas
  }

  #shown({ content = '', reasoning = '', calls = [] }: ResponseDeltas['deltas'][number]): OutputDelta {
    this.#delta.addContent(content)
    this.#delta.addReasoning(reasoning)
    this.#delta.addCalls(calls)
    return this.#delta.take()
  }
}

/** Returns unparsed text as content; an empty text represents the end. */
function asWritten(texts: readonly string[], isEnd: boolean): OutputDelta[] {
  const all = isEnd ? [...texts, ''] : texts
  return all.map((content) => (content === '' ? {} : { content }))
}

/** Splits a text without splitting a character. */
function splitText(text: string): string[] {
  const pieces: string[] = []
  for (let start = 0; start < text.length; ) {
    const end = start + MAX_JOB_CHARS
    const piece = text.slice(start, /[\ud800-\udbff]/.test(text[end - 1] ?? '') ? end - 1 : end)
    pieces.push(piece)
    start += piece.length
  }
  return pieces
}

function getLastCodePoints(text: string, count: number): string {
  return count === 0 ? '' : [...text].slice(-count).join('')
}
