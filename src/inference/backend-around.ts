import type { GenerationStream } from '../canonical/events.ts'
import type { ChatBody, GenerationRequest } from '../canonical/request.ts'
import type { Backend, BackendStatus } from './backend.ts'
import type { ModelInfo } from './engine-client.ts'

/** A backend that changes how another one generates, and leaves the rest to it. */
export abstract class BackendAround implements Backend {
  protected readonly inner: Backend

  constructor(inner: Backend) {
    this.inner = inner
  }

  abstract generate(request: GenerationRequest, signal: AbortSignal): GenerationStream

  get mode(): Backend['mode'] {
    return this.inner.mode
  }

  models(): Promise<ModelInfo[]> {
    return this.inner.models()
  }

  countTokens(body: ChatBody, signal: AbortSignal, sessionId?: string): Promise<number> {
    return this.inner.countTokens(body, signal, sessionId)
  }

  releaseSession(sessionId: string): void {
    this.inner.releaseSession(sessionId)
  }

  status(): BackendStatus {
    return this.inner.status()
  }

  pause(): void {
    this.inner.pause()
  }

  resume(): void {
    this.inner.resume()
  }

  close(): Promise<void> {
    return this.inner.close()
  }
}
