import type { EventSink, GenerationEvent } from '../../src/protocol/canonical/events.ts'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import type { Backend, BackendStatus } from '../../src/proxy/engines/port/backend.ts'
import type { EngineModel } from '../../src/proxy/engines/port/engine-client.ts'
import { type EventStream, push } from './event-stream.ts'

export type Script = (request: GenerationRequest, signal: AbortSignal) => EventStream

/** A backend that a test scripts, and that records its requests. */
export class ScriptedBackend implements Backend {
  readonly mode = 'local'
  readonly requests: GenerationRequest[] = []
  readonly released: string[] = []
  script: Script

  constructor(script: Script = () => respond(completeResponse())) {
    this.script = script
  }

  generate(request: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void> {
    this.requests.push(request)
    return push(this.script(request, signal), sink)
  }

  async listModels(): Promise<EngineModel[]> {
    return [{ id: 'scripted', maxModelLen: 1000 }]
  }

  /** Returns the number of prompt tokens in {@link completeResponse}. */
  async countTokens(): Promise<number> {
    return 3
  }

  releaseSession(sessionId: string): void {
    this.released.push(sessionId)
  }

  getStatus(): BackendStatus {
    return { members: [], queued: 0 }
  }

  pause(): void {}

  async resume(): Promise<void> {}

  async refresh(): Promise<void> {}

  async close(): Promise<void> {}
}

/** Returns the events of a complete and exact response, `hi there`. */
export function completeResponse(): GenerationEvent[] {
  return [
    {
      type: 'start',
      engine: 'scripted',
      model: 'scripted',
      promptTokenIds: PromptIds.of(1, 2, 3),
      weightVersion: '7',
    },
    { type: 'delta', content: 'hi', tokenIds: [10], logprobs: [-0.5] },
    { type: 'delta', content: ' there', tokenIds: [11, 12], logprobs: [-0.25, -1] },
    {
      type: 'end',
      finishReason: 'stop',
      usage: { prompt_tokens: 3, completion_tokens: 3, total_tokens: 6 },
    },
  ]
}

/** Yields events one by one, each in a separate batch. */
export async function* respond(events: readonly GenerationEvent[]): EventStream {
  for (const event of events) yield [event]
}

/** Never resolves; rejects with the signal's reason, as a backend does, once it aborts. */
export function untilAborted(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    if (signal.aborted) reject(signal.reason)
    signal.addEventListener('abort', () => reject(signal.reason), { once: true })
  })
}
