/** Token mode without HTTP: turns of one session, over a scripted engine. */
import type { Test } from 'tap'
import type { ChatMessage, Usage } from '../../src/protocol/canonical/messages.ts'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import type { TokenData } from '../../src/protocol/token-data/token-data.ts'
import { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import { TokenPrompts, type TokenPromptsOptions } from '../../src/proxy/session/prompts/token-prompts.ts'
import { Sessions } from '../../src/proxy/session/state/sessions.ts'
import { TurnRunner } from '../../src/proxy/session/turn/run-turn.ts'
import type { TurnRecord, TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import type { TokenModel } from '../../src/proxy/tokens/model/token-model.ts'
import { ScriptedBackend } from './scripted-backend.ts'
import { SessionTurnRunner } from './session-turn-runner.ts'
import { silentLogger } from './silent-logger.ts'
import { openMemoryStore } from './store-in-process.ts'

/** The engine's completion of a request. */
export interface FakeCompletion {
  text: string
  /** Whether it is truncated, without the token that ends a turn. */
  isCut?: boolean
  /** The token that ends it. Default: the tokenizer's. */
  endId?: number
  /** Whether the engine reports the text without ids. */
  isWithoutIds?: boolean
  /** The prompt ids that the engine reports. Default: the ids that were sent. */
  reportedPromptIds?: readonly number[]
  usage?: Usage
  details?: TokenData | undefined
}

const never = new AbortController().signal

/**
 * Creates the rig.
 * @param respond returns the completion of each request
 */
export async function createTokenModeRig(
  t: Test,
  model: TokenModel,
  respond: (request: GenerationRequest) => FakeCompletion,
  existingStore?: TurnStore,
  options?: TokenPromptsOptions,
) {
  const store = existingStore ?? (await openMemoryStore())
  const backend = new ScriptedBackend(async function* (request) {
    const {
      text,
      isCut = false,
      isWithoutIds = false,
      reportedPromptIds,
      usage,
      details,
      endId,
    } = respond(request)
    const ids = [...model.tokenizer.encode(text), ...(isCut ? [] : [endId ?? model.tokenizer.eosTokenId!])]
    yield [
      {
        type: 'start',
        engine: 'scripted',
        promptTokenIds: reportedPromptIds ? PromptIds.of(...reportedPromptIds) : request.promptTokenIds!,
      },
      isWithoutIds
        ? { type: 'delta', content: text }
        : { type: 'delta', tokenIds: ids, logprobs: ids.map(() => -1), ...(details && { details }) },
      { type: 'end', finishReason: isCut ? 'length' : 'stop', ...(usage && { usage }) },
    ]
  })
  const prompts = new TokenPrompts(model, store, options)
  const hooks = { onEnded() {}, onSweepFailed() {}, onSweepDeferred() {} }
  const sessions = new Sessions(store, hooks, { strict: false, defaultTtlMs: null })
  t.teardown(() => sessions.close())
  const runner = new SessionTurnRunner(
    new TurnRunner({ sessions, backend, prompts, store, logger: silentLogger }),
    sessions,
  )
  const sendRequestFor = async (
    count: number,
    messages: ChatMessage[],
    fields = {},
  ): Promise<TurnRecord[]> => {
    const request = { kind: 'chat', body: { messages, ...fields } } as const
    const metadata = { retryCount: 0, hasAgentKey: false }
    const agentRequest = { sessionId: 's', dialect: 'chat', request, stream: false, metadata }
    const response =
      count === 1
        ? await runner.begin(agentRequest, never)
        : await runner.beginChoices(agentRequest, count, never)
    await response.deliver({ write: () => undefined })
    return (await Array.fromAsync(store.readTurns('s'))).slice(-count)
  }
  return {
    sessions,
    store,
    /**
     * Requests several completions.
     * @returns their turns
     */
    sendRequestFor,
    /** The number of prompt tokens that such a request of the session would have. */
    count: (messages: ChatMessage[]): Promise<number> => runner.countTokens('s', { messages }, never),
    sendRequest: async (messages: ChatMessage[], fields = {}): Promise<TurnRecord> =>
      (await sendRequestFor(1, messages, fields))[0]!,
  }
}
