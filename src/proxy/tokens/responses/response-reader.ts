/**
 * Parses completions of a model that has a `response_template`, the counterpart of the chat template for completions.
 * transformers' own code does this in Python on a thread, because matching a template's patterns against a model's text
 * may take any amount of time. If a completion exceeds the time limit, the rest of it is returned as raw text, and the
 * other completions in progress are parsed again on a new thread.
 */
import { startThread } from '../../../base/assets.ts'
import { ProxyError } from '../../../base/errors.ts'
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { DeltaBuilder, type OutputDelta } from '../parsers/output-delta.ts'
import type { OutputReader } from '../parsers/output-reader.ts'
import type { CompletionContext, ResponseDeltas } from '../templates/python/python-responses.ts'
import { PythonThread, type PythonThreadLimits } from '../templates/python/python-thread.ts'
import type { ResponseJob, ResponseReply, ResponseThreadConfig } from './response-thread.ts'

const ENTRY_POINT = new URL('./response-thread.ts', import.meta.url)

/** The limits of the thread. Each completion has one job at a time, so the requests in flight bound the queue. */
const LIMITS: PythonThreadLimits = { timeLimitMs: 5_000, maxQueued: 100_000 }

/** The maximum length of a job's texts. Longer texts are split, so that other jobs run in between. */
const MAX_JOB_CHARS = 64 * 1024

/**
 * The maximum number of times that a completion is parsed again for one read. Each replacement of the thread is the
 * fault of another completion, which is not parsed any more, so more than a few in a row are improbable.
 */
const MAX_REPLAYS = 4

type ResponseThread = PythonThread<ResponseJob, ResponseReply>

/** A thread that parses the completions of a model. */
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
   * Starts the thread before its first completion.
   * @throws ProxyError `config_invalid` if the template cannot be used, `start_failed` if Python does not start
   */
  async launch(): Promise<void> {
    await this.#thread.execute({ kind: 'close', id: 0 })
  }

  /** Returns a reader for a completion. @param prefix the end of the prompt's text */
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

/** A parser of one completion, which runs on the thread. */
class TemplateOutputReader implements OutputReader {
  readonly #thread: ResponseThread
  readonly #id: number
  readonly #opening: CompletionContext
  readonly #delta = new DeltaBuilder()
  /** The text that the thread has parsed, which a replacement of the thread must parse again. */
  #processed = ''
  /** The number of code points at the end of the parsed text that are not yet part of a delta. */
  #undecided = 0
  /** Whether the thread has a parser state for the completion. */
  #isOpen = false
  /** Whether the reader was closed, possibly during a read. */
  #isClosed = false
  /** Whether parsing has failed, so that all further text is content. */
  #isRaw = false

  constructor(thread: ResponseThread, id: number, opening: CompletionContext) {
    this.#thread = thread
    this.#id = id
    this.#opening = opening
  }

  async read(texts: readonly string[], isEnd: boolean): Promise<OutputDelta[]> {
    const chars = texts.reduce((sum, { length }) => sum + length, 0)
    if (chars <= MAX_JOB_CHARS) return await this.#readTexts(texts, isEnd)
    const deltas: OutputDelta[] = []
    for (const text of texts) deltas.push(await this.#readLong(text))
    if (isEnd) deltas.push(...(await this.#readTexts([], true)))
    return deltas
  }

  close(): void {
    this.#isClosed = true
    if (this.#isOpen) this.#discardState()
  }

  #discardState(): void {
    this.#isOpen = false
    this.#thread.execute({ kind: 'close', id: this.#id }).catch(() => {})
  }

  async #readLong(text: string): Promise<OutputDelta> {
    const full = new DeltaBuilder()
    for (const part of splitText(text)) {
      const [delta] = await this.#readTexts([part], false)
      full.add(delta!)
    }
    return full.take()
  }

  async #readTexts(texts: readonly string[], isEnd: boolean): Promise<OutputDelta[]> {
    if (this.#isRaw) return toRawDeltas(texts, isEnd)
    try {
      const { deltas, undecided } = await this.#sendRequest(texts, isEnd)
      this.#processed += texts.join('')
      this.#undecided = undecided
      this.#isOpen = !isEnd
      // The agent may have disconnected during the read, which opened a state.
      if (this.#isOpen && this.#isClosed) this.#discardState()
      return deltas.map((delta) => this.#toOutputDelta(delta))
    } catch (error) {
      if (!(error instanceof ProxyError) || error.code === 'shutting_down') throw error
      this.#isRaw = true
      // The thread may have opened a state before the failure.
      this.#discardState()
      const [first = '', ...rest] = texts
      return toRawDeltas([getLastCodePoints(this.#processed, this.#undecided) + first, ...rest], isEnd)
    }
  }

  async #sendRequest(texts: readonly string[], isEnd: boolean): Promise<ResponseDeltas> {
    const job = { kind: 'read', id: this.#id, texts, isEnd } as const
    let reply = await this.#thread.execute(this.#isOpen ? job : { ...job, opening: this.#opening })
    // A thread that was replaced does not know the completion. It may be replaced again at any of these jobs.
    for (let replays = 0; reply === 'unknown' && replays < MAX_REPLAYS; replays += 1)
      if (await this.#replay())
        reply = await this.#thread.execute(this.#processed === '' ? { ...job, opening: this.#opening } : job)
    if (reply !== 'unknown') return reply
    throw new ProxyError('internal', 'the thread that parses completions was replaced too often')
  }

  /**
   * Parses the earlier text again, and discards its output, which was already returned.
   * @returns false if the thread was replaced meanwhile
   */
  async #replay(): Promise<boolean> {
    for (const [index, part] of splitText(this.#processed).entries()) {
      const opening = index === 0 && { opening: this.#opening }
      const job = { kind: 'read', id: this.#id, ...opening, texts: [part], isEnd: false } as const
      if ((await this.#thread.execute(job)) === 'unknown') return false
    }
    return true
  }

  #toOutputDelta({
    content = '',
    reasoning = '',
    calls = [],
  }: ResponseDeltas['deltas'][number]): OutputDelta {
    this.#delta.addContent(content)
    this.#delta.addReasoning(reasoning)
    this.#delta.addCalls(calls)
    return this.#delta.take()
  }
}

/** Returns unparsed texts as content. At the end, the result has one more delta, which is empty. */
function toRawDeltas(texts: readonly string[], isEnd: boolean): OutputDelta[] {
  const all = isEnd ? [...texts, ''] : texts
  return all.map((content) => (content === '' ? {} : { content }))
}

/** Splits a text into jobs without splitting a surrogate pair. */
function splitText(text: string): string[] {
  const parts: string[] = []
  for (let start = 0; start < text.length; ) {
    const end = start + MAX_JOB_CHARS
    const part = text.slice(start, /[\ud800-\udbff]/.test(text[end - 1] ?? '') ? end - 1 : end)
    parts.push(part)
    start += part.length
  }
  return parts
}

function getLastCodePoints(text: string, count: number): string {
  return count === 0 ? '' : [...text].slice(-count).join('')
}
