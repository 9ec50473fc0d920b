import type { ProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'

/** Strangers must not fill the disk: they get one line for each stretch of this length. */
const STRETCH_MS = 1_000

/** Tells of strangers that were refused: of the first at once, then how many there were since the line before. */
export class RefusalLog {
  readonly #logger: Logger
  #refusedSince = 0
  #nextLineAtMs = 0

  constructor(logger: Logger) {
    this.#logger = logger
  }

  /** @param address of the caller, or of the trusted proxy's client */
  add({ code, status, message }: ProxyError, address: string): void {
    this.#refusedSince += 1
    const nowMs = performance.now()
    if (nowMs < this.#nextLineAtMs) return
    this.#nextLineAtMs = nowMs + STRETCH_MS
    this.#logger.info({ code, status, address, refused: this.#refusedSince }, message)
    this.#refusedSince = 0
  }
}
