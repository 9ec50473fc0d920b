/**
 * The step between a session and its engines: how the prompt of a call comes about, and what is remembered of it for
 * the calls that go on from there. Chat mode (`chat-prompts.ts`) leaves prompts to the engine and measures them; token
 * mode (`token-prompts.ts`) makes them.
 */
import type { Completion } from '../../canonical/completion.ts'
import type { GenerationEvent, GenerationStream } from '../../canonical/events.ts'
import type { GenerationRequest } from '../../canonical/request.ts'
import type { CountTokens } from '../../inference/count-tokens.ts'

export interface Prompts {
  /**
   * A call begins. To be disposed of when the call has ended, however it did.
   * @throws ProxyError `invalid_request`, `unsupported`, `context_length_exceeded` for what cannot become a prompt;
   *   `store_failed`
   */
  begin(request: GenerationRequest): Promise<CallPrompt>
  countTokens: CountTokens
  /** How prompts came about, counted by reason since the start of the process. */
  counts(): Readonly<Record<string, number>>
  /** The session has ended: nothing goes on from its calls. */
  forget(sessionId: string): void
}

/** The prompt of one call. */
export interface CallPrompt extends Disposable {
  /** What the engine is to be asked. */
  readonly request: GenerationRequest
  /** Where no engine need be asked: its answer. */
  readonly answer?: GenerationStream
  /**
   * What can be done while the engine works, and so costs the agent no time; to be awaited before anything is read.
   * @throws ProxyError `invalid_request`
   */
  whileAsked(): Promise<void>
  /** What the agent gets of what the engine said. */
  read(events: readonly GenerationEvent[]): readonly GenerationEvent[]
  /** The answer is whole. Before the agent can have read the end and go on from it. */
  answered(completion: Completion): void
}

/** The prompt of a call that has no messages: it goes to the engine, and its answer to the agent, as they are. */
export function plainPrompt(request: GenerationRequest): CallPrompt {
  return {
    request,
    whileAsked: async () => {},
    read: (events) => events,
    answered() {},
    [Symbol.dispose]() {},
  }
}
