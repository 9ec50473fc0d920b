import type { TurnStep } from '../../src/proxy/store/port/turn-store.ts'

/** Creates a completed turn of session `s`, as a store returns it to a builder of rows. */
export function createTurnStep(
  index: number,
  prompt: readonly number[],
  completion: readonly number[],
): TurnStep {
  return {
    turnId: String(index),
    sessionId: 's',
    index,
    dialect: 'chat',
    startedAtMs: index,
    status: 'completed',
    endedAtMs: index,
    firstTokenAtMs: null,
    tools: null,
    params: String(index),
    lastMessage: undefined,
    promptPieces: [],
    retryCount: 0,
    model: null,
    engine: null,
    completionText: '',
    reasoning: null,
    toolCalls: '[]',
    finishReason: 'stop',
    stopReason: null,
    completionTokenIds: Int32Array.from(completion),
    completionLogprobs: Float64Array.from(completion, () => -1),
    exact: true,
    inexactReason: null,
    weightVersionStart: null,
    weightVersionEnd: null,
    usage: null,
    annotations: '{}',
    error: null,
    promptStep: { base: null, shared: 0, rest: Int32Array.from(prompt) },
  }
}
