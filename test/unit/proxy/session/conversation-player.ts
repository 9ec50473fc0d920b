/** Plays the agent and the engine of a session in token mode, from the request to the recorded turn. */
import assert from 'node:assert/strict'
import type { Completion } from '../../../../src/protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../../src/protocol/canonical/events.ts'
import type { ChatMessage } from '../../../../src/protocol/canonical/messages.ts'
import type { GenerationRequest } from '../../../../src/protocol/canonical/request.ts'
import { TokenPrompts } from '../../../../src/proxy/session/prompts/token-prompts.ts'
import { Sessions } from '../../../../src/proxy/session/state/sessions.ts'
import { TurnRunner } from '../../../../src/proxy/session/turn/run-turn.ts'
import type { TurnRecord, TurnStore } from '../../../../src/proxy/store/port/turn-store.ts'
import type { TokenModel } from '../../../../src/proxy/tokens/model/token-model.ts'
import { chooseParser, endsWithReasoningOpener } from '../../../../src/proxy/tokens/parsers/choose-parser.ts'
import { StreamingDecoder } from '../../../../src/proxy/tokens/tokenizer/streaming-decoder.ts'
import { DISCARD, type EventStream } from '../../../helpers/event-stream.ts'
import { mergeDeltas } from '../../../helpers/parsed-output.ts'
import { ScriptedBackend } from '../../../helpers/scripted-backend.ts'
import { SessionTurnRunner } from '../../../helpers/session-turn-runner.ts'
import { silentLogger } from '../../../helpers/silent-logger.ts'
import { openMemoryStore } from '../../../helpers/store-in-process.ts'
import { loadModel, type Model } from '../tokens/prompt-rollout.ts'
import { getEcho, getMarkup, type PlannedConversation, type Sample } from './token-mode-samples.ts'

/** @param name one of the real models, or `embedded` */
export function loadTokenModel(name: string): TokenModel & Model {
  const model = loadModel(name)
  const parserChoice = chooseParser(model.source)
  return {
    ...model,
    parser: parserChoice.family,
    parserChoice,
    promptFormat: { name: 'template', chosenBy: 'template', evidence: [] },
    eosTokenIds: [model.tokenizer.eosTokenId!],
    imageRule: undefined,
    seesToolImages: false,
    encodedBy: 'javascript',
    encodeText: async (text) => model.tokenizer.encode(text),
    contextLength: undefined,
    getLongestTokenChars: () => 128,
    vocabularySize: model.tokenizer.vocabSize,
    close: async () => {},
  }
}

const never = new AbortController().signal

export class ConversationPlayer {
  readonly sampled: number[][] = []
  readonly #model: TokenModel
  readonly #plan: PlannedConversation
  readonly #store: TurnStore
  readonly #sessions: Sessions
  readonly #runner: SessionTurnRunner
  #next: Sample | undefined

  static async open(model: TokenModel, plan: PlannedConversation): Promise<ConversationPlayer> {
    return new ConversationPlayer(model, plan, await openMemoryStore())
  }

  private constructor(model: TokenModel, plan: PlannedConversation, store: TurnStore) {
    this.#model = model
    this.#store = store
    this.#plan = plan
    const backend = new ScriptedBackend((request) => this.#sample(request))
    const prompts = new TokenPrompts(model, this.#store)
    const hooks = { onEnded() {}, onSweepFailed() {}, onSweepDeferred() {} }
    this.#sessions = new Sessions(this.#store, hooks, { strict: false, defaultTtlMs: null })
    const sessions = this.#sessions
    const options = { sessions, backend, prompts, store: this.#store, logger: silentLogger }
    this.#runner = new SessionTurnRunner(new TurnRunner(options), sessions)
  }

  /**
   * @returns the recorded turns, each with the turn that its agent continued, as far as the completions
   * determine it
   */
  async play(): Promise<{ turns: TurnRecord[]; continued: (number | undefined)[] }> {
    const messages = [...this.#plan.opening]
    const continued: (number | undefined)[] = []
    let continuedTurn: number | undefined
    for (const [
      index,
      { sample, other, continuedSample, echo, results, question, stream },
    ] of this.#plan.turns.entries()) {
      const responses: Completion[] = []
      for (const sampled of other === undefined ? [sample] : [sample, other]) {
        responses.push(await this.#sendRequest(messages, sampled, stream))
        continued.push(continuedTurn)
      }
      const chosen = continuedSample === 'first' ? 0 : responses.length - 1
      continuedTurn = continued.length - responses.length + chosen
      const message = getEcho(responses[chosen]!, echo, index)
      const calls = 'tool_calls' in message ? (message.tool_calls ?? []) : []
      messages.push(message)
      for (const [i, { id }] of calls.entries()) {
        messages.push({ role: 'tool', tool_call_id: id, content: results[i]! })
      }
      if (calls.length === 0 || question !== undefined)
        messages.push({ role: 'user', content: question ?? 'Well?' })
    }
    await this.#sessions.close()
    return { turns: await Array.fromAsync(this.#store.readTurns('s')), continued }
  }

  async #sendRequest(messages: readonly ChatMessage[], sample: Sample, stream: boolean): Promise<Completion> {
    this.#next = sample
    const { tools } = this.#plan
    const body = { model: 'm', messages: [...messages], ...(tools && { tools }) }
    const request = { kind: 'chat', body } as const
    const call = {
      sessionId: 's',
      dialect: 'chat',
      request,
      stream,
      metadata: { retryCount: 0, hasAgentKey: false },
    }
    const turn = await this.#runner.begin(call, never)
    await turn.deliver(DISCARD)
    this.#compareWithSample(turn.completion)
    return turn.completion
  }

  /** The agent's text equals all sampled ids, decoded together. */
  #compareWithSample({ start, tokenIds, content, reasoning, toolCalls }: Completion): void {
    const { tokenizer, parser, eosTokenIds } = this.#model
    assert.deepEqual(tokenIds, this.sampled.at(-1))
    const ids = tokenIds.filter((id) => !eosTokenIds.includes(id))
    const decoder = new StreamingDecoder(tokenizer, {
      skipSpecialTokens: true,
      keepTokens: parser.keepTokens,
    })
    const startsInReasoning = endsWithReasoningOpener(
      parser,
      tokenizer.decode(start!.promptTokenIds!.toArray().slice(-20)),
    )
    const reader = parser.create({ tools: this.#plan.tools, startsInReasoning })
    const read = mergeDeltas([reader.push(decoder.push(ids) + decoder.flush()), reader.finish()])
    const getFunctions = (calls: readonly { function: object }[]) => calls.map((call) => call.function)
    assert.deepEqual(
      [content ?? '', reasoning ?? '', getFunctions(toolCalls)],
      [read.content, read.reasoning, getFunctions(read.toolCalls)],
    )
  }

  async *#sample({ promptTokenIds, stream }: GenerationRequest): EventStream {
    const { ids, finishReason } = this.#encode(this.#next!)
    this.sampled.push(ids)
    const step = stream ? this.#next!.chunkTokens : ids.length
    const events: GenerationEvent[] = [{ type: 'start', engine: 'scripted', promptTokenIds: promptTokenIds! }]
    for (let index = 0; index < ids.length; index += step) {
      const tokenIds = ids.slice(index, index + step)
      events.push({ type: 'delta', content: '?', tokenIds, logprobs: tokenIds.map((id) => -1 - (id % 7)) })
    }
    const usage = { prompt_tokens: promptTokenIds!.length, completion_tokens: ids.length }
    events.push({ type: 'end', finishReason, usage: { ...usage, total_tokens: 0 } })
    for (const event of events) yield [event]
  }

  #encode(sample: Sample): { ids: number[]; finishReason: string } {
    const { tokenizer, parser, eosTokenIds } = this.#model
    const text = getMarkup(sample, parser.name)
    const words = sample.isSplit ? text.match(/<[^<>]{1,30}>|.{1,2}/gsu) : [text]
    const ids = (words ?? []).flatMap((word) => tokenizer.encode(word))
    if (sample.cutAt === undefined) return { ids: [...ids, eosTokenIds[0]!], finishReason: 'stop' }
    return { ids: ids.slice(0, Math.max(1, Math.round(sample.cutAt * ids.length))), finishReason: 'length' }
  }
}
